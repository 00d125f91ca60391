"""The same pipelines, unchanged, in this process, through Spark Connect and on a cluster."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from headwater.client import Client
from headwater.spark.tables.delta import DeltaLog
from headwater.spark.tables.files import read_files
from tests.spark.patience import PATIENCE
from tests.spark.run_logs import messages_of
from tests.suites.run_steps import as_stored, started, step_completed, step_started
from tests.support.engines.spark_cluster import connect_server, standalone_cluster
from tests.support.server import ServerProcess

pytestmark = pytest.mark.starts_spark

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


def run(folder: Path, url: str, place: str, *where: str) -> None:
    """Run all pipelines in a folder of their own, on some Spark."""
    folder.mkdir()
    (folder / "copy.toml").write_text(STREAM.replace("{place}", place))
    (folder / "keep.toml").write_text(TABLE.replace("{place}", place))
    (folder / "shouting.py").write_text(SHOUTING)
    (folder / "state.toml").write_text(STATE)
    (folder / "runs.toml").write_text(RUNS)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "headwater", "pipeline", "run", "--once", *where),
            *("copy.toml", "keep.toml", "state.toml", "runs.toml"),
        ],
        cwd=folder,
        env={**os.environ, "HEADWATER_URL": url, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "copy is done: 3 rows" in done.stdout
    assert "keep is done: 3 rows" in done.stdout
    aside = f"10 messages were kept aside: the table {folder}/state/_quarantine says why."
    assert aside in done.stdout
    assert " after they were persisted." in done.stdout


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
def test_pipelines_make_the_same_tables_everywhere(tmp_path: Path) -> None:
    with ServerProcess() as server, Client(server.url) as client:
        feed(client)
        run(tmp_path / "local", server.url, "local", "--master", "local[2]")
        with connect_server(tmp_path) as remote:
            run(tmp_path / "connect", server.url, "connect", "--remote", remote)
        with standalone_cluster(tmp_path) as master:
            run(tmp_path / "cluster", server.url, "cluster", "--master", master)
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
