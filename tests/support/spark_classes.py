"""Make the archive of Java's classes from which the Sparks of the tests start: in half the time.

    python -m tests.support.spark_classes

A Spark reads some ten thousand classes before its first row. Java keeps those that one Spark has
used as they are in memory, and the next ones map that file. A Java that can't use it, or finds
none, starts without.
"""

import os
import tempfile
from typing import Final

from headwater.client import Client
from headwater.spark import session
from tests.support.java import CLASS_ARCHIVE, OPTIONS
from tests.support.server import ServerProcess

_SETTINGS: Final = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}


def main() -> None:
    CLASS_ARCHIVE.unlink(missing_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = f"{OPTIONS} -XX:ArchiveClassesAtExit={CLASS_ARCHIVE}"
    with (
        tempfile.TemporaryDirectory() as folder,
        ServerProcess() as server,
        Client(server.url) as client,
    ):
        client.stream("/from").create(content_type="application/json")
        client.stream("/from").append([{"number": number} for number in range(10)])
        spark = session("classes", master="local[2]", settings=_SETTINGS)
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        options = {"url": server.url, "stream": "/from"}
        read = spark.readStream.format("headwater").options(**options).load()
        writes = read.writeStream.format("headwater").options(url=server.url, stream="/to")
        writes = writes.option("checkpointLocation", folder).trigger(availableNow=True)
        writes.start().awaitTermination()
        spark.read.format("headwater").options(**options).load().groupBy("stream").count().collect()
        spark.stop()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    main()
