"""A process that is killed at any moment leaves a file that holds every event exactly once."""

import random
import subprocess
import sys
import threading
import time
from pathlib import Path

from headwater.client import Client
from headwater.state import SqliteBackend, StreamDB, change, encode_events
from tests.support.server import ServerProcess

ROUNDS = 6


def test_killed_at_any_moment_the_file_is_what_the_stream_was_at_its_offset(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    with ServerProcess() as server, Client(server.url) as client:
        stream = client.stream("s")
        stream.create()
        counts = {stream.head().offset: 0, "-1": 0}
        stop = threading.Event()

        def write() -> None:
            number = 0
            while not stop.is_set() and number < 100_000:
                number += 1
                time.sleep(0.001)  # so that it does not run out of events before the last round
                events = [
                    change("insert", "n", str(number), number),
                    change("update", "last", "n", number),
                ]
                counts[stream.append(encode_events(events)).offset] = number

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
                    stdout=subprocess.PIPE,
                )
                assert process.stdout is not None
                for _ in range(random.randrange(2, 40)):
                    assert process.stdout.readline()
                process.kill()
                process.wait()
                process.stdout.close()
                left = SqliteBackend(file)
                saved = left.load()
                held = [int(row.data) for row in left.rows("n")]
                last = left.get("last", "n")
                left.close()
                # What a batch ends at may be known to the writer a moment later.
                while saved.offset not in counts:
                    assert writer.is_alive()
                    time.sleep(0.001)
                assert len(held) == counts[saved.offset]
                assert last == str(counts[saved.offset]).encode()
                assert sorted(held) == list(range(1, counts[saved.offset] + 1))
        finally:
            stop.set()
            writer.join()
        with StreamDB(stream, backend=file) as db:
            db.preload()
            assert len(db["n"]) == max(counts.values())
