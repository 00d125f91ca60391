"""Jobs in a driver of their own, which a test can kill.

`python -m tests.spark.jobs.driving JOB JSON` calls a job with keyword arguments.
"""

import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from subprocess import Popen
from typing import Any, Final

from pyspark.sql.streaming.query import StreamingQuery

from headwater.spark import session
from headwater.spark.jobs.archive import archive
from headwater.spark.jobs.project import project
from headwater.spark.jobs.publish import publish
from headwater.spark.jobs.restore import restore
from headwater.spark.jobs.snapshot import snapshot
from tests.spark import drivers
from tests.spark.conftest import SETTINGS
from tests.spark.drivers import driver

_QUERIES: Final[dict[str, Callable[..., StreamingQuery]]] = {
    "archive": archive,
    "project": project,
}
KILLS: Final = max(1, drivers.KILLS // 3)
"""Of each job: one in `make test`, more in a longer run."""


def main(job: str, arguments: dict[str, Any]) -> None:
    spark = session("driving", master="local[2]", settings=SETTINGS)
    spark.sparkContext.setLogLevel("OFF")
    if job in _QUERIES:
        _QUERIES[job](spark, trigger={"availableNow": True}, **arguments).awaitTermination()
    elif job == "restore":
        restore(spark, **arguments)
    elif job == "publish":
        publish(spark, spark.range(arguments.pop("count")), **arguments)
    else:
        snapshot(spark, **arguments)
    spark.stop()


def job_driver(
    job: str, folder: Path, arguments: dict[str, Any]
) -> AbstractContextManager[Popen[bytes]]:
    """Run a job until the end of the block, where it is killed with all its processes."""
    return driver("tests.spark.jobs.driving", job, json.dumps(arguments), folder=folder)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
