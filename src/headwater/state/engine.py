"""What the synchronous and the asynchronous database share: everything but the waiting."""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal, TypeAlias
from uuid import uuid4

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from headwater.errors import (
    CollectionStopped,
    HeadwaterError,
    OffsetGone,
    StateError,
    StateFileError,
    StateNotReady,
    StreamGone,
    StreamNotFound,
    StreamRecreated,
)
from headwater.state.backend import BEGINNING, Backend, Changes, Quarantined, Saved
from headwater.state.checking import Violation, check
from headwater.state.events import ChangeEvent, StateEvent
from headwater.state.fold import CHECKPOINT_EVENTS, Fold, Incoming, MalformedPolicy, Notice
from headwater.state.schemas import CollectionDef, StreamState, collection
from headwater.state.values import encode_value
from headwater.state.view import RowChange, View

log = logging.getLogger("headwater.state")

Condition: TypeAlias = Literal[
    "new",
    "loading",
    "live",
    "closed",
    "deleted",
    "recreated",
    "expired-offset",
    "failed",
    "stopped",
]
"""`closed` is the stream's end; `stopped` is ours, by `close()`."""

Tell: TypeAlias = Callable[[dict[str, list[RowChange]]], None]

_REMEMBERED_TXIDS: Final = 10_000


class Status(Struct, frozen=True):
    """How a database stands to its stream."""

    condition: Condition
    error: Exception | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.condition not in {"new", "loading", "live"}


class Progress(Struct, frozen=True):
    """How far a load is."""

    events: int
    offset: str
    up_to_date: bool


class Outcome(Struct):
    """What a batch has brought, to be told once it is committed."""

    offset: str
    events: list[StateEvent] = []
    notices: list[Notice] = []
    changes: dict[str, list[RowChange]] = {}
    committed: bool = False
    txids: list[str] = []


class Hooks(Struct, frozen=True):
    """What an application wants to be told; each is called by whoever follows the stream."""

    on_event: Callable[[StateEvent], None] | None = None
    """Each event, once its batch is taken."""
    on_batch: Callable[[str], None] | None = None
    """The offset of each commit."""
    on_notice: Callable[[Notice], None] | None = None
    on_status: Callable[[Status], None] | None = None


class Engine:
    """One state: its backend, what is pending, and who wants to know."""

    def __init__(
        self,
        state: StreamState | None,
        backend: Backend,
        hooks: Hooks,
        malformed: MalformedPolicy,
    ) -> None:
        self.state = state
        self.backend = backend
        self.view = View(backend)
        self.hooks = hooks
        self.status = Status("new")
        self.fold = Fold(backend.load(), state, malformed=malformed)
        self._live = False
        self._url = self._incarnation = ""
        self._watchers: dict[int, tuple[frozenset[str], Tell]] = {}
        self._numbers = iter(range(1 << 62))
        self._lock = threading.Lock()
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._loaded = 0
        for definition in state.values() if state is not None else ():
            for path in definition.indexes:
                backend.create_index(definition.type, path)

    @property
    def saved(self) -> Saved:
        """How far the last commit is."""
        return self.fold.saved

    def attach(self, url: str, incarnation: str | None, content_type: str) -> None:
        """Make sure that what is kept here belongs to this stream and to these schemas."""
        if "json" not in content_type.lower():
            raise StateError(
                f"{url} holds {content_type}: a state stream is created with application/json."
            )
        saved = self.saved
        if saved.stream not in {"", url}:
            raise StateFileError(
                saved.stream, f"it holds the state of that stream, not of {url}. Use another file."
            )
        if saved.incarnation and incarnation and saved.incarnation != incarnation:
            raise StreamRecreated(
                f"The stream at {url} was deleted and created again: restart() begins with the new "
                "one.",
                url=url,
                status=200,
                code="stream-recreated",
            )
        self._url, self._incarnation = url, incarnation or ""
        wanted = self.state.fingerprint if self.state is not None else ""
        if saved.offset != BEGINNING and saved.fingerprint != wanted:
            # Rows that were checked by other schemas may not fit these: they are built anew.
            self.forget()

    def forget(self) -> None:
        """Begin again with nothing."""
        self.view.clear()
        self._live = False
        self.fold.begin(self.backend.load())

    def take(self, batch: Incoming) -> Outcome:
        """Apply a batch, and commit where it is time: at up-to-date, from then on each time."""
        outcome = Outcome(batch.offset)
        taken = self.fold.take(batch)
        if not taken.duplicate:
            self._loaded += taken.events
            outcome.notices = taken.notices
            if self.hooks.on_event is not None:
                outcome.events = list(_events(batch.data))
        self._live = self._live or batch.up_to_date
        first_load = not self.saved.complete and self.fold.pending_events >= CHECKPOINT_EVENTS
        if (self._live or first_load) and self.fold.has_news:
            self._commit(outcome)
        return outcome

    def _commit(self, outcome: Outcome) -> None:
        work = self.fold.work(stream=self._url, incarnation=self._incarnation)
        # Who begins to watch now must see either the state before or all its changes.
        with self.view.still():
            watched = {type_ for types, _ in self._watchers.values() for type_ in types}
            changes = self.view.commit(work, self.fold.pending_txids, watched)
            outcome.txids = self.fold.committed(work)
        outcome.changes = _by_type(changes)
        outcome.committed = True

    def tell(self, outcome: Outcome) -> None:
        """Tell everybody who wants to know."""
        for notice in outcome.notices:
            if notice.kind in {"abandoned-snapshot", "unmatched-snapshot-end", "stopped"}:
                log.warning("%s at %s", notice.text, notice.position)
            self._call(self.hooks.on_notice, notice)
        for event in outcome.events:
            self._call(self.hooks.on_event, event)
        self.tell_changes(outcome.changes)
        if outcome.committed:
            self._call(self.hooks.on_batch, outcome.offset)
        self._tell_txids(outcome.txids)

    def tell_changes(self, changes: dict[str, list[RowChange]]) -> None:
        """Tell who watches these types."""
        for types, tell in list(self._watchers.values()):
            wanted = {type_: rows for type_, rows in changes.items() if type_ in types}
            if wanted:
                self._call(tell, wanted)

    def watch(self, types: Iterable[str], tell: Tell) -> Callable[[], None]:
        """Have changes of some types told from now on; gives the way to end it."""
        with self.view.still():
            number = next(self._numbers)
            self._watchers[number] = (frozenset(types), tell)

        def unwatch() -> None:
            with self.view.still():
                self._watchers.pop(number, None)

        return unwatch

    def progress(self) -> Progress:
        """Tell how far a load is."""
        return Progress(self._loaded, self.fold.offset, self._live)

    def set_status(self, condition: Condition, error: Exception | None = None) -> None:
        """Move on, and tell it."""
        self.status = Status(condition, error)
        self._call(self.hooks.on_status, self.status)
        if self.status.ended:
            with self._lock:
                waiting = [each for all_ in self._waiting.values() for each in all_]
            for wake in waiting:
                wake()

    def end(self, error: Exception) -> None:
        """Take note that the stream can't be followed any more."""
        condition: Condition = "failed"
        if isinstance(error, StreamRecreated):
            condition = "recreated"
        elif isinstance(error, StreamNotFound | StreamGone):
            condition = "deleted"
        elif isinstance(error, OffsetGone):
            condition = "expired-offset"
        if not isinstance(error, HeadwaterError):
            log.error("The database stops following its stream", exc_info=error)
        self.set_status(condition, error)

    def check_readable(self, type_: str) -> None:
        """Raise where a collection has nothing to show, or not the whole of it."""
        if not self.saved.complete:
            raise StateNotReady
        if type_ in self.saved.stopped:
            raise CollectionStopped(type_, *self.saved.stopped[type_])

    def definition(self, name: str) -> CollectionDef[Any]:
        """Find a collection by its name; without schemas, every type is one."""
        if self.state is None:
            return collection(type=name)
        if name not in self.state:
            raise KeyError(f"there is no collection '{name}': there are {', '.join(self.state)}")
        return self.state[name]

    def quarantined(self) -> list[Quarantined]:
        """Give everything that was kept aside."""
        with self.view.still():
            return list(self.backend.quarantined())

    def await_txid(self, txid: str, wake: Callable[[], None]) -> bool:
        """Have a transaction's commit told; True where it was seen already."""
        with self._lock:
            if txid in self._seen:
                return True
            self._waiting.setdefault(txid, []).append(wake)
            return False

    def has_seen(self, txid: str) -> bool:
        """Tell whether a transaction has been committed, as far as that is remembered."""
        with self._lock:
            return txid in self._seen

    def stop_waiting(self, txid: str, wake: Callable[[], None]) -> None:
        """Forget a wish to be told."""
        with self._lock:
            waiting = self._waiting.get(txid, [])
            if wake in waiting:
                waiting.remove(wake)
            if not waiting:
                self._waiting.pop(txid, None)

    def act(self, events: Iterable[ChangeEvent]) -> tuple[str, list[ChangeEvent]]:
        """Show changes at once, under a transaction of their own."""
        txid = uuid4().hex
        stamped = []
        changes: Changes = {}
        for event in events:
            outcome = check(event)
            if isinstance(outcome, Violation):
                raise StateError(f"An action can't be done: {outcome}.")
            stamped.append(replace(event, headers=replace(event.headers, txid=txid)))
            removed = event.headers.operation == "delete" or event.value is UNSET
            data = None if removed else encode_value(event.value)
            changes.setdefault(event.type, {})[event.key] = data
        if not stamped:
            raise StateError("An action needs at least one event.")
        self.tell_changes(_by_type(self.view.overlay(txid, changes)))
        return txid, stamped

    def roll_back(self, txid: str) -> None:
        """Show what is committed in place of an action that was not confirmed."""
        self.tell_changes(_by_type(self.view.roll_back(txid)))

    def _tell_txids(self, txids: list[str]) -> None:
        if not txids:
            return
        with self._lock:
            for txid in txids[-_REMEMBERED_TXIDS:]:
                self._seen[txid] = None
            while len(self._seen) > _REMEMBERED_TXIDS:
                self._seen.popitem(last=False)
            wanted = set(txids) & self._waiting.keys() if self._waiting else set()
            waiting = [each for txid in wanted for each in self._waiting[txid]]
        for wake in waiting:
            wake()

    def _call(self, callback: Callable[[Any], None] | None, value: Any) -> None:
        if callback is None:
            return
        try:
            callback(value)
        except Exception:
            # An application's mistake must not keep the state from going on; it is not silent.
            log.exception("A callback of the application raised an error")


def _events(data: bytes) -> Iterator[StateEvent]:
    for message in msgspec.json.decode(data, type=list[msgspec.Raw]) if data else ():
        outcome = check(bytes(message))
        if not isinstance(outcome, Violation):
            yield outcome


def _by_type(changes: list[RowChange]) -> dict[str, list[RowChange]]:
    found: dict[str, list[RowChange]] = {}
    for change in changes:
        found.setdefault(change.type, []).append(change)
    return found
