"""The same pipelines, unchanged, in this process, through Spark Connect and on a cluster.

The cluster is the one that the documentation sets up, by its own commands.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from headwater.cli import main
from headwater.client import Client
from headwater.spark.tables.delta import DeltaLog
from headwater.spark.tables.files import read_files
from tests.docs.test_pages import blocks
from tests.spark.patience import PATIENCE
from tests.spark.run_logs import messages_of
from tests.spark.test_java import make_old_java
from tests.suites.run_steps import as_stored, started, step_completed, step_started
from tests.support.engines.process import free_port
from tests.support.engines.spark_connect import connect_server
from tests.support.java import OPTIONS
from tests.support.server import ServerProcess

STREAM: Final = """
[source]
stream = "in/*"
schema = "n long, word string"

[[transform]]
sql = "SELECT n, word FROM source WHERE n > 1"
name = "some"

[[transform]]
python = "shouting.py:shout"

[[transform]]
sql = "SELECT concat('{place}/', n) AS stream, word FROM step2"

[target]
kind = "stream"

[spark]
sql.shuffle.partitions = 2
"""
TABLE: Final = """
metrics_stream = "{place}-metrics"

[source]
stream = "in/*"
schema = "n long, word string"

[target]
kind = "table"
folder = "tables/words"
"""
STATE: Final = """
[source]
stream = "shop/*"
options.onCorrupt = "column"

[target]
kind = "materialize"
tables = "state"
schemas.order = "customer string, total double"
"""
RUNS: Final = """
[source]
stream = "jobs/*"

[target]
kind = "project"
tables = "runs"
"""
TABLES: Final = (
    *("tables/words", "state/order", "state/order_history", "state/customer"),
    *("state/_quarantine", "runs/runs", "runs/steps"),
)
OF_A_QUERY: Final = frozenset({"projected_at", "_batch", "_first_batch"})
"""Columns that tell which query made a row, and when."""
SHOUTING: Final = """
from pyspark.sql import functions as f


@f.udf("string")
def loud(word):
    return word.upper() + ending()


def ending():
    return "!"


def shout(rows):
    return rows.withColumn("word", loud("word"))
"""


FILES: Final = ("copy.toml", "keep.toml", "state.toml", "runs.toml")
NO_PAGE: Final = "--webui-port 0"
"""The pages of masters and workers have fixed ports."""


def make(folder: Path, place: str) -> None:
    """Write the files of all pipelines to a folder of their own."""
    folder.mkdir()
    (folder / "copy.toml").write_text(STREAM.replace("{place}", place))
    (folder / "keep.toml").write_text(TABLE.replace("{place}", place))
    (folder / "shouting.py").write_text(SHOUTING)
    (folder / "state.toml").write_text(STATE)
    (folder / "runs.toml").write_text(RUNS)


def assert_done(folder: Path, said: str) -> None:
    assert "copy is done: 3 rows" in said, said
    assert "keep is done: 3 rows" in said, said
    aside = (
        f"10 messages were quarantined: the reasons are in the table {folder}/state/_quarantine."
    )
    assert aside in said, said
    assert " after they were persisted." in said, said


def run_here(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run all pipelines over the Spark of the tests."""
    make(folder, "local")
    monkeypatch.chdir(folder)
    command = ["pipeline", "run", "--once", *FILES]
    done = CliRunner().invoke(main, command, env={"HEADWATER_URL": url})
    assert done.exit_code == 0, done.output
    assert_done(folder, done.output)


def run_through_connect(folder: Path, url: str, remote: str) -> None:
    make(folder, "connect")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "headwater",
            "pipeline",
            "run",
            "--once",
            "--remote",
            remote,
            *FILES,
        ],
        cwd=folder,
        env={**os.environ, "HEADWATER_URL": url},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert_done(folder, done.stdout)


def run_on_the_cluster_of_the_page(folder: Path, url: str) -> None:
    """Run the page's commands for a cluster, on the Java of a package: the machine's is too old."""
    make(folder, "cluster")
    with (folder / "copy.toml").open("a") as file:
        file.write(f'executor.extraJavaOptions = "{OPTIONS}"\n')
    make_old_java(folder)
    _, script = next(each for each in blocks("docs/spark-cluster.md") if "spark-class" in each[1])
    for place in ("Master", "Worker"):
        assert f".{place} " in script
        script = script.replace(f".{place} ", f".{place} {NO_PAGE} ")
    assert " pipeline.toml " in script
    script = script.replace(" pipeline.toml ", f" --once {' '.join(FILES)} ")
    log = folder / "shell.log"
    with log.open("w") as file:
        shell = subprocess.Popen(
            ["bash", "-euc", script.replace("7077", str(free_port()))],
            cwd=folder,
            env={
                **os.environ,
                "HEADWATER_URL": url,
                "JAVA_HOME": str(folder),
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "SPARK_DAEMON_JAVA_OPTS": OPTIONS,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_WORKER_DIR": str(folder / "worker"),
            },
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = shell.wait(2 * PATIENCE)
        finally:
            os.killpg(shell.pid, signal.SIGKILL)
    assert code == 0, log.read_text()
    assert_done(folder, log.read_text())


def change(operation: str, key: str, value: Any = None, type_: str = "order") -> dict[str, Any]:
    event = {"type": type_, "key": key, "headers": {"operation": operation}}
    return event if operation == "delete" else event | {"value": value}


def feed(client: Client) -> None:
    messages = [{"n": n, "word": word} for n, word in ((1, "a"), (2, "b"), (3, "c"))]
    client.stream("in/one").create(data=json.dumps(messages).encode())
    for shop in ("north", "south"):
        events: list[dict[str, Any]] = []
        for number in range(400):
            key = f"o-{number % 50}"
            value = {"customer": f"c-{number % 7}", "total": number / 2}
            events.append(change("upsert", key, value))
            if number % 20 == 0:
                events.append(change("delete", key))
            if number % 90 == 0:
                events.append(change("upsert", key, {"customer": 1}))  # does not fit
            events.append(change("upsert", f"c-{number % 7}", number, "customer"))
        if shop == "south":
            events.insert(len(events) // 2, {"headers": {"control": "reset"}})
        client.stream(f"shop/{shop}").create(data=json.dumps(events).encode())
    for run_id in ("run-1", "run-2"):
        told = [started(run_id), step_started("load", run=run_id)]
        told.append(step_completed("load", run=run_id))
        client.stream(f"jobs/{run_id}").create(data=messages_of(as_stored(told)))


def tables(folder: Path) -> dict[str, list[str]]:
    """Read all tables without Spark, but for what tells when they were made."""
    found: dict[str, list[str]] = {}
    for name in TABLES:
        seen = DeltaLog(str(folder / name)).snapshot()
        assert seen is not None, name
        rows = read_files(str(folder / name), [file.path for file in seen.files], seen.schema)
        kept = [column for column in rows.column_names if column not in OF_A_QUERY]
        found[name] = sorted(str(row) for row in rows.select(kept).to_pylist())
        assert found[name], f"{name} is empty: nothing would be compared"
    return found


@pytest.mark.timeout(900)
def test_pipelines_make_the_same_tables_everywhere(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ServerProcess() as server, Client(server.url) as client:
        feed(client)
        run_here(tmp_path / "local", server.url, monkeypatch)
        with connect_server(tmp_path) as remote:
            run_through_connect(tmp_path / "connect", server.url, remote)
        run_on_the_cluster_of_the_page(tmp_path / "cluster", server.url)
        here = tables(tmp_path / "local")
        for place in ("local", "connect", "cluster"):
            written = {
                stream.path.partition("/")[2]: list(client.stream(stream.path).read().items())
                for stream in client.streams(f"{place}/*")
            }
            assert written == {"2": [{"word": "B!"}], "3": [{"word": "C!"}]}
            told = list(client.stream(f"{place}-metrics").read().items())
            assert [(one["rows"], one["running"]) for one in told] == [(3, True), (3, False)]
            assert tables(tmp_path / place) == here
