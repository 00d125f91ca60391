"""Both ways to sync a file report on the loop: success, and failure with its cause."""

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.storage.disk.fsync import KernelSync, Sync, ThreadSync, choose_fsync

Make = Callable[[asyncio.AbstractEventLoop], Sync]
BOTH = pytest.mark.parametrize("make", [KernelSync, ThreadSync])


async def sync_once(sync: Sync, fd: int) -> OSError | None:
    """Sync a file, and wait for what is reported."""
    loop = asyncio.get_running_loop()
    reported: asyncio.Future[OSError | None] = loop.create_future()
    thread = threading.get_ident()

    def done(error: OSError | None) -> None:
        assert threading.get_ident() == thread
        reported.set_result(error)

    sync.start(fd, done)
    assert not reported.done(), "reported before the caller could go on"
    return await asyncio.wait_for(reported, 60)


@BOTH
def test_a_sync_reports_success_again_and_again(make: Make, tmp_path: Path) -> None:
    async def scenario() -> None:
        sync = make(asyncio.get_running_loop())
        with (tmp_path / "file").open("wb", buffering=0) as file:
            for number in range(50):
                file.write(b"%d" % number)
                assert await sync_once(sync, file.fileno()) is None
        sync.close()

    asyncio.run(scenario())


@BOTH
def test_a_sync_that_fails_reports_why_and_the_next_one_works(make: Make, tmp_path: Path) -> None:
    async def scenario() -> None:
        sync = make(asyncio.get_running_loop())
        reader, writer = os.pipe()  # a pipe can't be synced
        for fd, code in ((writer, errno.EINVAL), (10_000, errno.EBADF)):
            error = await sync_once(sync, fd)
            assert error is not None
            assert error.errno == code
        os.close(reader)
        os.close(writer)
        with (tmp_path / "file").open("wb", buffering=0) as file:
            file.write(b"x")
            assert await sync_once(sync, file.fileno()) is None
        sync.close()

    asyncio.run(scenario())


@BOTH
def test_the_loop_runs_while_a_sync_is_under_way(make: Make, tmp_path: Path) -> None:
    async def scenario() -> None:
        sync = make(asyncio.get_running_loop())
        turns = 0
        with (tmp_path / "file").open("wb", buffering=0) as file:
            file.write(bytes(8 << 20))
            syncing = asyncio.ensure_future(sync_once(sync, file.fileno()))
            while not syncing.done():
                turns += 1
                await asyncio.sleep(0)
            assert await syncing is None
        assert turns > 1
        sync.close()

    asyncio.run(scenario())


@BOTH
def test_closing_leaves_no_thread_and_no_file_behind(make: Make) -> None:
    async def scenario() -> None:
        for _ in range(3):
            make(asyncio.get_running_loop()).close()

    threads = threading.active_count()
    files = len(list(Path("/proc/self/fd").iterdir()))
    asyncio.run(scenario())
    # Not "==": what earlier tests left to the collector may go meanwhile.
    assert threading.active_count() <= threads
    assert len(list(Path("/proc/self/fd").iterdir())) <= files


def test_linux_needs_no_thread(tmp_path: Path) -> None:
    async def scenario() -> None:
        with (tmp_path / "file").open("wb", buffering=0) as file:
            sync = choose_fsync(asyncio.get_running_loop(), file.fileno())
            assert isinstance(sync, KernelSync)
            file.write(b"x")
            assert await sync_once(sync, file.fileno()) is None
        sync.close()

    asyncio.run(scenario())


def test_a_thread_syncs_where_the_kernel_has_aio_but_can_not_sync_by_it() -> None:
    async def scenario() -> None:
        reader, writer = os.pipe()  # what it answers for one is what old kernels answer for a file
        sync = choose_fsync(asyncio.get_running_loop(), writer)
        assert isinstance(sync, ThreadSync)
        sync.close()
        os.close(reader)
        os.close(writer)

    files = len(list(Path("/proc/self/fd").iterdir()))
    asyncio.run(scenario())
    assert len(list(Path("/proc/self/fd").iterdir())) <= files
