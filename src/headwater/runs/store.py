"""The run store: the one interface between runs and whatever keeps their logs (contract 1.0).

A store keeps one append-only log for each run. Its *append authority* numbers the events, and how
it does so is its own; these promises hold for every method and every backend:

- **Unique.** `(run_id, run_seq)` and `(run_id, idempotency_key)` name one event each, for ever.
- **Increasing.** A later append to a run has a higher `run_seq`. Numbers start at 1; gaps may be.
- **Atomic and durable.** A call takes effect as a whole or not at all, also when the process dies,
  and returns once its effect is as durable as the store was told to make it.
- **Append-only.** Nothing that was stored is changed. Only whole runs can be deleted.
- **Not cancelled half-way.** Dropping a call that waits does not undo it: it may still take effect.

A call that fails with `RunStoreUnavailable` may have taken effect; every method may be repeated, an
append with the same keys. Methods raise `StoreNotOpen` before `open` and after `close`.

What differs between backends is said by class attributes. A backend writes the methods that are
abstract here; the others are the same for all.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any, ClassVar, Final, Self

import msgspec
from msgspec import Struct

from headwater.errors import EventRefused, RunLogDamaged, RunNotFound, RunQueryRefused
from headwater.runs.events import Document, NewEvent, StoredEvent, check_event
from headwater.runs.reducer import Fold
from headwater.runs.values import (
    Instant,
    RunSnapshot,
    RunStatus,
    Value,
    snapshot_from_wire,
)

PAGE: Final = 1000
"""How many events a fetch gives unless told otherwise."""


class AppendResult(Value, frozen=True):
    """What became of an event; exactly one of `idempotent` and `persisted` is true."""

    run_seq: int
    """Its number: for a duplicate, that of the event which was stored first."""
    idempotent: bool
    persisted: bool

    @classmethod
    def stored(cls, run_seq: int) -> Self:
        """It was written."""
        return cls(run_seq, idempotent=False, persisted=True)

    @classmethod
    def duplicate(cls, run_seq: int) -> Self:
        """Its key was there before."""
        return cls(run_seq, idempotent=True, persisted=False)


class RunInfo(Value, frozen=True):
    """A run without its events."""

    run_id: str
    status: RunStatus
    last_event_seq: int
    """The highest `run_seq` in its log."""
    created_at: Instant
    """When its first event was persisted."""
    updated_at: Instant
    deleted: bool = False
    """Whether only its tombstone is left; `list_runs` and `find_run` never show one."""


class RunPage(Value, frozen=True):
    """Some runs, and where to go on."""

    runs: tuple[RunInfo, ...]
    next: str | None = None
    """What to pass as `after` for more; None at the end."""


class Changes(Struct, frozen=True):
    """Runs that have changed behind a mark, and the mark behind them."""

    runs: tuple[RunInfo, ...]
    mark: str


class Checkpoint(Struct, frozen=True):
    """How far the projection of a run has come: what a projector needs to go on after a crash."""

    snapshot: RunSnapshot
    """The newest one: of all events that were seen."""
    contiguous_seq: int
    """Up to here every number was seen, or given up for good."""
    base: RunSnapshot | None = None
    """The snapshot at `contiguous_seq`, where that is not `snapshot`: a late event starts there."""
    stale: bool = False
    """Whether a gap is open above `contiguous_seq`."""

    @property
    def run_id(self) -> str:
        return self.snapshot.run_id

    @property
    def last_event_seq(self) -> int:
        return self.snapshot.last_event_seq


class RunStore(ABC):
    """Keeps the logs of runs. One instance belongs to one event loop."""

    authority: ClassVar[str]
    """How `run_seq` is assigned, in a sentence."""
    gaps_are_final: ClassVar[bool]
    """Whether assignment and commit are serialised: then nothing ever appears below what was read,
    and a projector need not wait for a gap to fill."""
    status_is_live: ClassVar[bool] = True
    """Whether `RunInfo.status` is that of the last append; otherwise of the last checkpoint."""
    is_shared: ClassVar[bool] = True
    """Whether several processes may use it at once."""
    max_batch: ClassVar[int] = 10_000
    """How many events one transaction may hold."""
    max_event_bytes: ClassVar[int] = 1 << 20
    """How large the document of an event may be."""
    poll_seconds: ClassVar[float] = 0.1
    """How often `wait` looks where the backend can't tell of changes by itself."""

    @classmethod
    @abstractmethod
    def from_url(cls, url: str) -> "RunStore":
        """Make a store from its URL; raises `SettingsError` where that can't be used."""

    @abstractmethod
    async def open(self) -> None:
        """Make the store ready, with its tables where they are missing; may be called again.

        Raises `StoreError` or `RunStoreUnavailable` with a sentence when it can't be.
        """

    @abstractmethod
    async def close(self) -> None:
        """Finish what is under way and let go of everything; may be called twice."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Appending

    async def append_event(self, event: NewEvent) -> AppendResult:
        """Append one event; see `append_events`."""
        return (await self.append_events((event,)))[0]

    async def append_events(self, events: Sequence[NewEvent]) -> list[AppendResult]:
        """Append events of one run in one transaction, in their order; answers one by one.

        Atomic: all of them are stored or none. An event whose key the run has already, or that
        came earlier in the same batch, is answered with the stored `run_seq` and takes no number.
        Repeating it with the same keys is safe and gives the same numbers. Raises `EventRefused`
        where an event breaks the contract or they are of several runs, `RunDeleted`, and
        `RunStoreUnavailable`, after which the batch may be there or not.
        """
        if not events:
            return []
        return await self._append(events[0].run_id, self._checked(events))

    def _checked(self, events: Sequence[NewEvent]) -> list[Document]:
        if len(events) > self.max_batch:
            raise EventRefused(
                f"a batch holds at most {self.max_batch} events here, not {len(events)}"
            )
        documents = [check_event(event) for event in events]
        run_id = documents[0].run_id
        for document in documents:
            if document.run_id != run_id:
                raise EventRefused(
                    f"a batch belongs to one run, and this one names '{run_id}' and "
                    f"'{document.run_id}'"
                )
            if len(document.body) > self.max_event_bytes:
                raise EventRefused(
                    f"it has {len(document.body)} bytes, and at most {self.max_event_bytes} are "
                    "kept: store the payload elsewhere and point to it with an ArtifactRef",
                    run_id=run_id,
                    event_type=document.event_type,
                )
        return documents

    @abstractmethod
    async def _append(self, run_id: str, documents: Sequence[Document]) -> list[AppendResult]:
        """Do what `append_events` promises, with at least one event, all checked and of one run."""

    # Reading

    @abstractmethod
    async def fetch_events(
        self, run_id: str, after_seq: int = 0, limit: int = PAGE
    ) -> list[StoredEvent]:
        """Read up to `limit` events with `run_seq > after_seq`, in increasing `run_seq`.

        Shows every append that was acknowledged before the call. It is empty for a run that is
        unknown or deleted, and at the end of the log. Where gaps are not final, events below what
        was read may still appear. Raises `RunQueryRefused` and `RunLogDamaged`.
        """

    async def fetch_each(
        self, wanted: Sequence[tuple[str, int]], limit: int = PAGE
    ) -> list[list[StoredEvent]]:
        """Read up to `limit` events of each of several runs, as `fetch_events` does for one.

        A run whose log can't be read fails them all with `RunLogDamaged`.
        """
        pages = (self.fetch_events(run_id, after_seq, limit) for run_id, after_seq in wanted)
        return list(await asyncio.gather(*pages))

    @abstractmethod
    async def find_run(self, run_id: str) -> RunInfo | None:
        """Look at a run; None where it is unknown or deleted."""

    @abstractmethod
    async def list_runs(
        self,
        *,
        status: RunStatus | None = None,
        created_from: datetime | None = None,
        created_before: datetime | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> RunPage:
        """List runs, the newest first: by `created_at`, then by `run_id`, both descending.

        `after` is the `next` of the page before. A run that is there all the while is listed
        exactly once by going through the pages. Raises `RunQueryRefused`.
        """

    @abstractmethod
    async def delete_run(self, run_id: str) -> bool:
        """Delete a whole run; says whether there was one.

        Atomic: events, checkpoint and snapshot go together. A tombstone stays, so that appends to
        this run id raise `RunDeleted` from now on. Repeating it is safe, and answers False.
        """

    # Snapshots

    async def get_snapshot(self, run_id: str) -> RunSnapshot | None:
        """Give the latest snapshot: the materialised one, brought up to the end of the log.

        None for an unknown or deleted run. It shows every append acknowledged before the call,
        except that an event below `last_event_seq`, where gaps are not final, shows once the
        projector has found it.
        """
        checkpoint = await self.load_checkpoint(run_id)
        snapshot = None if checkpoint is None else checkpoint.snapshot
        fold = await self._fold(run_id, snapshot)
        return fold.snapshot() if fold.last_event_seq else None

    async def project_snapshot(self, run_id: str) -> RunSnapshot:
        """Replay the whole log of a run; raises `RunNotFound` where there is none."""
        fold = await self._fold(run_id, None)
        if not fold.last_event_seq:
            raise RunNotFound(run_id)
        return fold.snapshot()

    async def _fold(self, run_id: str, snapshot: RunSnapshot | None) -> Fold:
        fold = Fold(run_id, snapshot)
        async for event in self.events(run_id, fold.last_event_seq):
            fold.apply(event)
        return fold

    async def events(self, run_id: str, after_seq: int = 0) -> AsyncIterator[StoredEvent]:
        """Go through the events of a run to its end, page by page."""
        page = await self.fetch_events(run_id, after_seq, PAGE)
        while page:
            for event in page:
                yield event
            if len(page) < PAGE:
                return
            page = await self.fetch_events(run_id, page[-1].run_seq, PAGE)

    # What a projector needs

    @abstractmethod
    async def changes(self, mark: str = "", limit: int = PAGE) -> Changes:
        """Name runs that were appended to or deleted behind a mark; "" is before everything.

        Every change is named at least once by going on from the returned mark, also one that is
        committed late; a run may be named without a change. It is empty only at the end, and the
        mark of an empty answer may be used again. Deleted runs are named as `deleted`.
        """

    async def wait(self, mark: str, seconds: float) -> None:
        """Return when `changes(mark)` may have something, at the latest after some seconds.

        It may return early, and must never be relied on for more than saving questions.
        """
        del mark
        await asyncio.sleep(min(seconds, self.poll_seconds))

    @abstractmethod
    async def save_checkpoints(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Keep how far projections have come, and their snapshots as the materialised ones.

        Each is kept whole or not at all. One that is older than the one kept (by
        `last_event_seq`), or whose run is unknown or deleted, is dropped. Repeating it is safe.
        """

    @abstractmethod
    async def load_checkpoint(self, run_id: str) -> Checkpoint | None:
        """Give the checkpoint kept last; None where there is none, or the run is deleted."""

    async def save_position(self, position: str) -> None:
        """Keep how far projectors have come over all runs: a text of theirs, the last one counts.

        A store may leave it: projectors then look at every run once when they start.
        """
        del position

    async def load_position(self) -> str:
        """Give the position kept last; "" where there is none, or its marks mean nothing now."""
        return ""


# For backends


def check_page(after_seq: int, limit: int) -> None:
    """Refuse a page that can't be asked for."""
    if after_seq < 0:
        raise RunQueryRefused("after_seq", after_seq, "a run_seq, or 0 for the start")
    check_limit(limit)


def check_limit(limit: int, most: int = 10_000) -> None:
    """Refuse a page that is empty or without bound."""
    if not 1 <= limit <= most:
        raise RunQueryRefused("limit", limit, f"1 to {most}")


def cursor_of(info: RunInfo, created_at: str) -> str:
    """Write where a page of runs ends; `created_at` is the text that the store sorts by."""
    return f"{created_at}~{info.run_id}"


def parse_cursor(cursor: str) -> tuple[str, str]:
    """Read `created_at` and `run_id` back from a cursor."""
    created_at, separator, run_id = cursor.partition("~")
    if not separator or not run_id or len(created_at) < 20:
        raise RunQueryRefused("after", cursor, "the 'next' of the page before")
    return created_at, run_id


def checkpoint_to_json(checkpoint: Checkpoint) -> bytes:
    """Write a checkpoint for a store to keep."""
    # Straight from the values, its attempts as numbers: a projector does little else all day.
    wire: dict[str, Any] = {
        "snapshot": checkpoint.snapshot,
        "contiguousSeq": checkpoint.contiguous_seq,
        "stale": checkpoint.stale,
    }
    if checkpoint.base is not None:
        wire["base"] = checkpoint.base
    return msgspec.json.encode(wire)


def checkpoint_from_json(run_id: str, document: bytes | str) -> Checkpoint:
    """Read a checkpoint; raises `RunLogDamaged` where it can't be read."""
    try:
        wire = msgspec.json.decode(document)
        base = wire.get("base")
        return Checkpoint(
            snapshot_from_wire(wire["snapshot"]),
            wire["contiguousSeq"],
            None if base is None else snapshot_from_wire(base),
            wire["stale"],
        )
    except (msgspec.MsgspecError, AttributeError, KeyError, TypeError) as error:
        raise RunLogDamaged(run_id, "the checkpoint", str(error)) from error
