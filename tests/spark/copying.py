"""A driver that copies streams and makes tables of them until it is killed or done.

`python -m tests.spark.copying URL FOLDER PARTITIONS BYTES MASTER`
"""

import sys
from typing import Final

from pyspark.sql import SparkSession

from headwater.spark import session
from headwater.spark.jobs.materialize import materialize
from tests.spark.conftest import SETTINGS
from tests.support.java import FROM_ARCHIVE

EXECUTORS: Final = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": FROM_ARCHIVE,
}


def copy(spark: SparkSession, url: str, folder: str, partitions: int, limit: str) -> None:
    """Bring the copies and the tables up to date."""
    source = {"url": url, "stream": "in/*", "maxBytesPerTrigger": limit}
    # A replayed batch is not split as it was: the sink must not lean on partitions.
    numbers = (
        spark.readStream.format("headwater")
        .options(**source)
        .schema("value struct<n: long>")
        .load()
        .repartition(partitions)
    )
    routed = numbers.selectExpr("concat('out/', value.n % 3) AS stream", "value.n AS n")
    queries = [
        routed.writeStream.format("headwater")
        .options(url=url, checkpointLocation=f"{folder}/copying")
        .trigger(availableNow=True)
        .start(),
        materialize(
            spark,
            source,
            tables=f"{folder}/tables",
            checkpoint=f"{folder}/materializing",
            schemas={"number": "n long"},
            trigger={"availableNow": True},
        ),
    ]
    for query in queries:
        query.awaitTermination()


def main(url: str, folder: str, partitions: int, limit: str, master: str) -> None:
    spark = session("copying", master=master, settings=SETTINGS | EXECUTORS)
    spark.sparkContext.setLogLevel("OFF")
    copy(spark, url, folder, partitions, limit)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5])
