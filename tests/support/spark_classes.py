"""Make the archive of Java's classes from which the Sparks of the tests start: in half the time.

    python -m tests.support.spark_classes

A Spark reads some ten thousand classes before its first row. Java keeps those that one Spark has
used as they are in memory, and the next ones map that file. A Java that can't use it, or finds
none, starts without.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from headwater.client import Client
from headwater.spark import session
from headwater.spark.jobs.materialize import materialize
from headwater.spark.tables import open_table
from headwater.state import change, encode_events
from tests.support.java import CLASS_ARCHIVE, OPTIONS, PLANS
from tests.support.server import ServerProcess

_SETTINGS: Final = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}


def main() -> None:
    CLASS_ARCHIVE.unlink(missing_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = f"{OPTIONS} {PLANS} -XX:ArchiveClassesAtExit={CLASS_ARCHIVE}"
    with (
        tempfile.TemporaryDirectory() as folder,
        ServerProcess() as server,
        Client(server.url) as client,
        spark_that_ends() as spark,
    ):
        copy(spark, client, server.url, folder)
        make_tables(spark, client, server.url, folder)


@contextmanager
def spark_that_ends() -> Iterator[SparkSession]:
    """A Spark whose Java ends with the block, which is when it writes the archive."""
    spark = session("classes", master="local[2]", settings=_SETTINGS)
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    yield spark
    spark.stop()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def copy(spark: SparkSession, client: Client, url: str, folder: str) -> None:
    client.stream("/from").create(data=b'[{"number": 1}, {"number": 2}]')
    options = {"url": url, "stream": "/from"}
    read = spark.readStream.format("headwater").options(**options).load()
    writes = read.writeStream.format("headwater").options(url=url, stream="/to")
    writes = writes.option("checkpointLocation", f"{folder}/copy").trigger(availableNow=True)
    writes.start().awaitTermination()
    rows = spark.read.format("headwater").options(**options).schema("number long").load()
    rows.createOrReplaceTempView("rows")
    spark.sql("SELECT number % 3 AS n, count(*) FROM rows GROUP BY n ORDER BY n").collect()


def make_tables(spark: SparkSession, client: Client, url: str, folder: str) -> None:
    events = [change("insert", "user", str(number), {"n": number}) for number in range(10)]
    client.stream("/state").create("application/json", data=encode_events(events))
    query = materialize(
        spark,
        {"url": url, "stream": "/state"},
        tables=f"{folder}/tables",
        checkpoint=f"{folder}/materialize",
        schemas={"user": "n long"},
        trigger={"availableNow": True},
    )
    query.awaitTermination()
    table = open_table(str(Path(folder) / "tables" / "user")).read(spark)
    assert table is not None
    assert table.count() == len(events)


if __name__ == "__main__":
    main()
