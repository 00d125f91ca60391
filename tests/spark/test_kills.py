"""Exactly once, shown with kills: of the driver, of the server, and of Python workers.

A query outlives a server that comes back, and executors that do. What dies with the driver, or with
the Python processes that plan for it, is started again.

A kill counts if there was input left when it came. One that came too late, because the machine is
slow, is repeated with more input.
"""

import json
import math
import os
import re
import signal
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from random import Random
from subprocess import Popen
from typing import Final

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from headwater.client import Client, Retry
from headwater.spark.tables.delta import DeltaLog
from headwater.spark.tables.files import read_files
from tests.spark.copying import copy
from tests.spark.drivers import ATTEMPTS, EXECUTOR, KILLS, WORKER, below, driver, kill_all
from tests.spark.patience import PATIENCE
from tests.support.server import ServerProcess

pytestmark = [pytest.mark.starts_spark, pytest.mark.kills]

ROWS: Final = 800
"""So many are added for each driver that is to be killed."""
KEYS: Final = 100
LIMIT: Final = "6000"
"""So many bytes a batch that a driver has a dozen of them to do: it does a few before it dies."""


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


class Copying:
    """A driver at work, with all the input that there is."""

    def __init__(self, client: Client, folder: Path, process: Popen[bytes], total: int) -> None:
        self.client = client
        self.folder = folder
        self.process = process
        self.total = total

    def progress(self) -> int:
        """Say how far both queries are."""
        return len(versions(self.folder)) + len(copied(self.client))

    def has_input(self) -> bool:
        """Tell whether one of the queries has something left to do."""
        return self.progress() < 2 * self.total

    def wait_for_progress(self) -> None:
        """Wait until one of the queries has done something, or all are done."""
        before = self.progress()
        until = time.monotonic() + PATIENCE
        while self.progress() == before and self.process.poll() is None:
            assert time.monotonic() < until, driver_log(self.folder)
            time.sleep(0.01)
        assert self.process.poll() in {None, 0}, driver_log(self.folder)

    def assert_done(self) -> None:
        """Wait for the end of the driver, and look whether each input has its output once."""
        code = self.process.wait(PATIENCE)
        assert code == 0, driver_log(self.folder)
        assert_once(self.client, self.folder, self.total)


def assert_once(client: Client, folder: Path, total: int) -> None:
    numbers = range(total)
    assert sorted(copied(client)) == list(numbers)
    assert sorted(versions(folder)) == sorted((str(n % KEYS), n) for n in numbers)
    assert current(folder) == {str(n % KEYS): n for n in numbers}


def test_each_input_has_its_output_once_whatever_is_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    chance = Random(7)
    store = tmp_path / "store"
    with ServerProcess(store=store) as first:
        port = str(first.port)
    total = 0
    for number in range(math.ceil(KILLS * 2 / 3)):  # two kills, then one
        for _ in range(ATTEMPTS):
            with (
                ServerProcess("--port", port, store=store) as server,
                Client(server.url, retry=Retry()) as client,
            ):
                total = fill(client, total)
                with copying(server.url, tmp_path, 1 + number % 3, LIMIT) as process:
                    driven = Copying(client, tmp_path, process, total)
                    driven.wait_for_progress()
                    if number % 2:
                        time.sleep(chance.random())  # at the next moment of a batch, whichever
                        in_time = loses_its_workers(driven)
                        time.sleep(chance.random())  # in which Spark starts others, or fails
                        kill_all(process.pid)
                    else:
                        # At once the first time: after an append, before Spark notes the batch.
                        time.sleep(chance.random() if number else 0)
                        server.kill()
                        with ServerProcess("--port", port, store=store):
                            in_time = outlives_the_server(driven) and dies(driven)
            if in_time:
                break
        else:
            pytest.fail("all was done before a kill")
    with ServerProcess("--port", port, store=store) as server, Client(server.url) as client:
        copy(spark, server.url, str(tmp_path), 2, "10m")
        assert_once(client, tmp_path, total)


def dies(driven: Copying) -> bool:
    """Kill a driver with all its processes; gives whether there was input left."""
    kill_all(driven.process.pid)
    code = driven.process.wait(PATIENCE)
    assert code in {0, -signal.SIGKILL}, driver_log(driven.folder)
    return code != 0 and driven.has_input()


def outlives_the_server(driven: Copying) -> bool:
    """See a driver go on with a server that is back; gives whether there was input left."""
    in_time = driven.has_input()
    driven.wait_for_progress()
    return in_time


def loses_its_workers(driven: Copying) -> bool:
    """Kill the Python processes of a driver; gives whether there was input left."""
    workers = below(driven.process.pid, WORKER)
    kill_each(workers)
    in_time = driven.has_input()
    assert workers or not in_time, driver_log(driven.folder)
    return in_time


def test_a_query_outlives_its_executors(tmp_path: Path) -> None:
    total = 0
    with (
        ServerProcess() as server,
        Client(server.url) as client,
    ):
        for _ in range(ATTEMPTS):
            total = fill(client, total)
            with copying(server.url, tmp_path, 3, LIMIT, "local-cluster[2,1,1024]") as process:
                driven = Copying(client, tmp_path, process, total)
                in_time = [loses_a_part(driven, part) for part in (EXECUTOR, WORKER)]
                driven.assert_done()
            if all(in_time):
                return
    pytest.fail("all was done before a kill")


def loses_a_part(driven: Copying, part: re.Pattern[bytes]) -> bool:
    """Kill an executor, or the workers of one; gives whether there was input left."""
    driven.wait_for_progress()
    executors = below(driven.process.pid, EXECUTOR)[:1]
    chosen = [
        each for one in executors for each in ([one] if part == EXECUTOR else below(one, WORKER))
    ]
    kill_each(chosen)
    in_time = driven.has_input()
    assert chosen or not in_time, driver_log(driven.folder)
    assert driven.process.poll() in {None, 0}, driver_log(driven.folder)
    return in_time


def fill(client: Client, total: int) -> int:
    """Add input behind what there is; gives how much there is then."""
    for odd, name in enumerate(("a", "b")):
        numbers = range(total + odd, total + ROWS, 2)
        stream = client.stream(f"in/{name}", content_type="application/json")
        stream.create()
        stream.append(json.dumps([change(number) for number in numbers]).encode())
    return total + ROWS


def kill_each(processes: Iterable[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def driver_log(folder: Path) -> str:
    return (folder / "driver.log").read_text()[-2000:]
