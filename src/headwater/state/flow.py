"""Queries as a flow of changes: each step takes how rows changed and gives how its result did.

A change is an id, the row before and the row after; `ABSENT` stands for no row. Every step keeps
only what it needs to answer the next change, so that a change costs what it touches.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final, Literal, TypeAlias

import msgspec

from headwater.state.aggregates import Aggregate
from headwater.state.paths import member

ABSENT: Final = object()
KEY: Final = "@key"
"""The path that stands for an entity's key, which its value need not hold."""

Delta: TypeAlias = tuple[Hashable, Any, Any]
Step: TypeAlias = Callable[[Iterable[Delta]], list[Delta]]


def filtered(wanted: Callable[[Any], bool]) -> Step:
    """Keep the rows that are wanted."""

    def step(deltas: Iterable[Delta]) -> list[Delta]:
        kept = []
        for id_, old, new in deltas:
            before = old if old is not ABSENT and wanted(old) else ABSENT
            after = new if new is not ABSENT and wanted(new) else ABSENT
            if before is not ABSENT or after is not ABSENT:
                kept.append((id_, before, after))
        return kept

    return step


def mapped(function: Callable[[Any], Any]) -> Step:
    """Make another row of each."""

    def step(deltas: Iterable[Delta]) -> list[Delta]:
        return [
            (
                id_,
                ABSENT if old is ABSENT else function(old),
                ABSENT if new is ABSENT else function(new),
            )
            for id_, old, new in deltas
        ]

    return step


class _Emitted:
    """The changes that a step gives, one for each id however often it was touched."""

    def __init__(self) -> None:
        self._deltas: dict[Hashable, tuple[Any, Any]] = {}

    def add(self, id_: Hashable, old: Any, new: Any) -> None:
        first = self._deltas.get(id_)
        self._deltas[id_] = (old if first is None else first[0], new)

    def deltas(self) -> list[Delta]:
        return [
            (id_, old, new)
            for id_, (old, new) in self._deltas.items()
            if not (old is ABSENT and new is ABSENT)
        ]


class Join:
    """Rows of two sides that agree in one member each; with `left`, also rows without a match."""

    def __init__(
        self,
        on: tuple[str, str],
        combine: Callable[[Any, Any], Any],
        how: Literal["inner", "left"],
    ) -> None:
        self._paths = on
        self._combine = combine
        self._keeps_unmatched = how == "left"
        self._sides: tuple[_Side, _Side] = ({}, {})

    def left(self, deltas: Iterable[Delta]) -> list[Delta]:
        """Take changes of the left side."""
        emitted = _Emitted()
        for id_, old, new in deltas:
            for row, is_new in ((old, False), (new, True)):
                if row is ABSENT:
                    continue
                value = self._value(0, id_, row)
                self._place(0, value, id_, row, present=is_new)
                matches: Iterable[tuple[Any, Any]] = self._sides[1].get(value, {}).items()
                if not matches and self._keeps_unmatched:
                    matches = [(None, None)]
                for other, right in matches:
                    self._emit(emitted, (id_, other), row, right, present=is_new)
        return emitted.deltas()

    def right(self, deltas: Iterable[Delta]) -> list[Delta]:
        """Take changes of the right side."""
        emitted = _Emitted()
        for id_, old, new in deltas:
            for row, is_new in ((old, False), (new, True)):
                if row is ABSENT:
                    continue
                value = self._value(1, id_, row)
                matched = bool(self._sides[1].get(value))
                self._place(1, value, id_, row, present=is_new)
                matches = bool(self._sides[1].get(value))
                for other, left in self._sides[0].get(value, {}).items():
                    self._emit(emitted, (other, id_), left, row, present=is_new)
                    if self._keeps_unmatched and matched != matches:
                        self._emit(emitted, (other, None), left, None, present=not matches)
        return emitted.deltas()

    def _emit(
        self, emitted: _Emitted, id_: Hashable, left: Any, right: Any, *, present: bool
    ) -> None:
        row = self._combine(left, right)
        emitted.add(id_, ABSENT if present else row, row if present else ABSENT)

    def _value(self, side: int, id_: Hashable, row: Any) -> Hashable:
        path = self._paths[side]
        value = id_ if path == KEY else member(row, path)
        # What is missing on both sides agrees in nothing.
        return _hashable(value) if value is not None else (side, id_)

    def _place(self, side: int, value: Hashable, id_: Hashable, row: Any, *, present: bool) -> None:
        rows = self._sides[side].setdefault(value, {})
        if present:
            rows[id_] = row
            return
        del rows[id_]
        if not rows:
            del self._sides[side][value]


_Side: TypeAlias = dict[Hashable, dict[Hashable, Any]]


class Group:
    """One row for each value of some members, with aggregates over its rows."""

    def __init__(self, paths: tuple[str, ...], aggregates: dict[str, Aggregate]) -> None:
        self._paths = paths
        self._aggregates = aggregates
        self._groups: dict[Hashable, _GroupState] = {}

    def __call__(self, deltas: Iterable[Delta]) -> list[Delta]:
        """Take changes of rows."""
        before: dict[Hashable, Any] = {}
        for _, old, new in deltas:
            for row, is_new in ((old, False), (new, True)):
                if row is not ABSENT:
                    self._move(row, before, is_new=is_new)
        return [
            (id_, old, self._row(id_))
            for id_, old in before.items()
            if not (old is ABSENT and id_ not in self._groups)
        ]

    def _move(self, row: Any, before: dict[Hashable, Any], *, is_new: bool) -> None:
        values = [member(row, path) for path in self._paths]
        id_ = tuple(map(_hashable, values))
        before.setdefault(id_, self._row(id_))
        group = self._groups.get(id_)
        if group is None:
            states = {name: each.begin() for name, each in self._aggregates.items()}
            group = self._groups[id_] = _GroupState(
                dict(zip(self._paths, values, strict=True)), states
            )
        group.rows += 1 if is_new else -1
        for name, aggregate in self._aggregates.items():
            state = group.states[name]
            value = member(row, aggregate.path) if aggregate.path else row
            state.add(value) if is_new else state.remove(value)
        if group.rows == 0:
            del self._groups[id_]

    def _row(self, id_: Hashable) -> Any:
        group = self._groups.get(id_)
        if group is None:
            return ABSENT
        results = {name: state.result() for name, state in group.states.items()}
        return {**group.values, **results}


class _GroupState:
    """What a group is called, and its aggregates so far."""

    def __init__(self, values: dict[str, Any], states: dict[str, Any]) -> None:
        self.values = values
        self.states = states
        self.rows = 0


class Ordered:
    """The end of a flow: its rows in order."""

    def __init__(self, order: Callable[[Any], tuple[Any, ...]]) -> None:
        self._order = order
        self._places: list[tuple[tuple[Any, ...], tuple[str, ...], Hashable]] = []
        self._rows: dict[Hashable, Any] = {}

    def take(self, deltas: Iterable[Delta]) -> None:
        """Put rows in their places."""
        for id_, _, new in deltas:
            if id_ in self._rows:
                place = self._place(id_, self._rows.pop(id_))
                del self._places[bisect_left(self._places, place[:2], key=lambda each: each[:2])]
            if new is not ABSENT:
                self._rows[id_] = new
                insort(self._places, self._place(id_, new), key=lambda each: each[:2])

    def rows(self, limit: int | None) -> list[Any]:
        """Give the first rows."""
        return [self._rows[id_] for _, _, id_ in self._places[:limit]]

    def _place(self, id_: Hashable, row: Any) -> tuple[tuple[Any, ...], tuple[str, ...], Hashable]:
        return (self._order(row), tuple(_flat(id_)), id_)


def _flat(id_: Hashable) -> Iterable[str]:
    if isinstance(id_, tuple):
        for part in id_:
            yield from _flat(part)
    else:
        yield id_ if isinstance(id_, str) else repr(id_)


def _hashable(value: Any) -> Hashable:
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    return msgspec.json.encode(value, order="sorted")
