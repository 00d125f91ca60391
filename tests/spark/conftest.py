"""One Spark and one server for all tests of the pipeline, and paths of its own for each test."""

import itertools
from collections.abc import Iterator
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession

from headwater.client import Client
from headwater.spark import session
from tests.support.engines.object_storage import ObjectStorage
from tests.support.server import ServerProcess

SETTINGS: Final = {
    "spark.driver.memory": "768m",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stopTimeout": "30s",
    "spark.sql.warehouse.dir": "/nonexistent",
}

_number: Final = itertools.count()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    started = session("tests", master="local[2]", settings=SETTINGS)
    started.sparkContext.setLogLevel("OFF")
    yield started
    started.stop()


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    with ServerProcess() as process:
        yield process


@pytest.fixture
def lake(
    spark: SparkSession, object_storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> str:
    """A new bucket, which driver and executors have the credentials of."""
    for name, value in object_storage.environment.items():
        monkeypatch.setenv(name, value)
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    return f"s3://{object_storage.fresh_bucket()}"


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.url) as opened:
        yield opened


@pytest.fixture
def room() -> str:
    """A part of the paths that no other test uses."""
    return f"room{next(_number)}"


class Reads:
    """Reads of one server."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self.spark = spark
        self.url = url

    def batch(self, stream: str, schema: str | None = None, **options: str) -> DataFrame:
        reader = self.spark.read.format("headwater").options(**self._all(stream, options))
        return (reader.schema(schema) if schema else reader).load()

    def stream(self, stream: str, schema: str | None = None, **options: str) -> DataFrame:
        reader = self.spark.readStream.format("headwater").options(**self._all(stream, options))
        return (reader.schema(schema) if schema else reader).load()

    def _all(self, stream: str, options: dict[str, str]) -> dict[str, Any]:
        return {"url": self.url, "stream": stream, **options}


@pytest.fixture
def reads(spark: SparkSession, server: ServerProcess) -> Reads:
    return Reads(spark, server.url)
