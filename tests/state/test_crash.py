"""A process that is killed at any moment leaves a file that holds every event exactly once."""

import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from headwater.client import Client
from headwater.state import SqliteBackend, StreamDB, change, encode_events
from tests.support.patience import wait_until
from tests.support.server import ServerProcess

ROUNDS = 6


@pytest.mark.kills
def test_killed_at_any_moment_the_file_is_what_the_stream_was_at_its_offset(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    with ServerProcess() as server, Client(server.url) as client:
        stream = client.stream("s")
        stream.create()
        counts = {stream.head().next_offset: 0, "-1": 0}
        stop = threading.Event()

        def write() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                time.sleep(0.001)  # only so that there are not too many events to read in the end
                events = [
                    change("insert", "n", str(number), number),
                    change("update", "last", "n", number),
                ]
                counts[stream.append(encode_events(events)).next_offset] = number

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(ROUNDS):
                process = subprocess.Popen(
                    [
                        sys.executable,
                        str(Path(__file__).with_name("follower.py")),
                        server.url,
                        "s",
                        str(file),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
                assert process.stdin is not None
                assert process.stdout is not None
                for _ in range(random.randrange(2, 40)):
                    assert process.stdout.readline()
                process.kill()
                process.wait()
                process.stdin.close()
                process.stdout.close()
                left = SqliteBackend(file)
                saved = left.load()
                held = [int(row.data) for row in left.rows("n")]
                last = left.get("last", "n")
                left.close()
                # What a batch ends at may be known to the writer a moment later.
                wait_until(lambda: saved.offset in counts, pause=0.001)  # noqa: B023 - asked at once
                assert len(held) == counts[saved.offset]
                assert last == str(counts[saved.offset]).encode()
                assert sorted(held) == list(range(1, counts[saved.offset] + 1))
        finally:
            stop.set()
            writer.join()
        with StreamDB(stream, backend=file) as db:
            db.preload()
            assert len(db["n"]) == max(counts.values())
