"""The state in memory: gone with the process, and built from the stream again."""

from collections.abc import Hashable, Iterable, Iterator
from typing import Any

from headwater.state.backend import Changes, Quarantined, Row, Saved, Work
from headwater.state.paths import member
from headwater.state.values import decode_value

_Rows = dict[str, dict[str, bytes]]


class MemoryBackend:
    """Keeps rows in dictionaries; see `Backend` for what the methods promise."""

    def __init__(self) -> None:
        self._saved = Saved()
        self._rows: _Rows = {}
        self._staged: _Rows = {}
        self._quarantined: list[Quarantined] = []
        self._indexes: dict[tuple[str, str], _Index] = {}

    def load(self) -> Saved:
        return self._saved

    def commit(self, work: Work) -> None:
        if work.base != "keep":
            self._rows = self._staged if work.base == "staged" else {}
            self._staged = {}
        self._index(work)
        _apply(self._rows, work.changes)
        if work.staged_base == "empty":
            self._staged = {}
        _apply(self._staged, work.staged)
        if work.forget_quarantined:
            self._quarantined = []
        self._quarantined += work.quarantined
        self._saved = work.saved

    def get(self, type: str, key: str) -> bytes | None:
        return self._rows.get(type, {}).get(key)

    def rows(self, type: str) -> list[Row]:
        return _sorted(self._rows.get(type, {}))

    def staged_rows(self, type: str) -> list[Row]:
        return _sorted(self._staged.get(type, {}))

    def lookup(self, type: str, path: str, value: Any) -> Iterable[Row] | None:
        index = self._indexes.get((type, path))
        if index is None or not isinstance(value, Hashable):
            return None
        rows = self._rows.get(type, {})
        return [Row(key, rows[key]) for key in sorted(index.keys(value))]

    def create_index(self, type: str, path: str) -> None:
        if (type, path) not in self._indexes:
            self._indexes[type, path] = index = _Index(path)
            index.rebuild(self._rows.get(type, {}))

    def count(self, type: str) -> int:
        return len(self._rows.get(type, {}))

    def types(self) -> list[str]:
        return sorted(name for name, rows in self._rows.items() if rows)

    def quarantined(self) -> Iterator[Quarantined]:
        return iter(list(self._quarantined))

    def clear(self) -> None:
        indexes = list(self._indexes)
        self.__init__()  # type: ignore[misc]  # forgets all that was ever set here
        for type_, path in indexes:
            self.create_index(type_, path)

    def close(self) -> None:
        """Keep everything: there is nothing to let go of."""

    def _index(self, work: Work) -> None:
        for (type_, _), index in self._indexes.items():
            rows = self._rows.get(type_, {})
            if work.base != "keep":
                index.rebuild(rows)
            for key, data in work.changes.get(type_, {}).items():
                index.move(key, rows.get(key), data)


class _Index:
    """Keys by the value of one member."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._keys: dict[Hashable, set[str]] = {}

    def keys(self, value: Hashable) -> set[str]:
        return self._keys.get(value, set())

    def rebuild(self, rows: dict[str, bytes]) -> None:
        self._keys = {}
        for key, data in rows.items():
            self.move(key, None, data)

    def move(self, key: str, old: bytes | None, new: bytes | None) -> None:
        for data in (old, new):
            value = member(decode_value(data), self._path) if data is not None else None
            # What can't be hashed equals nothing that can be looked up.
            if data is None or not isinstance(value, Hashable):
                continue
            if data is new:
                self._keys.setdefault(value, set()).add(key)
            else:
                keys = self._keys[value]
                keys.discard(key)
                if not keys:
                    del self._keys[value]


def _sorted(rows: dict[str, bytes]) -> list[Row]:
    return [Row(key, data) for key, data in sorted(rows.items())]


def _apply(rows: _Rows, changes: Changes) -> None:
    for type_, entities in changes.items():
        kept = rows.setdefault(type_, {})
        # Most changes set a value, and dictionaries merge faster than a loop.
        kept.update(entities)  # type: ignore[arg-type]  # the removed ones are taken out below
        for key in [key for key, data in entities.items() if data is None]:
            del kept[key]
