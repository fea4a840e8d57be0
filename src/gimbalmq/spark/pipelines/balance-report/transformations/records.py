"""The recorded lines as a table. All other tables are SQL over this one."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()

LINE = """
    record STRING, at_ms BIGINT, `group` STRING, member STRING, topic STRING, broker STRING, queue_id INT,
    offset BIGINT, newest BIGINT, lag BIGINT, reason STRING, paused DOUBLE, seconds DOUBLE, cached INT, count BIGINT
"""


@dp.materialized_view
def records() -> DataFrame:
    lines = spark.read.schema(LINE).json(spark.conf.get("gimbalmq.records"))
    # A line may be half written; retry queues are not what anybody wants to see moving.
    whole = lines.where("record IS NOT NULL AND coalesce(topic, '') NOT LIKE '%RETRY%'")
    return whole.selectExpr("*", "timestamp_millis(at_ms) AS at")
