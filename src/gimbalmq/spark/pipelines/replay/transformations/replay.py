"""Archived messages back to a topic, at a set rate, each file once."""

import time
from collections.abc import Iterator

import pyarrow as pa
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import arrow_udf, col, lit
from pyspark.sql.types import BinaryType

spark = SparkSession.active()

RATE = int(spark.conf.get("gimbalmq.rate"))
TOPIC = spark.conf.get("gimbalmq.topic")

ARCHIVED = """
    topic STRING, date DATE, broker STRING, queueId INT, offset BIGINT, key STRING, tags STRING, body BINARY,
    bornTimestamp TIMESTAMP, storeTimestamp TIMESTAMP, msgId STRING, properties MAP<STRING, STRING>
"""

# Rows are handed on, and sent, in pieces of this size: a tenth of a second's worth.
PIECE = str(max(1, RATE // 10) if RATE else 4000)

dp.create_sink(
    "topic",
    "rocketmq",
    {
        "namesrv": spark.conf.get("gimbalmq.namesrv"),
        "batchSize": PIECE,
        "reservedProperties": "drop",  # those of the first sending: ids, retries, delays
    },
)


@arrow_udf(BinaryType())
def at_rate(bodies: Iterator[pa.Array]) -> Iterator[pa.Array]:
    """Changes nothing; lets rows through no faster than RATE."""
    due = 0.0
    for piece in bodies:
        now = time.monotonic()
        due = max(due, now)  # time that went by unused is not made up for
        time.sleep(due - now)
        due += len(piece) / RATE
        yield piece


@dp.append_flow(target="topic", spark_conf={"spark.sql.execution.arrow.maxRecordsPerBatch": PIECE})
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
    return messages.coalesce(1).withColumn("body", at_rate("body")) if RATE else messages
