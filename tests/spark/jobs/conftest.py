"""A job of its own for each test that makes tables."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.jobs.materializing import Job
from tests.support.server import ServerProcess


@pytest.fixture
def job(spark: SparkSession, server: ServerProcess, room: str, tmp_path: Path) -> Job:
    return Job(spark, server.url, room, tmp_path)
