"""Sending from files: what the system supports, and what can fail, independent of the server."""

import asyncio
import errno
import gc
import os
import socket
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from headwater.server.http1.file_sender import FileSender
from headwater.storage.file_ranges import FileRange, Part, Truncated, pieces

CONTENT = os.urandom(1024 * 1024) * 4


class Owner:
    """Keeps a file open, as a segment does."""


class Transport:
    """What a sender asks of one."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def get_extra_info(self, _: str) -> socket.socket:
        return self._socket


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


async def sent(
    parts: list[Part], peer: Callable[[socket.socket], bytes]
) -> tuple[OSError | None, bytes]:
    """Send parts to a peer; gives the error, if there was one, and what the peer has read."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    loop = asyncio.get_running_loop()
    done: asyncio.Future[OSError | None] = loop.create_future()
    with ours, theirs:
        reading = loop.run_in_executor(None, peer, theirs)
        sender = FileSender(loop, cast("Any", Transport(ours)))
        sender.start(parts, done.set_result)
        assert not done.done()
        error = await asyncio.wait_for(done, 20)
        sender.close()
        ours.close()
        return error, await reading


def read_all(peer: socket.socket) -> bytes:
    got = b""
    while data := peer.recv(1 << 20):
        got += data
    return got


def hang_up(peer: socket.socket) -> bytes:
    peer.close()
    return b""


def test_parts_arrive_in_order(file: int) -> None:
    parts: list[Part] = [b"head", FileRange(Owner(), file, 100, len(CONTENT) - 100), b"", b"end"]
    assert asyncio.run(sent(parts, read_all)) == (None, b"head" + CONTENT[100:] + b"end")


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_is_copied_where_sendfile_is_not_supported(
    file: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "sendfile", refuse)
    parts: list[Part] = [b"head", FileRange(Owner(), file, 0, len(CONTENT)), b"end"]
    assert asyncio.run(sent(parts, read_all)) == (None, b"head" + CONTENT + b"end")


def test_another_error_is_reported(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: int) -> int:
        raise OSError(errno.EIO, "injected")

    monkeypatch.setattr(os, "sendfile", fail)
    error, got = asyncio.run(sent([b"head", FileRange(Owner(), file, 0, 10)], read_all))
    assert error is not None
    assert (error.errno, got) == (errno.EIO, b"head")


def test_a_truncated_file_is_reported(file: int) -> None:
    error, got = asyncio.run(sent([FileRange(Owner(), file, 0, len(CONTENT) + 1)], read_all))
    assert isinstance(error, Truncated)
    assert got == CONTENT
    with pytest.raises(Truncated):
        FileRange(Owner(), file, 0, len(CONTENT) + 1).read()


def test_a_disconnected_peer_leaves_no_reference_cycle(file: int) -> None:
    owner = Owner()
    is_there = weakref.ref(owner)
    parts: list[Part] = [FileRange(owner, file, 0, len(CONTENT))]
    del owner
    gc.disable()
    try:
        error, _ = asyncio.run(sent(parts, hang_up))
        assert isinstance(error, ConnectionError)
        del parts, error
        assert is_there() is None
    finally:
        gc.enable()


def test_pieces_of_files_are_bounded(file: int) -> None:
    parts: list[Part] = [b"head", FileRange(Owner(), file, 0, len(CONTENT)), b"end"]
    got = [bytes(piece) for piece in pieces(parts, 1_000_000)]
    assert b"".join(got) == b"head" + CONTENT + b"end"
    assert max(map(len, got)) == 1_000_000
