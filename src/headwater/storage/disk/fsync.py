"""Fsync without blocking the event loop, and durable names of files and directories.

`KernelSync` submits the sync to the kernel (Linux AIO), which reports through an eventfd. It needs
no thread, so nothing competes with the loop for the interpreter lock. `ThreadSync` syncs in a
thread, where Linux AIO is not available. Both run at most one sync at a time and report on the
loop.
"""

import asyncio
import ctypes
import errno
import logging
import os
import platform
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from headwater.storage.disk.faults import NO_FAULTS, Faults

log: Final = logging.getLogger("headwater.disk")

Done = Callable[[OSError | None], None]


class SyncFailed(OSError):
    """fsync failed: the data may be lost, and a second fsync could report success all the same."""


class Sync(Protocol):
    """Makes the data of a file durable."""

    def start(self, fd: int, done: Done) -> None:
        """Sync a file, then call `done` on the loop with None or the error."""

    def close(self) -> None:
        """Release all resources; no sync may be in flight."""


def choose_fsync(loop: asyncio.AbstractEventLoop, fd: int) -> Sync:
    """Return the fastest implementation that works here, found by syncing a file once."""
    if sys.platform == "linux" and platform.machine() in _CALLS:
        try:
            sync = KernelSync(loop)
            try:
                sync.probe(fd)
            except OSError:
                sync.close()
                raise
        except OSError as error:
            log.info("kernel aio is not available, syncing in a thread", extra={"error": error})
        else:
            return sync
    return ThreadSync(loop)


# Numbers of io_setup, io_destroy, io_getevents, io_submit.
_CALLS: Final = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
_FDSYNC: Final = 3
_FLAG_RESFD: Final = 1


class _Request(ctypes.Structure):
    """`struct iocb` of the kernel, on a little-endian machine."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_int32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("fd", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("result_fd", ctypes.c_uint32),
    )


class KernelSync:
    """Linux AIO: `io_submit` starts a sync, and an eventfd reports its end to the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._setup, self._destroy, self._events, self._submit = _CALLS[platform.machine()]
        self._context = ctypes.c_ulong(0)
        self._invoke(self._setup, 1, ctypes.byref(self._context))
        self._ready = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._request = _Request(opcode=_FDSYNC, result_fd=self._ready)
        self._requests = (ctypes.POINTER(_Request) * 1)(ctypes.pointer(self._request))
        self._event = (ctypes.c_int64 * 4)()
        self._done: Done | None = None
        loop.add_reader(self._ready, self._finished)

    def probe(self, fd: int) -> None:
        """Sync a file and wait for it: some kernels and sandboxes have AIO without fsync."""
        self._request.fd = fd
        self._request.flags = 0
        self._invoke(self._submit, self._context, 1, self._requests)
        result = self._result()
        if result < 0:
            raise OSError(-result, os.strerror(-result))

    def start(self, fd: int, done: Done) -> None:
        self._done = done
        self._request.fd = fd
        self._request.flags = _FLAG_RESFD
        try:
            self._invoke(self._submit, self._context, 1, self._requests)
        except OSError as error:
            self._done = None
            self._loop.call_soon(done, error)

    def _finished(self) -> None:
        os.eventfd_read(self._ready)
        result = self._result()
        done, self._done = self._done, None
        if done is not None:
            done(OSError(-result, os.strerror(-result)) if result < 0 else None)

    def _result(self) -> int:
        """Wait for the sync in flight, and return its result."""
        self._invoke(self._events, self._context, 1, 1, self._event, None)
        return int(self._event[2])

    def _invoke(self, number: int, *arguments: object) -> None:
        if self._call(number, *arguments) < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def close(self) -> None:
        self._loop.remove_reader(self._ready)
        os.close(self._ready)
        self._invoke(self._destroy, self._context)


class ThreadSync:
    """A thread that syncs files."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._requested = threading.Semaphore(0)
        self._fd: int | None = None
        self._done: Done | None = None
        self._thread = threading.Thread(target=self._run, name="headwater-sync", daemon=True)
        self._thread.start()

    def start(self, fd: int, done: Done) -> None:
        self._fd, self._done = fd, done
        self._requested.release()

    def _run(self) -> None:
        while True:
            self._requested.acquire()
            fd, done = self._fd, self._done
            if fd is None or done is None:
                return
            error: OSError | None = None
            try:
                os.fdatasync(fd)
            except OSError as failure:
                error = failure
            self._loop.call_soon_threadsafe(done, error)

    def close(self) -> None:
        self._fd = None
        self._requested.release()
        self._thread.join()


def sync_directory(folder: Path, faults: Faults = NO_FAULTS) -> None:
    """Make the entries of a directory durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
        if faults.fails("directory-sync-fails"):
            raise OSError(errno.EIO, "injected")  # noqa: TRY301 - as the line above would
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror) from error
    finally:
        os.close(fd)


def make_directory(folder: Path) -> None:
    """Create a directory and its missing parents, and make their names durable."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync_directory(path.parent)


def sync_file(path: Path) -> None:
    """Make the content of a file durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync(fd, path)
    finally:
        os.close(fd)


def sync(fd: int, path: Path, faults: Faults = NO_FAULTS) -> None:
    """Make the content of an open file durable."""
    os.fsync(fd)
    faults.synced(path)
