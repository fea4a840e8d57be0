"""Archived messages back to a topic, at a set rate, each file once."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit

spark = SparkSession.active()

RATE = int(spark.conf.get("gimbalmq.rate"))
TOPIC = spark.conf.get("gimbalmq.topic")

ARCHIVED = """
    topic STRING, date DATE, broker STRING, queueId INT, offset BIGINT, key STRING, tags STRING, body BINARY,
    bornTimestamp TIMESTAMP, storeTimestamp TIMESTAMP, msgId STRING, properties MAP<STRING, STRING>
"""

SINK = {
    "namesrv": spark.conf.get("gimbalmq.namesrv"),
    "reservedProperties": "drop",  # those of the first sending: ids, retries, delays
}
if RATE:
    SINK["maxRowsPerSecond"] = str(RATE)

dp.create_sink("topic", "rocketmq", SINK)


@dp.append_flow(target="topic")
def replay() -> DataFrame:
    archived = (
        spark.readStream.schema(ARCHIVED)
        .option("maxFilesPerTrigger", spark.conf.get("gimbalmq.files"))
        .parquet(spark.conf.get("gimbalmq.archive"))
        .where(spark.conf.get("gimbalmq.where"))
    )
    topic = lit(TOPIC) if TOPIC else col("topic")
    messages = archived.select(topic.alias("topic"), "key", "tags", "body", "properties")
    # One task, because a rate that several share is kept by none.
    return messages.coalesce(1) if RATE else messages
