"""Workers that Spark has no use for any more end without a word."""

import subprocess
import sys

import pytest
from pyspark.sql import SparkSession

import headwater.spark_daemon
from tests.spark.patience import PATIENCE

pytestmark = pytest.mark.starts_spark

PROGRAM = """
import os, socket, sys
os.environ["PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE"] = "1"
sys.argv = ["daemon", "pyspark.worker"]
from {module} import worker
ours, sparks = socket.socketpair()
sparks.close()
sys.exit(worker(ours, True))
"""


def end_of_a_worker(module: str) -> "subprocess.CompletedProcess[str]":
    """Start a worker whose socket Spark has closed."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(module=module)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_a_worker_that_nobody_listens_to_says_nothing() -> None:
    ended = end_of_a_worker("headwater.spark_daemon")
    assert (ended.returncode, ended.stderr) == (1, "")


def test_without_it_a_traceback_is_shown() -> None:
    assert "BrokenPipeError" in end_of_a_worker("pyspark.daemon").stderr


def test_a_worker_of_sparks_own_daemon_that_uses_the_format_says_nothing_either() -> None:
    program = "import sys; from pyspark import daemon; "
    program += "main = sys.modules['__main__']; main.__spec__ = daemon.__spec__; "
    program += "import pyspark_headwater, headwater.spark_daemon; "
    program += "assert main.worker is headwater.spark_daemon.worker"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE)


def test_a_program_that_uses_the_format_is_left_alone() -> None:
    program = "import sys, pyspark_headwater; assert not hasattr(sys.modules['__main__'], 'worker')"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE)


def test_it_imports_nothing_that_has_threads() -> None:
    told = "import sys, threading, headwater.spark_daemon; print(*sys.modules); "
    told += "assert threading.active_count() == 1"
    command = [sys.executable, "-c", told]
    modules = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert not {"pyarrow", "pandas", "numpy"} & {*modules}


def test_the_format_is_imported_without_pandas() -> None:
    """Each process that plans a query imports it, and pandas takes as long as all the rest."""
    look = "import sys, pyspark_headwater; assert 'pandas' not in sys.modules"
    subprocess.run([sys.executable, "-c", look], check=True, timeout=PATIENCE)


def test_the_workers_of_a_session_come_from_it(spark: SparkSession) -> None:
    started = spark.sparkContext.parallelize([0]).map(lambda _: sys.modules["__main__"].__file__)
    assert started.collect() == [headwater.spark_daemon.__file__]
