"""The run service: opens the run store on first use, runs its projector, watches for changes."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headwater.errors import HeadwaterError
from headwater.runs.positions import load_position
from headwater.runs.projector import Projector
from headwater.runs.store import RunStore
from headwater.runs.stores import run_store
from headwater.runs.stores.memory import MemoryRunStore
from headwater.runs.stores.sqlite import SqliteRunStore
from headwater.server.settings import Settings

log: Final = logging.getLogger("headwater.runs")

FILE: Final = "runs.db"
_WATCH_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 0.5


def choose_store(settings: Settings) -> RunStore:
    """Return the run store of the settings; by default it is in the data directory."""
    if settings.runs_store:
        return run_store(settings.runs_store)
    if settings.in_memory:
        return MemoryRunStore()
    path = Path(settings.store) / FILE
    return SqliteRunStore(path, durable=settings.durability == "fsync")


class RunService:
    """The run store and its projector; `open` returns the store once it is ready."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._opening: asyncio.Task[RunStore] | None = None
        self._store: RunStore | None = None
        self._projector: Projector | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._watches: dict[str, set[Callable[[], None]]] = {}

    async def start(self) -> None:
        """Open the store now if one is configured or already exists."""
        settings = self._settings
        exists = settings.store != "memory" and (Path(settings.store) / FILE).exists()
        if settings.runs_store or (exists and settings.durability != "memory"):
            await self.open()

    async def open(self) -> RunStore:
        """Return the store, opening it on first use."""
        if self._store is not None:
            return self._store
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        opening = self._opening
        try:
            return await asyncio.shield(opening)
        finally:
            if opening.done() and self._opening is opening:
                self._opening = None  # a failed attempt is repeated by the next call

    async def _open(self) -> RunStore:
        store = choose_store(self._settings)
        await store.open()
        self._store = store
        self._projector = Projector(store)
        self._tasks = [
            asyncio.create_task(self._projector.run()),
            asyncio.create_task(self._watch(store)),
        ]
        return store

    async def stop(self) -> None:
        """Stop the projector and the watcher, and close the store."""
        if self._opening is not None:
            await asyncio.wait({self._opening})
        if self._projector is not None:
            self._projector.stop()
            projecting, watching = self._tasks
            watching.cancel()
            await asyncio.gather(projecting, watching, return_exceptions=True)
        if self._store is not None:
            await self._store.close()
        self._store = self._projector = None

    @property
    def projector(self) -> Projector | None:
        """The projector, once the store is open."""
        return self._projector

    def watch(self, run_id: str, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` after each change of a run; return a function that ends the watch."""
        self._watches.setdefault(run_id, set()).add(wake)

        def end() -> None:
            wakes = self._watches.get(run_id)
            if wakes is not None:
                wakes.discard(wake)
                if not wakes:
                    del self._watches[run_id]

        return end

    async def _watch(self, store: RunStore) -> None:
        """Wake followers after changes, including those made by other servers on the same store."""
        mark: str | None = None
        while True:
            try:
                if mark is None:  # changes before the start have no followers
                    mark = (await load_position(store)).mark
                changes = await store.changes(mark)
                for info in changes.runs:
                    for wake in tuple(self._watches.get(info.run_id, ())):
                        wake()
                if not changes.runs or changes.mark == mark:
                    await store.wait(changes.mark, _WATCH_SECONDS)
                mark = changes.mark
            except HeadwaterError as error:
                log.warning("could not watch the run store, will retry: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
