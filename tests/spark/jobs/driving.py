"""Jobs in a driver of their own, which a test can kill.

`python -m tests.spark.jobs.driving JOB JSON` calls a job with keyword arguments.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from pyspark.sql.streaming.query import StreamingQuery

from headwater.spark import session
from headwater.spark.jobs.archive import archive
from headwater.spark.jobs.project import project
from headwater.spark.jobs.restore import restore
from headwater.spark.jobs.snapshot import snapshot
from tests.spark.conftest import SETTINGS
from tests.spark.test_kills import kill_all

_QUERIES: Final[dict[str, Callable[..., StreamingQuery]]] = {
    "archive": archive,
    "project": project,
}
KILLS: Final = max(1, int(os.environ.get("HEADWATER_SPARK_KILLS", "3")) // 3)
"""Of each job: one in `make test`, more in a longer run."""
PATIENCE: Final = 240.0
"""A driver starts slowly on a busy machine."""


def main(job: str, arguments: dict[str, Any]) -> None:
    spark = session("driving", master="local[2]", settings=SETTINGS)
    spark.sparkContext.setLogLevel("OFF")
    if job in _QUERIES:
        _QUERIES[job](spark, trigger={"availableNow": True}, **arguments).awaitTermination()
    elif job == "restore":
        restore(spark, **arguments)
    else:
        snapshot(spark, **arguments)
    spark.stop()


@contextmanager
def driver(
    job: str, log_folder: Path, arguments: dict[str, Any]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a job until the end of the block, where it is killed with all its processes."""
    with (log_folder / "driver.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.jobs.driving", job, json.dumps(arguments)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        kill_all(process.pid)
        process.wait(20)


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a driver, its JVM and its workers at once."""
    kill_all(process.pid)
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
