"""What tests of pipelines share: a pipeline over streams of their own, run to its end."""

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from headwater.client import Client
from headwater.spark.pipelines import Meter, Outcome, Pipeline, read_document, running
from tests.spark.patience import PATIENCE
from tests.support.server import ServerProcess

_number: Final = itertools.count()


class Pipelines:
    """Makes pipelines in a folder of the test, over streams of the test."""

    def __init__(
        self, spark: SparkSession, client: Client, url: str, room: str, folder: Path
    ) -> None:
        self.spark = spark
        self.client = client
        self.url = url
        self.room = room
        self.folder = folder

    def make(self, **document: Any) -> Pipeline:
        """Make a pipeline; it reads the JSON of the room's `in` streams into its `out`."""
        source = {"stream": f"{self.room}/in/*", "url": self.url, "schema": "n long, word string"}
        whole = {
            "name": f"p{next(_number)}",
            "trigger": "available-now",
            **document,
            "source": {**source, **document.get("source", {})},
            "target": document.get("target", {"kind": "stream", "stream": f"{self.room}/out"}),
        }
        pipeline, problems = read_document(whole, self.folder, {})
        assert pipeline is not None, problems
        assert not problems
        return pipeline

    def feed(self, name: str, messages: bytes) -> None:
        stream = self.client.stream(f"{self.room}/in/{name}")
        stream.create("application/json")
        stream.append(messages)

    def items(self, name: str = "out") -> list[Any]:
        return list(self.client.stream(f"{self.room}/{name}").read().items())

    def run(self, *pipelines: Pipeline, meter: Meter | None = None) -> list[Outcome]:
        """Run pipelines to their end."""
        with running(self.spark, pipelines, meter or Meter()) as runner:
            until = time.monotonic() + 120
            while runner.look():
                assert time.monotonic() < until
                time.sleep(0.02)
            return runner.outcomes()

    def run_one(self, pipeline: Pipeline, meter: Meter | None = None) -> Outcome:
        (outcome,) = self.run(pipeline, meter=meter)
        assert outcome.how == "done", outcome
        return outcome


@pytest.fixture
def pipelines(
    spark: SparkSession, client: Client, server: ServerProcess, room: str, tmp_path: Path
) -> Pipelines:
    return Pipelines(spark, client, server.url, room, tmp_path)


def wait_until(check: Callable[[], bool], seconds: float = PATIENCE) -> None:
    until = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < until
        time.sleep(0.02)
