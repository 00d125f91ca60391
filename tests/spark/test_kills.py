"""Exactly once, shown with kills: of the driver, of the server, and of Python workers.

A query outlives a server that comes back, and executors that do. What dies with the driver, or with
the Python processes that plan for it, is started again.
"""

import json
import os
import signal
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from random import Random
from subprocess import Popen
from typing import Final

from deltalake import DeltaTable

from headwater.client import Client, Retry
from headwater.spark.tables.delta import DeltaLog
from headwater.spark.tables.files import read_files
from tests.spark.drivers import EXECUTOR, KILLS, WORKER, below, driver, kill_all
from tests.support.server import ServerProcess

ROWS: Final = 1200
KEYS: Final = 100
LIMIT: Final = str(100 * ROWS // (KILLS + 2) // 4)
"""So many bytes a batch that some are left for every kill: a driver does a few before it dies."""


def copying(
    url: str, folder: Path, partitions: int, limit: str, master: str = "local[2]"
) -> AbstractContextManager[Popen[bytes]]:
    arguments = (url, str(folder), str(partitions), limit, master)
    return driver("tests.spark.copying", *arguments, folder=folder)


def copied(client: Client) -> list[int]:
    return [
        item["n"]
        for stream in client.streams("out/*")
        for item in client.stream(stream.path).read().items()
    ]


def versions(folder: Path) -> list[tuple[str, int]]:
    """Read every version that the history has: its key and its number."""
    seen = DeltaLog(str(folder / "tables" / "number_history")).snapshot()
    if seen is None:
        return []
    paths = [file.path for file in seen.files]
    rows = read_files(str(folder / "tables" / "number_history"), paths, seen.schema)
    return [(row["key"], row["n"]) for row in rows.select(["key", "n"]).to_pylist()]


def current(folder: Path) -> dict[str, int]:
    """Read the table of current state."""
    table = DeltaTable(str(folder / "tables" / "number")).to_pyarrow_table(columns=["key", "n"])
    return {row["key"]: row["n"] for row in table.to_pylist()}


def change(number: int) -> dict[str, object]:
    """Make a change of one of some keys; each stream has keys of its own."""
    return {
        "type": "number",
        "key": str(number % KEYS),
        "value": {"n": number},
        "headers": {"operation": "upsert"},
    }


def test_each_input_has_its_output_once_whatever_is_killed(tmp_path: Path) -> None:
    chance = Random(7)
    store = str(tmp_path / "store")
    with ServerProcess("--store", store) as first:
        port = first.url.rpartition(":")[2]
        with Client(first.url) as client:
            fill(client)
        first.kill()
    kinds = ["driver", "server", "workers"]
    for kill in range(KILLS):
        with (
            ServerProcess("--store", store, "--port", port) as server,
            Client(server.url, retry=Retry()) as client,
            copying(server.url, tmp_path, 1 + kill % 3, LIMIT) as process,
        ):
            wait_for_progress(client, tmp_path, process)
            kind = kinds[kill % len(kinds)]
            if kill:  # at first at once: right behind an append, before Spark notes it as done
                time.sleep(chance.random())
            if kind == "server":
                server.kill()
                with ServerProcess("--store", store, "--port", port):
                    wait_for_progress(client, tmp_path, process)
                    assert process.poll() in {None, 0}, driver_log(tmp_path)
                    kill_all(process.pid)
                continue
            if kind == "workers":
                kill_each(below(process.pid, WORKER))
                time.sleep(1)
            kill_all(process.pid)
    with (
        ServerProcess("--store", store, "--port", port) as server,
        Client(server.url) as client,
        copying(server.url, tmp_path, 2, "10m") as process,
    ):
        assert_done(client, tmp_path, process)


def test_a_query_outlives_its_executors(tmp_path: Path) -> None:
    with (
        ServerProcess() as server,
        Client(server.url) as client,
    ):
        fill(client)
        with copying(server.url, tmp_path, 3, "8000", "local-cluster[2,1,1024]") as process:
            for part in (EXECUTOR, WORKER):
                wait_for_progress(client, tmp_path, process)
                executors = below(process.pid, EXECUTOR)
                chosen = executors[:1] if part == EXECUTOR else below(executors[0], WORKER)
                kill_each(chosen)
                assert chosen, driver_log(tmp_path)
                assert process.poll() is None, driver_log(tmp_path)
            assert_done(client, tmp_path, process)


def fill(client: Client) -> None:
    for name in ("a", "b"):
        numbers = range(0 if name == "a" else 1, ROWS, 2)
        data = json.dumps([change(number) for number in numbers]).encode()
        client.stream(f"in/{name}").create(data=data)


def assert_done(client: Client, folder: Path, process: Popen[bytes]) -> None:
    """Wait for the end of a driver, and look whether each input has its output once."""
    code = process.wait(270)
    assert code == 0, driver_log(folder)
    assert sorted(copied(client)) == list(range(ROWS))
    assert sorted(versions(folder)) == sorted((str(n % KEYS), n) for n in range(ROWS))
    assert current(folder) == {str(n % KEYS): n for n in range(ROWS)}


def wait_for_progress(client: Client, folder: Path, process: Popen[bytes]) -> None:
    """Wait until one of the queries of a driver has done something, or all are done."""
    before = progress(client, folder)
    until = time.monotonic() + 180
    while progress(client, folder) == before and process.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.01)


def kill_each(processes: Iterable[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def driver_log(folder: Path) -> str:
    return (folder / "driver.log").read_text()[-2000:]


def progress(client: Client, folder: Path) -> int:
    """Say how far both queries of a driver are."""
    return len(versions(folder)) + len(copied(client))
