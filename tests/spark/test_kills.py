"""Exactly once, shown with kills: of the driver, of the server, and of Python workers."""

import json
import os
import signal
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from random import Random
from subprocess import Popen
from typing import Final

from deltalake import DeltaTable

from headwater.client import Client, Retry
from headwater.spark.tables.delta import DeltaLog
from headwater.spark.tables.files import read_files
from tests.spark.drivers import KILLS, driver, kill_all, workers
from tests.support.server import ServerProcess

ROWS: Final = 1200
KEYS: Final = 100
LIMIT: Final = str(100 * ROWS // (KILLS + 2) // 4)
"""So many bytes a batch that some are left for every kill: a driver does a few before it dies."""


def copying(
    url: str, folder: Path, partitions: int, limit: str
) -> AbstractContextManager[Popen[bytes]]:
    return driver("tests.spark.copying", url, str(folder), str(partitions), limit, folder=folder)


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
            for name in ("a", "b"):
                numbers = range(0 if name == "a" else 1, ROWS, 2)
                data = json.dumps([change(number) for number in numbers]).encode()
                client.stream(f"in/{name}").create(data=data)
        first.kill()
    kinds = ["driver", "server", "worker"]
    for kill in range(KILLS):
        with (
            ServerProcess("--store", store, "--port", port) as server,
            Client(server.url, retry=Retry()) as client,
            copying(server.url, tmp_path, 1 + kill % 3, LIMIT) as process,
        ):
            before = progress(client, tmp_path)
            until = time.monotonic() + 180
            while progress(client, tmp_path) == before and process.poll() is None:
                assert time.monotonic() < until
                time.sleep(0.01)
            kind = kinds[kill % 3]
            if kill:  # at first at once: right behind an append, before Spark notes it as done
                time.sleep(chance.random())
            if kind == "worker":
                for worker in workers(process.pid):
                    with suppress(ProcessLookupError):
                        os.kill(worker, signal.SIGKILL)
                time.sleep(1)
            if kind == "server":
                server.kill()
                with ServerProcess("--store", store, "--port", port):
                    time.sleep(1)
                    kill_all(process.pid)
            else:
                kill_all(process.pid)
    with (
        ServerProcess("--store", store, "--port", port) as server,
        Client(server.url) as client,
        copying(server.url, tmp_path, 2, "10m") as process,
    ):
        code = process.wait(300)
        assert code == 0, (tmp_path / "driver.log").read_text()[-2000:]
        assert sorted(copied(client)) == list(range(ROWS))
        assert sorted(versions(tmp_path)) == sorted((str(n % KEYS), n) for n in range(ROWS))
        assert current(tmp_path) == {str(n % KEYS): n for n in range(ROWS)}


def progress(client: Client, folder: Path) -> int:
    """Say how far both queries of a driver are."""
    return len(versions(folder)) + len(copied(client))
