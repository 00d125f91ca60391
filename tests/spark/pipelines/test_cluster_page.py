"""The page on clusters does what it says, on the Java of a package."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from headwater.client import Client
from tests.docs.test_pages import blocks
from tests.spark.patience import PATIENCE
from tests.spark.test_java import make_old_java
from tests.support.engines.process import free_port
from tests.support.java import OPTIONS
from tests.support.server import ServerProcess

pytestmark = pytest.mark.starts_spark

PIPELINE: Final = """
trigger = "available-now"

[source]
stream = "in"
schema = "n long"

[target]
kind = "stream"
stream = "out"
"""
ANY_PAGE: Final = "--webui-port 0"


@pytest.mark.timeout(2 * PATIENCE)
def test_a_cluster_of_the_page_runs_a_pipeline(tmp_path: Path) -> None:
    make_old_java(tmp_path)
    _, script = next(each for each in blocks("docs/spark-cluster.md") if "spark-class" in each[1])
    port = str(free_port())
    for place in ("Master", "Worker"):
        assert f".{place} " in script
        script = script.replace(f".{place} ", f".{place} {ANY_PAGE} ")
    (tmp_path / "pipeline.toml").write_text(PIPELINE)
    with ServerProcess() as server, Client(server.url) as client:
        client.stream("in").create(data=b'[{"n": 1}, {"n": 2}]')
        log = (tmp_path / "shell.log").open("w")
        shell = subprocess.Popen(
            ["bash", "-euc", script.replace("7077", port)],
            cwd=tmp_path,
            env={
                **os.environ,
                "HEADWATER_URL": server.url,
                "JAVA_HOME": str(tmp_path),
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "SPARK_DAEMON_JAVA_OPTS": OPTIONS,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_WORKER_DIR": str(tmp_path / "worker"),
            },
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = shell.wait(PATIENCE)
        finally:
            os.killpg(shell.pid, signal.SIGKILL)
            log.close()
        assert code == 0, (tmp_path / "shell.log").read_text()
        assert list(client.stream("out").read().items()) == [{"n": 1}, {"n": 2}]
