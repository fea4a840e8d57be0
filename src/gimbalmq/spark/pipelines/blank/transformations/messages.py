"""One topic, one table. Add files beside this one: Python, or SQL that reads ``messages``."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.table
def messages() -> DataFrame:
    return (
        spark.readStream.format("rocketmq")
        .option("namesrv", spark.conf.get("gimbalmq.namesrv"))
        .option("startingOffsets", "earliest")
        .load(spark.conf.get("gimbalmq.topics"))
    )
