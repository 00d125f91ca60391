"""The same pipelines, unchanged, through Spark Connect and on a standalone cluster."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from headwater.client import Client
from tests.support.engines.spark_cluster import connect_server, standalone_cluster
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
    """Run both pipelines in a folder of their own, on some Spark."""
    folder.mkdir()
    (folder / "copy.toml").write_text(STREAM.replace("{place}", place))
    (folder / "keep.toml").write_text(TABLE.replace("{place}", place))
    (folder / "shouting.py").write_text(SHOUTING)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "headwater", "pipeline", "run", "--once", *where),
            *("copy.toml", "keep.toml"),
        ],
        cwd=folder,
        env={**os.environ, "HEADWATER_URL": url, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "copy is done: 3 rows" in done.stdout
    assert "keep is done: 3 rows" in done.stdout


def test_pipelines_run_through_connect_and_on_a_cluster(tmp_path: Path) -> None:
    with ServerProcess() as server, Client(server.url) as client:
        messages = [{"n": n, "word": word} for n, word in ((1, "a"), (2, "b"), (3, "c"))]
        client.stream("in/one").create(data=json.dumps(messages).encode())
        with connect_server(tmp_path) as remote:
            run(tmp_path / "connect", server.url, "connect", "--remote", remote)
        with standalone_cluster(tmp_path) as master:
            run(tmp_path / "cluster", server.url, "cluster", "--master", master)
        for place in ("connect", "cluster"):
            written = {
                stream.path.partition("/")[2]: list(client.stream(stream.path).read().items())
                for stream in client.streams(f"{place}/*")
            }
            assert written == {"2": [{"word": "B!"}], "3": [{"word": "C!"}]}
            told = list(client.stream(f"{place}-metrics").read().items())
            assert [(one["rows"], one["running"]) for one in told] == [(3, True), (3, False)]
            assert (tmp_path / place / "tables" / "words" / "_delta_log").is_dir()
