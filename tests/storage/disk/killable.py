"""A disk store in a process of its own, driven through a pipe, so that it can be killed."""

import asyncio
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import msgspec

from headwater.protocol.lifecycle import Append
from headwater.storage.disk.options import DiskOptions
from headwater.storage.disk.store import DiskStore
from headwater.storage.store import Chunk, Store

_processes: Final = multiprocessing.get_context("fork")


class KillableStore:
    """Calls of the store by their names; answers are values."""

    def __init__(self, folder: Path, options: DiskOptions, now: float) -> None:
        self.folder = folder
        self._pipe, theirs = _processes.Pipe()
        self._process = _processes.Process(target=_live, args=(theirs, folder, options, now))
        self._process.start()
        theirs.close()
        assert self._pipe.recv() == "open"

    def ask(self, name: str, *arguments: object) -> Any:
        """Call a method, and return its result."""
        self._pipe.send((name, arguments))
        return self._pipe.recv()

    def begin(self, name: str, *arguments: object) -> None:
        """Call a method without waiting: to be followed by `kill`."""
        self._pipe.send((name, arguments))

    def kill(self) -> None:
        """End the process as a crash would."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._end(-signal.SIGKILL)

    def close(self) -> None:
        """Close the store as it should be."""
        self._pipe.send(("close", ()))
        self._end(0)

    def _end(self, code: int) -> None:
        self._process.join(60)
        assert self._process.exitcode == code
        self._process.close()
        self._pipe.close()


def _live(pipe: Connection, folder: Path, options: DiskOptions, now: float) -> None:
    asyncio.run(_serve(pipe, DiskStore(folder, options, lambda: now)))


async def _serve(pipe: Connection, store: DiskStore) -> None:
    await store.open()
    loop = asyncio.get_running_loop()
    closing = loop.create_future()
    tasks: set[asyncio.Task[None]] = set()

    def take() -> None:
        name, arguments = pipe.recv()
        if name == "close":
            closing.set_result(None)
            return
        task = loop.create_task(answer(name, arguments))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def answer(name: str, arguments: Any) -> None:
        pipe.send(_plain(await _call(store, name, arguments)))

    loop.add_reader(pipe.fileno(), take)
    pipe.send("open")
    await closing
    loop.remove_reader(pipe.fileno())
    await store.close()


async def _call(store: DiskStore, name: str, arguments: Any) -> object:
    if name == "append_at_once":
        path, requests, now = arguments
        return await at_once(store, path, requests, now)
    if name == "sleep":
        await asyncio.sleep(*arguments)
        return None
    return await getattr(store, name)(*arguments)


async def at_once(store: Store, path: str, requests: list[Append], now: float) -> list[object]:
    """Run several appends at once."""
    return list(await asyncio.gather(*(store.append(path, request, now) for request in requests)))


def _plain(outcome: object) -> object:
    if isinstance(outcome, Chunk):
        return msgspec.structs.replace(outcome, parts=(outcome.joined(),))
    return outcome
