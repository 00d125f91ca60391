"""A Spark session with settings that suit streams."""

import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Final

from pyspark.sql import SparkSession

from headwater.spark.home import quick_home
from headwater.spark.java import find_java

_ANYWHERE: Final = {
    "spark.sql.session.timeZone": "UTC",
    # Each of those that are kept has three offsets of every stream that a query reads.
    "spark.sql.streaming.numRecentProgressUpdates": "10",
}
_OWN: Final = {
    # Only who starts Spark can say so: a Connect server has been started by someone else.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "headwater.spark_daemon",
}
_LOCAL: Final = {
    # A rename of Hadoop's local file system starts a process and writes a checksum for each file.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    # A shuffle stays on this machine, and what jobs shuffle most is compressed already.
    "spark.shuffle.compress": "false",
}


def session(
    app_name: str = "headwater",
    *,
    master: str = "local[*]",
    remote: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start or find a Spark session: embedded, on a cluster (`master`), or by Spark Connect."""
    builder = SparkSession.builder.appName(app_name)
    chosen = dict(_ANYWHERE)
    is_embedded = remote is None and master.startswith("local")
    if remote is not None:
        builder = builder.remote(remote)
    else:
        os.environ["JAVA_HOME"] = find_java()  # the user's own, if Spark can run on it
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.master(master)
        chosen |= _OWN
        if is_embedded:
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            chosen |= _LOCAL
    chosen |= settings or {}
    for name, value in chosen.items():
        builder = builder.config(name, value)
    with quick_home(chosen) if is_embedded else nullcontext():
        return builder.getOrCreate()
