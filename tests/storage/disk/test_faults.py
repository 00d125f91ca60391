"""Real faults of the disk: no room, a limit on files, a sync that fails.

What can't be made durable is refused with a problem document, reads go on, nothing acknowledged is
lost, and nothing refused for want of room appears later.
"""

import resource
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.support.disk_faults import DiskFaults
from tests.support.patience import wait_until
from tests.support.server import ServerProcess
from tests.support.small_disk import MountDisk
from tests.support.wire import BINARY, Answer, Wire

MIB: Final = 1024 * 1024
_OPTIONS: Final = (
    *("--memory-budget-bytes", str(2 * MIB), "--journal-bytes", str(MIB)),
    *("--checkpoint-interval", "0.2"),
)
_TYPE: Final = {"Content-Type": BINARY}
_PIECE: Final = 100_000


@pytest.fixture
def small_disk(mount_disk: MountDisk) -> Path:
    """A file system of 16 MiB."""
    return mount_disk("16m")


class Writer:
    """Appends numbered pieces, and knows which of them were acknowledged."""

    def __init__(self, wire: Wire, path: str, *, is_there: bool = False) -> None:
        self._wire = wire
        self._path = path
        self.expected = b""
        self._number = 0
        assert wire.ask_stream("PUT", path, _TYPE).status == (200 if is_there else 201)

    def append(self) -> Answer:
        """Append one piece; what is refused must not be there."""
        self._number += 1
        piece = b"%08d" % self._number * (_PIECE // 8)
        answer = self._wire.ask_stream("POST", self._path, _TYPE, piece)
        if answer.status == 204:
            self.expected += piece
        return answer

    def fill(self) -> Answer:
        """Append until something is refused; gives the refusal."""
        for _ in range(2000):
            answer = self.append()
            if answer.status != 204:
                return answer
        raise AssertionError("nothing was ever refused")

    def is_accepted(self) -> bool:
        """Append one piece, and return whether it was accepted."""
        return self.append().status == 204

    def until_accepted(self) -> None:
        wait_until(self.is_accepted, "an accepted append", pause=0.1)

    def check(self, wire: Wire | None = None) -> None:
        """Everything acknowledged is there, and nothing else."""
        assert content(wire or self._wire, self._path) == self.expected


def content(wire: Wire, path: str) -> bytes:
    found = b""
    offset = "-1"
    while True:
        answer = wire.ask_stream("GET", f"{path}?offset={offset}")
        assert answer.status == 200
        found += answer.body
        offset = answer.next_offset
        if answer.headers.get("stream-up-to-date") == "true":
            return found


def once_there_is_room(ask: Callable[[], Answer]) -> Answer:
    """Ask until it is not refused for want of room."""
    answers: list[Answer] = []

    def is_answered() -> bool:
        answers.append(ask())
        return answers[-1].status != 507

    wait_until(is_answered, "room in a full store", pause=0.1)
    return answers[-1]


def is_refusal_for_room(answer: Answer) -> None:
    assert "Free disk space" in answer.problem(507, "store-unwritable")["detail"]
    assert answer.headers["retry-after"]


def test_a_full_disk_refuses_appends_until_there_is_room(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(6 * MIB))
    server = ServerProcess(*_OPTIONS, store=small_disk / "data").start()
    try:
        with Wire(server.port) as wire:
            writer = Writer(wire, "a")
            is_refusal_for_room(writer.fill())
            writer.check()
            is_refusal_for_room(writer.fill())
            is_refusal_for_room(wire.ask_stream("PUT", "b", _TYPE, bytes(2 * MIB)))
            assert wire.ask_stream("HEAD", "b").status == 404
            writer.check()

            ballast.unlink()
            writer.until_accepted()
            for _ in range(10):
                assert writer.append().status == 204
            writer.check()
        # It leaves room to the appends and has its own; only the catalog may meet the disk's end.
        assert "compaction failed" not in server.log()
        server.kill()
        server = ServerProcess(*_OPTIONS, store=small_disk / "data").start()
        with Wire(server.port) as wire:
            writer.check(wire)
            assert wire.ask_stream("HEAD", "b").status == 404
    finally:
        server.kill()


def test_a_full_disk_is_read_after_a_restart_and_used_again_after_a_deletion(
    small_disk: Path,
) -> None:
    server = ServerProcess(*_OPTIONS, store=small_disk / "data").start()
    try:
        with Wire(server.port) as wire:
            assert wire.ask_stream("PUT", "dear", _TYPE, b"dear").status == 201
            writer = Writer(wire, "a")
            is_refusal_for_room(writer.fill())
        server.kill()
        server = ServerProcess(*_OPTIONS, store=small_disk / "data").start()
        with Wire(server.port) as wire:
            writer.check(wire)
            assert once_there_is_room(lambda: wire.ask_stream("DELETE", "a")).status == 204
            # What is gone gives its room back with the next checkpoint, not at once.
            assert once_there_is_room(lambda: wire.ask_stream("PUT", "b", _TYPE)).status == 201
            Writer(wire, "b", is_there=True).until_accepted()
            assert content(wire, "dear") == b"dear"
    finally:
        server.kill()


def test_a_full_disk_has_room_again_when_streams_go_that_shared_their_segments(
    small_disk: Path,
) -> None:
    """No segment is dead as a whole: what is left in each has to be rewritten, with no room."""
    server = ServerProcess(*_OPTIONS, store=small_disk / "data").start()
    try:
        with Wire(server.port) as wire:
            writers = {name: Writer(wire, name) for name in ("kept", "a", "b", "c")}
            refused = None
            while refused is None:
                for writer in writers.values():
                    answer = writer.append()
                    refused = answer if answer.status != 204 else refused
            is_refusal_for_room(refused)
            for name in ("a", "b", "c"):
                delete = partial(wire.ask_stream, "DELETE", name)
                assert once_there_is_room(delete).status == 204
            kept = writers["kept"]
            before = len(kept.expected)
            while len(kept.expected) < before + 4 * MIB:  # of what the other three had
                kept.until_accepted()
            kept.check()
        server.kill()
        server = ServerProcess(*_OPTIONS, store=small_disk / "data").start()
        with Wire(server.port) as wire:
            kept.check(wire)
    finally:
        server.kill()


def test_stopping_on_a_full_disk_loses_nothing_and_says_nothing_odd(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(8 * MIB))
    server = ServerProcess(*_OPTIONS, store=small_disk / "data").start()
    try:
        with Wire(server.port) as wire:
            writer = Writer(wire, "a")
            is_refusal_for_room(writer.fill())
        assert server.stop() == 0, server.log()
        assert "Traceback" not in server.log()
        ballast.unlink()
        server = ServerProcess(*_OPTIONS, store=small_disk / "data").start()
        with Wire(server.port) as wire:
            writer.check(wire)
            writer = Writer(wire, "b")
            assert writer.append().status == 204
    finally:
        server.kill()


def test_a_disk_without_any_room_is_still_read_after_an_orderly_stop(small_disk: Path) -> None:
    server = ServerProcess(*_OPTIONS, store=small_disk / "data").start()
    try:
        with Wire(server.port) as wire:
            assert wire.ask_stream("PUT", "dear", _TYPE, b"dear").status == 201
        assert server.stop() == 0, server.log()
        fill(small_disk / "ballast")
        server = ServerProcess(*_OPTIONS, store=small_disk / "data").start()
        with Wire(server.port) as wire:
            assert content(wire, "dear") == b"dear"
            is_refusal_for_room(wire.ask_stream("PUT", "large", _TYPE, bytes(8 * MIB)))
            (small_disk / "ballast").unlink()
            # A checkpoint may be running, and ends first.
            assert once_there_is_room(lambda: wire.ask_stream("PUT", "a", _TYPE)).status == 201
            Writer(wire, "a", is_there=True).until_accepted()
        assert server.stop() == 0, server.log()
        assert "Traceback" not in server.log()
    finally:
        server.kill()


def fill(path: Path) -> None:
    """Take all the room that there is."""
    with path.open("wb", buffering=0) as file:
        for size in (64 * 1024, 4096, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))


def _limit_files(size: int) -> Callable[[], None]:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


def test_a_limit_on_the_size_of_files_refuses_what_does_not_fit(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    # A journal file takes one batch, however large; this is more than any file may hold.
    server = ServerProcess(*_OPTIONS, store=folder, limit=_limit_files(3 * MIB)).start()
    try:
        with Wire(server.port) as wire:
            writer = Writer(wire, "a")
            for _ in range(3):
                assert writer.append().status == 204
            is_refusal_for_room(wire.ask_stream("POST", "a", _TYPE, bytes(4 * MIB)))
            is_refusal_for_room(wire.ask_stream("PUT", "b", _TYPE, bytes(4 * MIB)))
            writer.check()
            for _ in range(30):
                assert writer.append().status == 204
            writer.check()
        server.kill()
        server = ServerProcess(*_OPTIONS, store=folder).start()
        with Wire(server.port) as wire:
            writer.check(wire)
            assert wire.ask_stream("HEAD", "b").status == 404
    finally:
        server.kill()


def says_that_it_has_stopped(answer: Answer) -> None:
    assert "restarted" in answer.problem(503, "store-unwritable")["detail"]


@pytest.mark.parametrize("fault", ["directory-sync-fails:3", "catalog-sync-fails:1"])
def test_after_a_failed_sync_beside_the_journal_nothing_is_written_until_a_restart(
    tmp_path: Path, fault: str
) -> None:
    """The next journal file's name, or a checkpoint: whether the disk has it is not known.

    Names are synced after the replay, and with the first journal file, before that.
    """
    folder = tmp_path / "data"
    server = ServerProcess(*_OPTIONS, store=folder).start()
    try:
        with Wire(server.port) as wire:
            writer = Writer(wire, "a")
        server.kill()
        server = ServerProcess(*_OPTIONS, store=folder, faults=DiskFaults(fault)).start()
        with Wire(server.port) as wire:
            writer = Writer(wire, "a", is_there=True)
            says_that_it_has_stopped(writer.fill())
            says_that_it_has_stopped(wire.ask_stream("PUT", "b", _TYPE))
            says_that_it_has_stopped(wire.ask_stream("DELETE", "a"))
            writer.check()
        assert server.stop() == 0, server.log()
        assert "writes are stopped until the server is restarted" in server.log()
        assert "Traceback" not in server.log()
        server = ServerProcess(*_OPTIONS, store=folder).start()
        with Wire(server.port) as wire:
            writer.check(wire)
            writer = Writer(wire, "b")
            writer.append()
            writer.check()
    finally:
        server.kill()


@pytest.mark.parametrize("times", [1, 4])
def test_after_a_failed_sync_nothing_is_written_until_a_restart(tmp_path: Path, times: int) -> None:
    folder = tmp_path / "data"
    with_faults = f"sync-fails:{times + 1}"
    options = (*_OPTIONS, "--long-poll-timeout", "0.3")
    server = ServerProcess(*options, store=folder, faults=DiskFaults(with_faults)).start()
    try:
        with Wire(server.port) as wire:
            writer = Writer(wire, "a")  # the first sync
            for _ in range(times - 1):
                assert writer.append().status == 204
            failed = writer.append()
            for answer in (
                failed,
                writer.append(),
                wire.ask_stream("PUT", "b", _TYPE),
                wire.ask_stream("DELETE", "a"),
                wire.ask_stream("POST", "a", {"Stream-Closed": "true"}),
            ):
                says_that_it_has_stopped(answer)
            writer.check()
            # The poll ends later than the interval between checkpoints, by the same clock.
            assert wire.ask_stream("GET", "a?offset=now&live=long-poll").status == 204
            assert writer.append().status == 503
            writer.check()
        assert server.stop() == 0, server.log()
        assert "sync failed" in server.log()
        assert "Traceback" not in server.log()

        server = ServerProcess(*_OPTIONS, store=folder).start()
        with Wire(server.port) as wire:
            # Whether the append whose sync failed is there is not known; all others are.
            found = content(wire, "a")
            assert found.startswith(writer.expected)
            assert len(found) - len(writer.expected) in {0, _PIECE}
            assert wire.ask_stream("HEAD", "b").status == 404
            assert wire.ask_stream("POST", "a", _TYPE, b"works again").status == 204
            assert content(wire, "a") == found + b"works again"
    finally:
        server.kill()
