"""A collection of a live database: its entities as values, and their changes."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from msgspec import Struct

from headwater.state.backend import Quarantined, Row
from headwater.state.conditions import Condition, condition
from headwater.state.ordering import Order
from headwater.state.queries import Query
from headwater.state.schemas import CollectionDef
from headwater.state.view import RowChange

if TYPE_CHECKING:
    from headwater.state.engine import Engine

T = TypeVar("T")


class Change(Struct, Generic[T], frozen=True):
    """How one entity has changed."""

    key: str
    operation: Literal["insert", "update", "delete"]
    old: T | None
    new: T | None


class Collection(Generic[T]):
    """The entities of one type, as of the last commit and what is done over it."""

    def __init__(self, engine: "Engine", name: str, definition: CollectionDef[T]) -> None:
        self._engine = engine
        self.name = name
        self.definition = definition
        self.type = definition.type

    def __repr__(self) -> str:
        return f"Collection({self.name!r}, type={self.type!r})"

    def get(self, key: str, default: Any = None) -> T | Any:
        """Give the value of an entity; `default` where there is none, since a value may be null."""
        self._check()
        data = self._engine.view.get(self.type, key)
        return default if data is None else self.decode(data)

    def all(self) -> dict[str, T]:
        """Give every value, by key."""
        return {key: self.decode(data) for key, data in self.raw_rows()}

    def where(
        self,
        wanted: Condition | Callable[[T], bool] | None = None,
        *,
        order_by: str | tuple[str, ...] = (),
        limit: int | None = None,
        **equals: Any,
    ) -> list[T]:
        """Give the values that meet a condition, and whose members equal the values given.

        An index on one of those members is used. `order_by` names members, `-name` for the
        greatest first; without it keys decide.
        """
        test = condition(wanted, equals)
        rows = self._candidates(test)
        found = [value for value in (self.decode(data) for _, data in rows) if test(value)]
        if order_by:
            found.sort(key=Order(*((order_by,) if isinstance(order_by, str) else order_by)))
        return found[:limit]

    def query(self) -> Query:
        """Begin a query with these entities."""
        return Query(self._engine, self, self.name)

    def subscribe(self, callback: Callable[[list[Change[T]]], None]) -> Callable[[], None]:
        """Call back with the changes of each commit, one commit at a time; gives the way to end it.

        What the callback raises is logged, and the database goes on.
        """

        def tell(changes: dict[str, list[RowChange]]) -> None:
            callback([self._change(each) for each in changes[self.type]])

        return self._engine.watch([self.type], tell)

    def quarantined(self) -> list[Quarantined]:
        """Give what was kept aside because its value did not fit."""
        return [each for each in self._engine.quarantined() if each.type == self.type]

    def decode(self, data: bytes) -> T:
        """Read a value that was kept."""
        return self.definition.validator.decode(data)

    def raw_rows(self) -> list[Row]:
        """Give every entity as it is kept."""
        self._check()
        return self._engine.view.rows(self.type)

    def __len__(self) -> int:
        self._check()
        return self._engine.view.count(self.type)

    def __contains__(self, key: object) -> bool:
        self._check()
        return isinstance(key, str) and self._engine.view.get(self.type, key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter([key for key, _ in self.raw_rows()])

    def _check(self) -> None:
        self._engine.check_readable(self.type)

    def _candidates(self, test: Condition) -> list[Row]:
        self._check()
        for path, value in test.equals.items():
            found = self._engine.view.lookup(self.type, path, value)
            if found is not None:
                return found
        return self._engine.view.rows(self.type)

    def _change(self, row: RowChange) -> Change[T]:
        return Change(
            row.key,
            row.operation,
            None if row.old is None else self.decode(row.old),
            None if row.new is None else self.decode(row.new),
        )
