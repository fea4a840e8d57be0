"""Bodies as JSON: what can be read goes to ``decoded``, what cannot to ``undecoded`` with the reason."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import coalesce, col, from_json, lit, try_parse_json

spark = SparkSession.active()

SCHEMA = spark.conf.get("gimbalmq.schema")
if SCHEMA == "infer":
    raise ValueError("gimbalmq.schema is still to be inferred: `gimbalmq pipeline run` does it, once")
WHERE_FROM = ["topic", "date", "broker", "queueId", "offset", "key", "tags", "storeTimestamp"]


@dp.temporary_view
def parsed() -> DataFrame:
    messages = spark.readStream.table("messages")
    text = col("body").cast("string")
    if SCHEMA:
        # Spark fills a column of this name with what does not fit the schema.
        options = {"columnNameOfCorruptRecord": "_unfit"}
        value = from_json(text, f"{SCHEMA}, _unfit STRING", options)
        return (
            messages.withColumn("value", value)
            .withColumn("readable", col("value").isNotNull() & col("value._unfit").isNull())
            .withColumn("value", col("value").dropFields("_unfit"))
        )
    # No schema: a VARIANT keeps each body in the shape it has; read it with value:field::type.
    value = try_parse_json(text)
    return messages.withColumn("value", value).withColumn("readable", value.isNotNull())


@dp.table
def decoded() -> DataFrame:
    return spark.readStream.table("parsed").where("readable").select(*WHERE_FROM, "value")


@dp.table
def undecoded() -> DataFrame:
    reason = coalesce("decodeError", lit("no JSON of the schema" if SCHEMA else "no JSON"))
    rest = spark.readStream.table("parsed").where("NOT readable")
    return rest.select(*WHERE_FROM, "msgId", "body", reason.alias("reason"))
