"""Spark as others run it, from the pip package: a standalone cluster, and a Connect server."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from headwater.spark.java import find_java
from tests.support.engines.process import answers_tcp, free_port, running
from tests.support.java import OPTIONS

_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
_WORKERS = 2


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[str]:
    """Start a master and two workers; gives the master's URL."""
    with ExitStack() as stack:
        port, page = free_port(), free_port()
        url = f"spark://127.0.0.1:{port}"
        master = [
            *("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1"),
            *("--port", str(port), "--webui-port", str(page)),
        ]
        _start(stack, "Spark's master", master, folder / "master.log", port)
        for number in range(_WORKERS):
            page = free_port()
            worker = [
                *("org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1"),
                *("--cores", "1", "--memory", "1g", "--webui-port", str(page)),
                *("--work-dir", str(folder / f"worker-{number}"), url),
            ]
            _start(stack, "a Spark worker", worker, folder / f"worker-{number}.log", page)
        yield url


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Start a Spark Connect server; gives its URL."""
    with ExitStack() as stack:
        port = free_port()
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
            "spark.ui.enabled": "false",
            "spark.driver.memory": "768m",
        }
        command = [
            *("org.apache.spark.deploy.SparkSubmit", "--master", "local[2]"),
            *(part for each in settings.items() for part in ("--conf", "=".join(each))),
            *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
            "spark-internal",
        ]
        _start(stack, "Spark's Connect server", command, folder / "connect.log", port)
        yield f"sc://127.0.0.1:{port}"


def _start(stack: ExitStack, name: str, arguments: list[str], log: Path, port: int) -> None:
    environment = {
        **os.environ,
        "JAVA_HOME": find_java(),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_JAVA_OPTS": OPTIONS,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command: list[str | Path] = [_CLASS, *arguments]
    stack.enter_context(running(name, command, log, lambda: answers_tcp(port), environment))
