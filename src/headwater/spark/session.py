"""A Spark session with settings that suit streams, and a clear word where there is no Java."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from headwater.errors import NoJava

LEAST_JAVA: Final = 17

_ANYWHERE: Final = {"spark.sql.session.timeZone": "UTC"}
_OWN: Final = {
    # Only who starts Spark can say so: a Connect server has been started by someone else.
    "spark.python.unix.domain.socket.enabled": "true",
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
_VERSION: Final = re.compile(r'version "(\d+)')


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
    if remote is not None:
        builder = builder.remote(remote)
    else:
        os.environ.setdefault("JAVA_HOME", find_java())
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.master(master)
        chosen |= _OWN
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            chosen |= _LOCAL
    for name, value in (chosen | dict(settings or {})).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def find_java() -> str:
    """Find the home of a Java that Spark can run on; raises `NoJava` where there is none."""
    seen = []
    for home in _homes():
        version = java_version(home)
        if version is not None and version >= LEAST_JAVA:
            return str(home)
        seen.append(f"Java {version} is at {home}" if version else f"{home} holds no Java")
    raise NoJava("; ".join(seen) or "there is none", LEAST_JAVA)


def java_version(home: Path) -> int | None:
    """Ask a Java for its version; None where there is none that runs."""
    try:
        told = subprocess.run(  # noqa: S603 - the user's own Java
            [home / "bin" / "java", "-version"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(told.stderr + told.stdout)
    return int(found[1]) if found else None


def _homes() -> list[Path]:
    """List where a Java may be: where the user says, or else on the path."""
    if "JAVA_HOME" in os.environ:
        return [Path(os.environ["JAVA_HOME"])]  # Spark would use no other
    java = shutil.which("java")
    return [] if java is None else [Path(java).resolve().parent.parent]
