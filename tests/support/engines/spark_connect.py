"""A Spark Connect server from the pip package."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headwater.spark.home import quick_home
from headwater.spark.java import find_java
from tests.support.engines.process import answers_tcp, free_port, running


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Start a Spark Connect server; gives its URL."""
    port = free_port()
    with quick_home({}):  # else each of its workers compiles PySpark first
        home = os.environ["SPARK_HOME"]
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.driver.memory": "768m",
    }
    command = [
        *(f"{home}/bin/spark-class", "org.apache.spark.deploy.SparkSubmit", "--master", "local[2]"),
        *(part for each in settings.items() for part in ("--conf", "=".join(each))),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        "spark-internal",
    ]
    environment = {
        **os.environ,
        "JAVA_HOME": find_java(),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": home,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    log = folder / "connect.log"
    with running("Spark's Connect server", command, log, lambda: answers_tcp(port), environment):
        yield f"sc://127.0.0.1:{port}"
