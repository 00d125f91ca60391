"""A driver that projects runs until it is killed or done.

`python -m tests.spark.jobs.driving URL FOLDER BYTES`
"""

import sys

from headwater.spark import session
from headwater.spark.jobs.project import project
from tests.spark.conftest import SETTINGS


def main(url: str, folder: str, limit: str) -> None:
    spark = session("driving", master="local[2]", settings=SETTINGS)
    spark.sparkContext.setLogLevel("OFF")
    query = project(
        spark,
        {"url": url, "stream": "log/*", "maxBytesPerTrigger": limit},
        tables=f"{folder}/tables",
        checkpoint=f"{folder}/checkpoint",
        publish="snapshots",
        trigger={"availableNow": True},
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
