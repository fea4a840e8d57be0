"""Topics of one cluster to another: body, key, tags, sharding key and the application's properties as they were."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, concat, lit

spark = SparkSession.active()

COLUMNS = "topic STRING, key STRING, tags STRING, body BINARY, flag INT, properties MAP<STRING, STRING>"

DAMAGED = spark.conf.get("gimbalmq.damaged")
if DAMAGED not in ("fail", "skip"):
    raise ValueError(f"gimbalmq.damaged={DAMAGED!r} cannot be used: use fail or skip")

dp.create_sink(
    "target",
    "rocketmq",
    {
        "namesrv": spark.conf.get("gimbalmq.target"),
        "clientFile": spark.conf.get("gimbalmq.targetClientFile"),
        "reservedProperties": "drop",  # those of the first sending: ids, retries, delays
    },
)


@dp.append_flow(target="target")
def mirror() -> DataFrame:
    messages = (
        spark.readStream.format("rocketmq")
        .schema(COLUMNS)
        .option("namesrv", spark.conf.get("gimbalmq.namesrv"))
        .option("subscribe", spark.conf.get("gimbalmq.topics"))
        .option("tags", spark.conf.get("gimbalmq.tags"))
        .option("startingOffsets", spark.conf.get("gimbalmq.start"))
        .option("consumerGroup", spark.conf.get("gimbalmq.group"))
        .option("maxOffsetsPerTrigger", spark.conf.get("gimbalmq.batch"))
        .option("onDecodeError", DAMAGED)
        .load()
    )
    topic = concat(lit(spark.conf.get("gimbalmq.prefix")), col("topic"))
    # The sharding key decides the queue on the other side, too: each key's messages stay in their order.
    sharding_key = col("properties")["__SHARDINGKEY"].alias("shardingKey")
    return messages.select(topic.alias("topic"), "key", "tags", sharding_key, "body", "flag", "properties")
