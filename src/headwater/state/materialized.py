"""State in memory: the value of every entity, by type and key (STATE 6)."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import UNSET

from headwater.errors import InvalidEvent
from headwater.state.checking import Violation
from headwater.state.decoding import decode_pieces
from headwater.state.events import ChangeEvent
from headwater.state.values import decode_value, encode_value


class MaterializedState:
    """Applies changes, and nothing else: controls are for whoever reads the stream.

    A value is kept as the JSON that it is, and decoded when it is asked for: that takes a fraction
    of the memory of decoded values, and none of the time for those that nobody looks at.
    """

    def __init__(self) -> None:
        self._types: dict[str, dict[str, bytes]] = {}

    def apply(self, event: ChangeEvent) -> None:
        """Set or remove one entity."""
        if event.headers.operation == "delete":
            self._types.get(event.type, {}).pop(event.key, None)
            return
        if event.value is UNSET:
            raise InvalidEvent("", "value", f"is missing, and {event.headers.operation} sets it")
        self._types.setdefault(event.type, {})[event.key] = encode_value(event.value)

    def apply_batch(self, events: Iterable[ChangeEvent]) -> None:
        """Apply changes in the order given, as so many calls of `apply`."""
        for event in events:
            self.apply(event)

    def apply_json(self, data: bytes) -> list[tuple[int, Violation]]:
        """Apply a JSON array of events as it comes from a stream, the quickest way.

        Controls are passed over. What breaks a rule is not applied but returned, with its place in
        the array.
        """
        types = self._types
        found: list[tuple[int, Violation]] = []
        before = 0
        for part in decode_pieces(data):
            for event in part.events:
                operation = event.headers.operation
                if operation is UNSET:
                    continue
                entities = types.get(event.type)
                if entities is None:
                    entities = types[event.type] = {}
                if operation == "delete":
                    entities.pop(event.key, None)
                else:
                    entities[event.key] = bytes(event.value)  # type: ignore[arg-type]  # checked
            found += (
                (before + index, violation) for index, (violation, _) in part.violations.items()
            )
            before += len(part.events)
        return found

    def get(self, type: str, key: str, default: Any = None) -> Any:
        """Give the value of an entity; `default` where there is none, since a value may be null."""
        data = self._types.get(type, {}).get(key)
        return default if data is None else decode_value(data)

    def get_type(self, type: str) -> Mapping[str, Any]:
        """View all entities of a type, by key; the view follows the state."""
        return _Entities(self, type)

    def clear(self) -> None:
        """Forget everything, as after a reset."""
        self._types.clear()

    @property
    def types(self) -> list[str]:
        """The types that have had an entity since the last `clear`."""
        return list(self._types)

    @property
    def type_count(self) -> int:
        """How many types there are."""
        return len(self._types)

    def __contains__(self, entity: object) -> bool:
        match entity:
            case (str(type), str(key)):
                return key in self._types.get(type, {})
        return False

    def __len__(self) -> int:
        return sum(map(len, self._types.values()))


class _Entities(Mapping[str, Any]):
    """The entities of one type, decoded as they are looked at."""

    def __init__(self, state: MaterializedState, type: str) -> None:
        self._state = state
        self._type = type

    def _values(self) -> dict[str, bytes]:
        return self._state._types.get(self._type, {})

    def __getitem__(self, key: str) -> Any:
        return decode_value(self._values()[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._values())

    def __len__(self) -> int:
        return len(self._values())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self)!r})"
