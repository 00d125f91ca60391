"""`StreamDB`: a live local database over a stream."""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from headwater.client import Batch, Following, Live, Stream
from headwater.errors import HeadwaterError, StateError, StateStopped, TxidTimeout
from headwater.state.backend import Backend, Quarantined
from headwater.state.collections import Collection
from headwater.state.engine import Engine, Hooks, Progress, Status
from headwater.state.events import ChangeEvent
from headwater.state.fold import Incoming, MalformedPolicy
from headwater.state.history import as_of
from headwater.state.memory import MemoryBackend
from headwater.state.schemas import CollectionDef, StreamState
from headwater.state.sqlite import SqliteBackend

Send = Callable[[list[ChangeEvent]], Any]


def open_backend(backend: Backend | str | Path | None) -> Backend:
    """Find the backend that is meant: memory, an SQLite file by its path, or one of your own."""
    if backend is None:
        return MemoryBackend()
    return SqliteBackend(backend) if isinstance(backend, str | Path) else backend


class Collections:
    """What the synchronous, the asynchronous and the historical database give to readers."""

    _engine: Engine

    def __getitem__(self, name: str) -> Collection[Any]:
        return Collection(self._engine, name, self._engine.definition(name))

    def __getattr__(self, name: str) -> Collection[Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(str(error)) from None

    def collection(self, definition: CollectionDef[Any]) -> Collection[Any]:
        """Give the collection of a definition, with its type."""
        for name, each in (self._engine.state or {}).items():
            if each is definition:
                return Collection(self._engine, name, definition)
        raise KeyError(f"{definition!r} is none of this database's collections")

    @property
    def collections(self) -> Mapping[str, Collection[Any]]:
        """Every collection by name; without schemas, one for each type that has entities."""
        names = self._engine.state or self._engine.backend.types()
        return {name: self[name] for name in names}

    @property
    def offset(self) -> str:
        """Everything before it is committed."""
        return self._engine.saved.offset

    @property
    def epoch(self) -> int:
        """How many resets there were."""
        return self._engine.saved.epoch

    @property
    def ready(self) -> bool:
        """Whether there is a state to be read: the stream's end was reached, now or before."""
        return self._engine.saved.complete

    @property
    def dropped(self) -> int:
        """How many events were passed over: of types without a collection, or by policy."""
        return self._engine.saved.dropped

    @property
    def status(self) -> Status:
        """How the database stands to its stream."""
        return self._engine.status

    def quarantined(self) -> list[Quarantined]:
        """Give what was kept aside instead of being applied, with reasons and offsets."""
        return self._engine.quarantined()


class PastState(Collections):
    """The state as of an earlier offset; it never changes."""

    def __init__(self, state: StreamState | None, backend: Backend) -> None:
        self._engine = Engine(state, backend, Hooks(), "quarantine")
        self._engine.status = Status("stopped")


class StreamDB(Collections):
    """A stream's state, kept up to date by a thread of its own; close it, or use it in `with`.

    Collections are attributes: `db.users`. Where a name is taken by a method, use `db["name"]`.
    """

    def __init__(
        self,
        stream: Stream,
        state: StreamState | None = None,
        *,
        backend: Backend | str | Path | None = None,
        live: Live = "auto",
        malformed: MalformedPolicy = "quarantine",
        hooks: Hooks | None = None,
    ) -> None:
        """Open the backend; nothing is read before `preload`.

        `backend` is the path of an SQLite file, or nothing for memory. Without `state` every type
        is a collection of any values. `malformed` is what happens to messages that are no events.
        """
        self.stream = stream
        self._live: Live = live
        self._engine = Engine(state, open_backend(backend), hooks or Hooks(), malformed)
        self._changed = threading.Condition()
        self._following: Following | None = None
        self._thread: threading.Thread | None = None
        self._closing = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def preload(
        self, on_progress: Callable[[Progress], None] | None = None, *, timeout: float | None = None
    ) -> Self:
        """Read to the stream's end, then stay live; returns once the end is reached.

        `on_progress` is told after each batch how far it is. A stream that is not there, or not
        the one that a file was made from, raises.
        """
        if self._closing:
            raise StateStopped("it was closed. Open another one.")
        if self._thread is None:
            info = self.stream.head()
            self._engine.attach(self.stream.url, info.incarnation, info.content_type)
            self._engine.set_status("loading")
            self._thread = threading.Thread(
                target=self._follow, name="headwater-state", daemon=True
            )
            self._thread.start()
        until = None if timeout is None else time.monotonic() + timeout
        told = None
        with self._changed:
            while self._engine.status.condition == "loading":
                progress = self._engine.progress()
                if on_progress is not None and progress != told:
                    told = progress
                    on_progress(progress)
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise StateError(
                        f"The state was not loaded within {timeout:g} seconds: it goes on loading; "
                        "call preload() again to wait for it."
                    )
                self._changed.wait(left)
        if on_progress is not None:
            on_progress(self._engine.progress())
        status = self._engine.status
        if status.ended and status.condition != "closed":
            self._raise_ended()
        return self

    def await_txid(self, txid: str, timeout: float = 5.0) -> None:
        """Wait until a transaction is committed here; raises `TxidTimeout` where it does not come.

        The last ten thousand transactions are remembered.
        """
        seen = threading.Event()
        if self._engine.await_txid(txid, seen.set):
            return
        try:
            if not self._engine.status.ended:
                seen.wait(timeout)
        finally:
            self._engine.stop_waiting(txid, seen.set)
        if self._engine.has_seen(txid):
            return
        if self._engine.status.ended:
            self._raise_ended()
        raise TxidTimeout(txid, timeout)

    def act(self, *events: ChangeEvent, send: Send | None = None, timeout: float = 10.0) -> str:
        """Do something optimistically: show it now, append it, and wait until it is confirmed.

        Where appending fails, or the stream does not bring it back in time, what is shown is rolled
        back and the error raised. `send` is what appends the events, where it is not simply this
        stream; they carry the transaction that must come back. Returns the transaction.
        """
        txid, stamped = self._engine.act(events)
        try:
            if send is not None:
                send(stamped)
            else:
                self.stream.append_many([event.encode() for event in stamped], idempotent=True)
            self.await_txid(txid, timeout)
        except BaseException:
            self._engine.roll_back(txid)
            raise
        return txid

    def as_of(self, offset: str) -> PastState:
        """Give the state before an offset, or a position, by reading the stream up to it."""
        steps = as_of(offset, self._engine.state)
        batch: Batch | None = None
        while True:
            try:
                at = next(steps) if batch is None else steps.send(batch)
            except StopIteration as done:
                return PastState(self._engine.state, done.value)
            batch = next(self.stream.read(at).batches())

    def restart(self) -> Self:
        """Forget everything and load the stream as it is now: after it was recreated, say."""
        self._stop()
        self._engine.forget()
        self._engine.set_status("new")
        return self.preload()

    def close(self) -> None:
        """Stop following, and let go of the backend. Closing twice is harmless."""
        if self._closing:
            return
        self._closing = True
        self._stop()
        if not self._engine.status.ended:
            self._engine.set_status("stopped")
        with self._changed:
            self._changed.notify_all()
        self._engine.backend.close()

    def _stop(self) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with self._changed:
            following = self._following
        if following is not None:
            following.stop()
        if thread is not threading.current_thread():
            thread.join()

    def _follow(self) -> None:
        try:
            with self._changed:
                following = self.stream.follow(self._engine.fold.offset, live=self._live)
                self._following = following
            for batch in following:
                self._take(batch)
            if following.closed:
                self._engine.set_status("closed")
            elif not self._closing:
                self._engine.set_status("stopped")
        except HeadwaterError as error:
            self._engine.end(error)
        except Exception as error:  # noqa: BLE001 - a thread has nobody to raise to: it is told
            self._engine.end(error)
        finally:
            with self._changed:
                self._changed.notify_all()

    def _take(self, batch: Batch) -> None:
        outcome = self._engine.take(
            Incoming(batch.data, batch.start, batch.next_offset, batch.up_to_date, batch.skipped)
        )
        if batch.up_to_date and self._engine.status.condition == "loading":
            self._engine.set_status("live")
        self._engine.tell(outcome)
        with self._changed:
            self._changed.notify_all()

    def _raise_ended(self) -> None:
        status = self._engine.status
        if status.error is not None:
            raise status.error
        raise StateStopped(f"it is {status.condition}.")
