"""`headwater pipeline` as a person runs it: stopped, killed, and gone on with."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headwater.client import Client
from headwater.spark.archives import Entry, commit
from headwater.spark.archives.files import FileWriter
from headwater.spark.archives.log import load_or_begin
from tests.spark.drivers import kill_all
from tests.spark.patience import PATIENCE
from tests.spark.pipelines.conftest import wait_until
from tests.support.server import ServerProcess

pytestmark = pytest.mark.starts_spark

ROWS: Final = 300

PIPELINE: Final = """
[source]
stream = "in/*"
schema = "n long"
options = { maxBytesPerTrigger = 400 }

[[transform]]
python = "slow.py:slow"

[target]
kind = "stream"
stream = "out"

[spark]
ui.enabled = false
driver.memory = "512m"
"""
SLOW: Final = """
import time

from pyspark.sql import functions as f


@f.udf("long")
def slowly(n):
    time.sleep(0.01)
    return n


def slow(rows):
    return rows.withColumn("n", slowly("n"))
"""


@contextmanager
def started(
    folder: Path, url: str, *arguments: str, **environment: str
) -> Iterator["tuple[subprocess.Popen[bytes], Path]"]:
    """Start a command that leaves what it says in a file, which outlives it."""
    told = folder / f"{arguments[0]}.txt"  # two may run at once
    with told.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "headwater", "pipeline", *arguments],
            cwd=folder,
            env={**os.environ, "HEADWATER_URL": url, **environment},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process, told
    finally:
        kill_all(process.pid)
        process.wait(20)


@contextmanager
def copying(folder: Path) -> Iterator[tuple[str, Client]]:
    """Make the files of a pipeline, and a server that has the rows for it to copy."""
    (folder / "copy.toml").write_text(PIPELINE)
    (folder / "slow.py").write_text(SLOW)
    with ServerProcess() as server, Client(server.url) as client:
        numbers = json.dumps([{"n": number} for number in range(ROWS)]).encode()
        client.stream("in/one").create(data=numbers)
        client.stream("out").create("application/json")
        yield server.url, client


def written(client: Client) -> list[int]:
    return [item["n"] for item in client.stream("out").read().items()]


def test_a_pipeline_is_stopped_killed_and_gone_on_with(tmp_path: Path) -> None:
    with copying(tmp_path) as (url, client):
        command = ("run", "--master", "local[2]", "copy.toml")
        with started(tmp_path, url, *command) as (process, told):
            wait_until(lambda: bool(written(client)) or process.poll() is not None)
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 130, told.read_text()
        text = told.read_text()
        assert "Stopping after the current batch" in text
        assert "copy is stopped: " in text
        assert "Continue with: headwater pipeline run --master 'local[2]' copy.toml" in text
        assert "Traceback" not in text
        stopped = written(client)
        assert 0 < len(stopped) < ROWS

        with started(tmp_path, url, "run", "copy.toml") as (process, told):
            wait_until(lambda: len(written(client)) > len(stopped))
            with started(tmp_path, url, "status", "--json", "copy.toml") as (asked, answer):
                assert asked.wait(PATIENCE) == 0, answer.read_text()
                status = json.loads(answer.read_text())
            assert status["process"] == str(process.pid)
            assert status["batch"] >= 0
            kill_all(process.pid)
            assert process.wait(20) == -signal.SIGKILL
        assert len(written(client)) < ROWS

        with started(tmp_path, url, "run", "--once", "copy.toml") as (process, told):
            assert process.wait(PATIENCE) == 0, told.read_text()
        assert "copy is done: " in told.read_text()
        assert "; up to date." in told.read_text()
        assert written(client) == list(range(ROWS))

        with started(tmp_path, url, "status", "copy.toml") as (process, told):
            assert process.wait(PATIENCE) == 0
        assert "copy (stream) is not running." in told.read_text()
        assert "1 stream, nothing to do" in told.read_text()


def test_ctrl_c_while_spark_starts_starts_nothing(tmp_path: Path) -> None:
    table = tmp_path / "table"
    with ServerProcess() as server, Client(server.url) as client:
        write_deltalake(str(table), pa.table({"key": ["1"]}))
        command = ("publish", "--table", "table", "--to", "out", "--type", "t", "--key", "key")
        with started(tmp_path, server.url, *command) as (process, told):
            wait_until(lambda: b"Starting Spark" in told.read_bytes())
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 130, told.read_text()
        assert list(client.streams("**")) == []
    text = told.read_text()
    assert "publish is stopped: it was not begun." in text
    assert f"Continue with: headwater pipeline {' '.join(command)}" in text
    assert "Traceback" not in text


def test_a_part_of_an_archive_is_restored_by_a_command_that_leaves_a_log_of_failures_alone(
    tmp_path: Path,
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    folder = tmp_path / "archive"
    contents = load_or_begin(folder)
    for epoch, text in ((1, b"1"), (2, b"7")):
        writer = FileWriter(folder, "log", "application/json", 0)
        ends = [f"{epoch:016d}_{end:016d}" for end in (3, 6)]
        writer.write(pa.array(ends), pa.array([text, b"2"]))
        contents = commit(folder, contents, Entry(added=[writer.finish()]))
    with ServerProcess() as server, Client(server.url) as client:
        part = ("--incarnation", "0", "--until", f"log={1:016d}_{3:016d}", "--no-verify")
        command = ("restore", "--from", "archive", "--rename", "log=back", *part)
        with started(tmp_path, server.url, *command, TMPDIR=str(logs)) as (process, told):
            assert process.wait(PATIENCE) == 0, told.read_text()
        assert list(client.stream("back").read().items()) == [1]
        assert list(logs.iterdir()) == []
        client.stream("back").delete()
        client.stream("back").create(data=b"[2]")
        with started(tmp_path, server.url, *command, TMPDIR=str(logs)) as (process, told):
            assert process.wait(PATIENCE) == 1, told.read_text()
        (log,) = logs.iterdir()
        assert f"The log of Spark is {log}" in told.read_text()


@pytest.mark.parametrize(
    ("number", "is_all", "code", "words"),
    [
        (signal.SIGKILL, False, 1, "has failed: Spark has ended unexpectedly ("),
        (signal.SIGTERM, True, 143, "copy is stopped: "),
    ],
)
def test_an_end_of_spark_is_told_in_a_sentence(
    tmp_path: Path, number: int, is_all: bool, code: int, words: str
) -> None:
    with (
        copying(tmp_path) as (url, client),
        started(tmp_path, url, "run", "copy.toml") as (process, told),
    ):
        wait_until(lambda: bool(written(client)) or process.poll() is not None)
        if is_all:
            os.killpg(process.pid, number)  # as a supervisor does
        else:
            os.kill(java_of(process.pid), number)
        assert process.wait(PATIENCE) == code, told.read_text()
    text = told.read_text()
    assert words in text
    assert "headwater pipeline run copy.toml" in text
    assert "Traceback" not in text


def test_a_failure_is_told_at_once_and_again_by_a_stop_at_once(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    (tmp_path / "slow.py").write_text(
        SLOW.replace("time.sleep(0.01)", f"open({str(begun)!r}, 'w').close()\n    time.sleep(900)")
    )
    (tmp_path / "long.toml").write_text(PIPELINE.replace("in/*", "in/long"))
    wrong = PIPELINE.replace("in/*", "in/wrong").replace("slow.py:slow", "same.py:same")
    (tmp_path / "wrong.toml").write_text(wrong.replace('"out"', '"other"'))
    (tmp_path / "same.py").write_text("def same(rows):\n    return rows\n")
    reason = "The pipeline wrong has failed: The message of 'in/wrong' that ends at offset"
    with ServerProcess() as server, Client(server.url) as client:
        client.stream("in/long").create(data=b'[{"n":1}]')
        client.stream("in/wrong").create("application/json")
        command = ("run", "--master", "local[2]", "long.toml", "wrong.toml")
        with started(tmp_path, server.url, *command) as (process, told):
            wait_until(lambda: begun.exists() or process.poll() is not None)
            client.stream("in/wrong").append(b'[{"n":"no number"}]')
            wait_until(lambda: reason in told.read_text() or process.poll() is not None)
            process.send_signal(signal.SIGINT)
            wait_until(lambda: "Stopping after the current batch" in told.read_text())
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 130, told.read_text()
    assert f"Error: {reason}" in told.read_text().partition("Stopped at once")[2]


def java_of(driver: int) -> int:
    """Find the Java that a driver has started."""
    children = Path(f"/proc/{driver}/task/{driver}/children").read_text().split()
    (found,) = (pid for pid in children if b"java" in Path(f"/proc/{pid}/cmdline").read_bytes())
    return int(found)
