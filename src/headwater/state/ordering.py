"""An order over values of any kind, so that mixed or missing members never break a sort."""

from functools import total_ordering
from typing import Any, Final

from headwater.state.paths import member

_RANKS: Final[dict[type, int]] = {bool: 1, int: 1, float: 1, str: 2}


def sort_value(value: Any) -> tuple[int, Any]:
    """Rank a value: nothing first, then numbers, texts, and the rest by its written form."""
    if value is None:
        return (0, 0)
    rank = _RANKS.get(type(value), 3)
    return (rank, value if rank < 3 else repr(value))


@total_ordering
class Descending:
    """A value that sorts the other way round."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Descending) and bool(self.value == other.value)

    def __lt__(self, other: "Descending") -> bool:
        return bool(other.value < self.value)

    __hash__ = None  # type: ignore[assignment]  # it is only ever compared


class Order:
    """An order by members, given as `name` or, descending, `-name`."""

    def __init__(self, *paths: str) -> None:
        self._parts = [(path.removeprefix("-"), path.startswith("-")) for path in paths]

    def __call__(self, row: Any) -> tuple[Any, ...]:
        """Give what a row sorts by."""
        return tuple(
            Descending(sort_value(member(row, path))) if down else sort_value(member(row, path))
            for path, down in self._parts
        )
