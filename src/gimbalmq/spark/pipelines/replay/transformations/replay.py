"""Archived messages back to a topic, at a set rate, each batch of the archive once."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit

spark = SparkSession.active()

RATE = int(spark.conf.get("gimbalmq.rate"))
TOPIC = spark.conf.get("gimbalmq.topic")

ARCHIVED = """
    topic STRING, date DATE, broker STRING, queueId INT, offset BIGINT, key STRING, tags STRING, body BINARY,
    flag INT, bornTimestamp TIMESTAMP, storeTimestamp TIMESTAMP, msgId STRING, properties MAP<STRING, STRING>,
    decodeError STRING
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
        spark.readStream.format("rocketmq-archive")
        .schema(ARCHIVED)
        .option("ordered", "true")  # all rows of a queue in one task, in the order they had there
        .option("maxBatchesPerTrigger", spark.conf.get("gimbalmq.batches"))
        .load(spark.conf.get("gimbalmq.archive"))
        # What could not be decoded is in the archive as it was found, and is no message to send.
        .where("decodeError IS NULL AND octet_length(body) > 0")
        .where(spark.conf.get("gimbalmq.where"))
    )
    topic = lit(TOPIC) if TOPIC else col("topic")
    # The sharding key decides the queue again, so each key's messages stay in their order.
    sharding_key = col("properties")["__SHARDINGKEY"].alias("shardingKey")
    messages = archived.select(
        topic.alias("topic"), "key", "tags", sharding_key, "body", "flag", "properties"
    )
    # One task, because a rate that several share is kept by none.
    return messages.coalesce(1) if RATE else messages
