"""The archive itself: every message as it came."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import to_date

spark = SparkSession.active()


# With tables of Iceberg or Delta say @dp.table(partition_cols=["topic", "date"]). Where a stream writes plain Parquet
# tables, Spark takes no notice of it.
@dp.table
def messages() -> DataFrame:
    source = (
        spark.readStream.format("rocketmq")
        .option("namesrv", spark.conf.get("gimbalmq.namesrv"))
        .option("subscribe", spark.conf.get("gimbalmq.topics"))
        .option("startingOffsets", spark.conf.get("gimbalmq.start"))
        .option("consumerGroup", spark.conf.get("gimbalmq.group"))
        .option("maxOffsetsPerTrigger", spark.conf.get("gimbalmq.batch"))
        .option("includeProperties", "true")
        .option("onDecodeError", "keep")  # damaged messages are archived too, with the reason
    )
    return source.load().withColumn("date", to_date("storeTimestamp"))
