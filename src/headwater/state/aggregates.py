"""Aggregates over the rows of a group, which can also take a row away again."""

from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from headwater.state.ordering import sort_value


class Running(Protocol):
    """An aggregate of the rows so far."""

    def add(self, value: Any) -> None:
        """Take a value in."""
        ...

    def remove(self, value: Any) -> None:
        """Take a value away that was taken in before."""
        ...

    def result(self) -> Any:
        """Give the aggregate."""
        ...


class Aggregate:
    """Which aggregate, and of which member."""

    def __init__(self, begin: Callable[[], Running], path: str = "") -> None:
        self.begin = begin
        self.path = path


class _Count:
    def __init__(self) -> None:
        self._count = 0

    def add(self, value: Any) -> None:  # noqa: ARG002 - rows count, whatever they hold
        self._count += 1

    def remove(self, value: Any) -> None:  # noqa: ARG002 - likewise
        self._count -= 1

    def result(self) -> int:
        return self._count


class _Values:
    """Every value with how often it is there, so that the least can go and the next is known."""

    def __init__(self, result: Callable[[Counter[Any]], Any]) -> None:
        self._values: Counter[Any] = Counter()
        self._result = result

    def add(self, value: Any) -> None:
        if isinstance(value, int | float | str):
            self._values[value] += 1

    def remove(self, value: Any) -> None:
        if isinstance(value, int | float | str):
            self._values[value] -= 1
            if not self._values[value]:
                del self._values[value]

    def result(self) -> Any:
        return self._result(self._values)


class _Sum:
    def __init__(self) -> None:
        self.total: float = 0
        self.count = 0

    def add(self, value: Any) -> None:
        if isinstance(value, int | float):
            self.total += value
            self.count += 1

    def remove(self, value: Any) -> None:
        if isinstance(value, int | float):
            self.total -= value
            self.count -= 1

    def result(self) -> Any:
        return self.total if self.count else 0


class _Average(_Sum):
    def result(self) -> Any:
        return self.total / self.count if self.count else None


def count() -> Aggregate:
    """Count the rows."""
    return Aggregate(_Count)


def sum_of(path: str) -> Aggregate:
    """Add up a member; what is no number is left out."""
    return Aggregate(_Sum, path)


def average(path: str) -> Aggregate:
    """Average a member; None where no row has a number there."""
    return Aggregate(_Average, path)


def smallest(path: str) -> Aggregate:
    """Find the least value of a member."""
    return Aggregate(lambda: _Values(lambda held: min(held, key=sort_value, default=None)), path)


def largest(path: str) -> Aggregate:
    """Find the greatest value of a member."""
    return Aggregate(lambda: _Values(lambda held: max(held, key=sort_value, default=None)), path)
