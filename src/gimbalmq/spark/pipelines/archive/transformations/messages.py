"""The archive itself: every message as it came, in folders by topic and day or hour."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import hour, to_date

from gimbalmq.spark.archive.source import archived_at

spark = SparkSession.active()

COLUMNS = """
    topic STRING, broker STRING, queueId INT, offset BIGINT, key STRING, tags STRING, body BINARY, flag INT,
    bornTimestamp TIMESTAMP, storeTimestamp TIMESTAMP, msgId STRING, reconsumeTimes INT,
    properties MAP<STRING, STRING>, decodeError STRING
"""
FOLDERS = {"day": ["topic", "date"], "hour": ["topic", "date", "hour"]}
PARTITION_BY = FOLDERS[spark.conf.get("gimbalmq.partition")]


# Spark's own streaming tables of Parquet files have no folders; tables of this format do. With tables of Iceberg
# or Delta say @dp.table(partition_cols=["topic", "date"]) instead, and leave archived_at out.
@dp.table(format="rocketmq-archive")
def messages() -> DataFrame:
    source = (
        spark.readStream.format("rocketmq")
        .schema(COLUMNS)
        .option("namesrv", spark.conf.get("gimbalmq.namesrv"))
        .option("subscribe", spark.conf.get("gimbalmq.topics"))
        .option("startingOffsets", spark.conf.get("gimbalmq.start"))
        .option("consumerGroup", spark.conf.get("gimbalmq.group"))
        .option("maxOffsetsPerTrigger", spark.conf.get("gimbalmq.batch"))
        .option("onDecodeError", "keep")  # damaged messages are archived too, with the reason
    )
    rows = source.load().withColumn("date", to_date("storeTimestamp"))
    if "hour" in PARTITION_BY:
        rows = rows.withColumn("hour", hour("storeTimestamp"))
    return archived_at(rows, spark.conf.get("gimbalmq.messages"), partition_by=PARTITION_BY)
