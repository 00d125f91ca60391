"""What an application sees: the committed rows, and over them what is not confirmed yet."""

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from msgspec import Struct

from headwater.state.backend import Backend, Changes, Row, Work


class RowChange(Struct, frozen=True):
    """How an entity has changed in what is seen."""

    type: str
    key: str
    old: bytes | None
    new: bytes | None

    @property
    def operation(self) -> Literal["insert", "update", "delete"]:
        """What has happened, whatever the event was called."""
        if self.old is None:
            return "insert"
        return "delete" if self.new is None else "update"


class View:
    """One backend and the optimistic changes over it. It may be used from several threads."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._lock = threading.RLock()
        self._optimistic: dict[str, Changes] = {}
        """Changes by transaction, the later over the earlier."""

    @contextmanager
    def still(self) -> Iterator[None]:
        """Hold off commits for a block, so that several reads see one state."""
        with self._lock:
            yield

    def get(self, type_: str, key: str) -> bytes | None:
        """Give one value."""
        with self._lock:
            for changes in reversed(self._optimistic.values()):
                if key in changes.get(type_, ()):
                    return changes[type_][key]
            return self._backend.get(type_, key)

    def rows(self, type_: str) -> list[Row]:
        """Give all entities of a type, by key."""
        with self._lock:
            return self._overlaid(type_, self._backend.rows(type_))

    def lookup(self, type_: str, path: str, value: Any) -> list[Row] | None:
        """Give at least the entities with a member of this value; None where no index helps."""
        with self._lock:
            found = self._backend.lookup(type_, path, value)
            return None if found is None else self._overlaid(type_, found)

    def count(self, type_: str) -> int:
        """Count the entities of a type."""
        with self._lock:
            if not any(type_ in changes for changes in self._optimistic.values()):
                return self._backend.count(type_)
            return len(self.rows(type_))

    def commit(
        self, work: Work, confirmed: Iterable[str], watched: Iterable[str]
    ) -> list[RowChange]:
        """Commit work and let go of optimistic changes; tell what changes in watched types."""
        with self._lock:
            gone = [txid for txid in dict.fromkeys(confirmed) if txid in self._optimistic]
            before = {type_: self._before(type_, work, gone) for type_ in watched}
            self._backend.commit(work)
            for txid in gone:
                del self._optimistic[txid]
            return [
                change
                for type_, old in before.items()
                for change in self._compared(type_, old, whole=work.base != "keep")
            ]

    def overlay(self, txid: str, changes: Changes) -> list[RowChange]:
        """Show changes before they are confirmed."""
        with self._lock:
            before = {
                type_: {key: self.get(type_, key) for key in entities}
                for type_, entities in changes.items()
            }
            self._optimistic[txid] = changes
            return self._all_compared(before)

    def roll_back(self, txid: str) -> list[RowChange]:
        """Show the committed rows again in place of changes that were not confirmed."""
        with self._lock:
            changes = self._optimistic.get(txid, {})
            before = {
                type_: {key: self.get(type_, key) for key in entities}
                for type_, entities in changes.items()
            }
            self._optimistic.pop(txid, None)
            return self._all_compared(before)

    def clear(self) -> None:
        """Forget everything that is committed."""
        with self._lock:
            self._backend.clear()

    def _before(self, type_: str, work: Work, gone: list[str]) -> dict[str, bytes | None]:
        if work.base != "keep":
            return dict(self.rows(type_))
        keys = set(work.changes.get(type_, ()))
        for txid in gone:
            keys.update(self._optimistic[txid].get(type_, ()))
        return {key: self.get(type_, key) for key in keys}

    def _compared(
        self, type_: str, before: Mapping[str, bytes | None], *, whole: bool
    ) -> Iterator[RowChange]:
        after: Mapping[str, bytes | None]
        after = dict(self.rows(type_)) if whole else {key: self.get(type_, key) for key in before}
        for key in sorted({*before, *after}):
            old, new = before.get(key), after.get(key)
            if old != new:
                yield RowChange(type_, key, old, new)

    def _all_compared(self, before: Mapping[str, Mapping[str, bytes | None]]) -> list[RowChange]:
        return [
            change
            for type_, old in before.items()
            for change in self._compared(type_, old, whole=False)
        ]

    def _overlaid(self, type_: str, rows: Iterable[Row]) -> list[Row]:
        over: dict[str, bytes | None] = {}
        for changes in self._optimistic.values():
            over.update(changes.get(type_, {}))
        if not over:
            return list(rows)
        seen = {key: data for key, data in rows if key not in over}
        seen.update((key, data) for key, data in over.items() if data is not None)
        # Where only some rows were asked for, what lies over them may or may not belong to them:
        # whoever looks up by an index compares again.
        return [Row(key, data) for key, data in sorted(seen.items())]
