"""Dead letters of a group back to the topic they came from."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit

spark = SparkSession.active()

TOPIC = spark.conf.get("gimbalmq.topic")

COLUMNS = """
    topic STRING, broker STRING, queueId INT, offset BIGINT, key STRING, tags STRING, body BINARY, flag INT,
    bornTimestamp TIMESTAMP, storeTimestamp TIMESTAMP, msgId STRING, reconsumeTimes INT,
    properties MAP<STRING, STRING>
"""

# RocketMQ has several names for it, by version and by the way the letter took.
ORIGINAL = "coalesce(properties['DLQ_ORIGIN_TOPIC'], properties['RETRY_TOPIC'], properties['REAL_TOPIC'])"

dp.create_sink(
    "topics",
    "rocketmq",
    {
        "namesrv": spark.conf.get("gimbalmq.namesrv"),
        "reservedProperties": "drop",  # without the old count of retries a letter gets all of them again
    },
)


@dp.append_flow(target="topics")
def redrive() -> DataFrame:
    letters = (
        spark.readStream.format("rocketmq")
        .schema(COLUMNS)
        .option("namesrv", spark.conf.get("gimbalmq.namesrv"))
        .option("subscribe", f"%DLQ%{spark.conf.get('gimbalmq.group')}")
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("*", f"{ORIGINAL} AS original", "body AS bytes")
        # So that a condition can say body LIKE '%...%'.
        .withColumn("body", col("bytes").cast("string"))
        .where(spark.conf.get("gimbalmq.where"))
    )
    topic = lit(TOPIC) if TOPIC else col("original")
    # The sharding key decides the queue again, so each key's letters stay in their order.
    sharding_key = col("properties")["__SHARDINGKEY"].alias("shardingKey")
    body = col("bytes").alias("body")
    return letters.select(topic.alias("topic"), "key", "tags", sharding_key, body, "flag", "properties")
