"""Queries over collections: filter, join, group, order and limit, once or live."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from headwater.state.aggregates import Aggregate
from headwater.state.conditions import Condition, condition
from headwater.state.flow import ABSENT, Delta, Group, Join, Ordered, Step, filtered, mapped
from headwater.state.ordering import Order
from headwater.state.paths import member

if TYPE_CHECKING:
    from headwater.state.collections import Collection
    from headwater.state.engine import Engine

Part: TypeAlias = tuple[Literal["step"], Callable[[], Step]] | tuple[Literal["join"], "_JoinWith"]


class _JoinWith(Struct, frozen=True):
    collection: Any
    name: str
    on: tuple[str, str]
    how: Literal["inner", "left"]
    first: bool
    left_name: str


class Query(Struct, frozen=True):
    """A question about collections. Each method gives a new query; `run` or `live` answers it.

    Before a join, a row is a value. After it, a row is a dict with the values of the collections by
    their names, and members are named through them: `users.name`. The path `@key` is the key.
    """

    engine: Any
    source: Any
    name: str
    parts: tuple[Any, ...] = ()
    order: tuple[str, ...] = ()
    at_most: int | None = None

    def where(
        self, wanted: Condition | Callable[[Any], bool] | None = None, **equals: Any
    ) -> "Query":
        """Keep the rows that meet a condition, and whose members equal the values given."""
        test = condition(wanted, equals)
        return self._with(("step", lambda: filtered(test)))

    def join(
        self,
        other: "Collection[Any]",
        *,
        on: tuple[str, str],
        how: Literal["inner", "left"] = "inner",
    ) -> "Query":
        """Put rows together with those of another collection that agree in a member.

        `on` names the member here and the member there. With `left`, rows without a match stay,
        with None in place of the other value.
        """
        first = not any(kind == "join" for kind, _ in self.parts)
        joined = _JoinWith(other, other.name, on, how, first, self.name)
        return self._with(("join", joined))

    def group_by(self, *paths: str, **aggregates: Aggregate) -> "Query":
        """Make one row for each value of some members, with aggregates by name."""
        return self._with(("step", lambda: Group(paths, aggregates)))

    def select(self, *paths: str) -> "Query":
        """Keep only some members of each row."""
        return self._with(
            ("step", lambda: mapped(lambda row: {path: member(row, path) for path in paths}))
        )

    def order_by(self, *paths: str) -> "Query":
        """Sort by members; `-name` sorts the greatest first. Without this, keys decide."""
        return replace(self, order=paths)

    def limit(self, count: int) -> "Query":
        """Give the first rows only."""
        if count < 0:
            raise ValueError(f"a limit of {count} can't be used: expected 0 or more")
        return replace(self, at_most=count)

    def run(self) -> list[Any]:
        """Answer once, from the state of this moment."""
        return LiveQuery(self, None).rows

    def live(self, on_change: Callable[[list[Any]], None] | None = None) -> "LiveQuery":
        """Answer now and whenever the answer changes; each change costs what it touches."""
        engine: Engine = self.engine
        with engine.view.still():
            query = LiveQuery(self, on_change)
            query.watch(engine)
        return query

    def _with(self, part: Any) -> "Query":
        return replace(self, parts=(*self.parts, part))


class LiveQuery:
    """The answer to a query, kept up to date until `close`."""

    def __init__(self, query: Query, on_change: Callable[[list[Any]], None] | None) -> None:
        self._limit = query.at_most
        self._on_change = on_change
        self._sink = Ordered(Order(*query.order))
        self._inputs: dict[str, list[Callable[[list[Delta]], list[Delta]]]] = {}
        self._decoders: dict[str, Callable[[bytes], Any]] = {}
        self._unwatch: Callable[[], None] | None = None
        self._error: Exception | None = None
        self._build(query)
        self._shown = self._sink.rows(self._limit)

    @property
    def rows(self) -> list[Any]:
        """The rows as of the last commit. What a condition or function raised is raised here."""
        if self._error is not None:
            raise self._error
        return list(self._shown)

    def watch(self, engine: "Engine") -> None:
        """Follow the commits of a database."""
        self._unwatch = engine.watch(self._inputs, self._commit)

    def close(self) -> None:
        """Stop following."""
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    def _build(self, query: Query) -> None:
        chain: list[Step] = []
        self._input(query.source, chain)
        for kind, part in query.parts:
            if kind == "step":
                chain.append(part())
                continue
            chain = self._join(part, chain)
        collections = {query.source.type: query.source}
        collections |= {
            each.collection.type: each.collection for kind, each in query.parts if kind == "join"
        }
        for type_, collection in collections.items():
            self._decoders[type_] = collection.decode
            rows = collection.raw_rows()
            self._feed(type_, [(key, ABSENT, collection.decode(data)) for key, data in rows])

    def _join(self, part: _JoinWith, left: list[Step]) -> list[Step]:
        name, other = part.left_name, part.name

        def combine(row: Any, right: Any) -> dict[str, Any]:
            return {name: row, other: right} if part.first else {**row, other: right}

        join = Join(part.on, combine, part.how)
        after: list[Step] = []
        left.append(join.left)
        left.append(lambda deltas: _through(after, list(deltas)))
        right: list[Step] = [join.right, lambda deltas: _through(after, list(deltas))]
        self._input(part.collection, right)
        return after

    def _input(self, collection: Any, chain: list[Step]) -> None:
        steps = self._inputs.setdefault(collection.type, [])
        steps.append(lambda deltas: _through(chain, deltas))

    def _feed(self, type_: str, deltas: list[Delta]) -> bool:
        changed = False
        for chain in self._inputs[type_]:
            out = chain(deltas)
            self._sink.take(out)
            changed = changed or bool(out)
        return changed

    def _commit(self, changes: Mapping[str, Iterable[Any]]) -> None:
        if self._error is not None:
            return
        try:
            changed = False
            for type_, rows in changes.items():
                decode = self._decoders[type_]
                deltas: list[Delta] = [
                    (
                        row.key,
                        ABSENT if row.old is None else decode(row.old),
                        ABSENT if row.new is None else decode(row.new),
                    )
                    for row in rows
                ]
                changed = self._feed(type_, deltas) or changed
        except Exception as error:  # noqa: BLE001 - of the application's functions, told in `rows`
            self._error = error
            return
        if not changed:
            return
        shown = self._sink.rows(self._limit)
        if shown != self._shown:
            self._shown = shown
            if self._on_change is not None:
                self._on_change(list(shown))


def _through(chain: list[Step], deltas: list[Delta]) -> list[Delta]:
    for step in chain:
        deltas = step(deltas)
        if not deltas:
            break
    return deltas
