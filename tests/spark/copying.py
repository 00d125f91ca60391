"""A driver that copies streams until it is killed or done.

`python -m tests.spark.copying URL CHECKPOINT PARTITIONS BYTES`
"""

import sys

from headwater.spark import session
from tests.spark.conftest import SETTINGS


def main(url: str, checkpoint: str, partitions: int, limit: str) -> None:
    spark = session("copying", master="local[2]", settings=SETTINGS)
    spark.sparkContext.setLogLevel("OFF")
    # A replayed batch is not split as it was: the sink must not lean on partitions.
    numbers = (
        spark.readStream.format("headwater")
        .options(url=url, stream="in/*", maxBytesPerTrigger=limit)
        .schema("n long")
        .load()
        .repartition(partitions)
    )
    routed = numbers.selectExpr("concat('out/', n % 3) AS stream", "n")
    query = (
        routed.writeStream.format("headwater")
        .options(url=url, checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
