"""Collections: which types a stream holds, what their values look like, and how to write them."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar, overload

from msgspec import UNSET, UnsetType

from headwater.errors import InvalidEvent, InvalidValue, SchemaError
from headwater.state.checking import Violation, check
from headwater.state.events import ChangeEvent, Operation, StateEvent, change, control
from headwater.state.validators import AnyValue, Validator, validator_for
from headwater.state.values import decode_value

T = TypeVar("T")

DROP: Final = object()
"""What a fallback returns to drop an event."""

Fallback: TypeAlias = Callable[[Any, str], Any]
"""Given the JSON value that does not fit and the reason: another value, or `DROP`."""

Policy: TypeAlias = Literal["stop", "drop", "quarantine"] | Fallback
"""What a consumer does with a value that does not fit; see `collection`."""

POLICIES: Final = ("stop", "drop", "quarantine")


class CollectionDef(Generic[T]):
    """One type of a stream: builds its events, and says what its values look like."""

    def __init__(
        self,
        validator: Validator[T],
        *,
        type: str,
        key: str | None,
        on_invalid: Policy,
        keys: str | None,
        indexes: Iterable[str],
    ) -> None:
        if not type:
            raise SchemaError("A collection needs a type, such as type='user'.")
        if isinstance(on_invalid, str) and on_invalid not in POLICIES:
            raise SchemaError(
                f"on_invalid={on_invalid!r} can't be used: expected one of {', '.join(POLICIES)}, "
                "or a function."
            )
        self.validator = validator
        self.type = type
        self.key = key
        self.on_invalid: Policy = on_invalid
        self.indexes = tuple(indexes)
        self._keys = re.compile(keys) if keys is not None else None

    def __repr__(self) -> str:
        return f"collection(type={self.type!r}, key={self.key!r})"

    def insert(self, value: T, *, key: str | None = None, **headers: Any) -> ChangeEvent:
        """Build the event that adds an entity; `txid`, `timestamp` and others become headers."""
        return self._set("insert", value, key, UNSET, headers)

    def update(
        self,
        value: T,
        *,
        key: str | None = None,
        old_value: T | UnsetType = UNSET,
        **headers: Any,
    ) -> ChangeEvent:
        """Build the event that replaces an entity."""
        return self._set("update", value, key, old_value, headers)

    def upsert(self, value: T, *, key: str | None = None, **headers: Any) -> ChangeEvent:
        """Build the event that adds or replaces an entity; consumers must know `upsert`."""
        return self._set("upsert", value, key, UNSET, headers)

    def delete(
        self, key: str | None = None, *, old_value: T | UnsetType = UNSET, **headers: Any
    ) -> ChangeEvent:
        """Build the event that removes an entity, named by its key or by what it was."""
        old = self._plain(old_value, key) if old_value is not UNSET else UNSET
        return self._event("delete", key or self._key_of(old), UNSET, old, headers)

    def violation(self, key: str, data: bytes) -> str | None:
        """Say why a value must not be materialised under a key, or nothing."""
        if self._keys is not None and self._keys.fullmatch(key) is None:
            return f"the key does not match {self._keys.pattern}"
        try:
            self.validator.decode(data)
        except ValueError as error:
            return str(error) or "it was refused"
        return None

    @property
    def checks_values(self) -> bool:
        """Whether there is anything to check: any value may fit, under any key."""
        return self._keys is not None or not isinstance(self.validator, AnyValue)

    @property
    def fingerprint(self) -> str:
        """What must be the same for a saved state to be used again."""
        pattern = self._keys.pattern if self._keys is not None else ""
        return f"{self.type}\0{self.validator.fingerprint}\0{pattern}"

    def _set(
        self,
        operation: Operation,
        value: T,
        key: str | None,
        old_value: T | UnsetType,
        headers: dict[str, Any],
    ) -> ChangeEvent:
        plain = self._plain(value, key)
        old = self._plain(old_value, key) if old_value is not UNSET else UNSET
        return self._event(operation, key or self._key_of(plain), plain, old, headers)

    def _event(
        self, operation: Operation, key: str, value: Any, old: Any, headers: dict[str, Any]
    ) -> ChangeEvent:
        txid = headers.pop("txid", UNSET)
        timestamp = headers.pop("timestamp", UNSET)
        event = change(
            operation,
            self.type,
            key,
            value,
            old_value=old,
            txid=UNSET if txid is None else txid,
            timestamp=UNSET if timestamp is None else timestamp,
            headers=headers,
        )
        outcome = check(event)
        if isinstance(outcome, Violation):
            raise InvalidEvent("", outcome.field, outcome.reason)
        if self._keys is not None and self._keys.fullmatch(key) is None:
            raise InvalidValue(self.type, key, f"the key does not match {self._keys.pattern}")
        return event

    def _plain(self, value: Any, key: str | None) -> Any:
        """Give the JSON value, once it is known to fit."""
        try:
            data = self.validator.encode(value)
            self.validator.decode(data)
        except ValueError as error:
            raise InvalidValue(self.type, key or "", str(error)) from None
        return decode_value(data)

    def _key_of(self, plain: Any) -> str:
        found = plain.get(self.key) if isinstance(plain, Mapping) and self.key else None
        if found is None or found == "" or isinstance(found, Mapping | list):
            field = f", or a value with a non-empty '{self.key}'" if self.key else ""
            raise InvalidEvent("", "key", f"is missing: give key={field or '...'}")
        return found if isinstance(found, str) else str(found)


@overload
def collection(
    schema: type[T],
    *,
    type: str,
    key: str | None = None,
    on_invalid: Policy = ...,
    keys: str | None = None,
    indexes: Iterable[str] = (),
) -> CollectionDef[T]: ...


@overload
def collection(
    schema: Any = None,
    *,
    type: str,
    key: str | None = None,
    on_invalid: Policy = ...,
    keys: str | None = None,
    indexes: Iterable[str] = (),
) -> CollectionDef[Any]: ...


def collection(
    schema: Any = None,
    *,
    type: str,
    key: str | None = None,
    on_invalid: Policy = "quarantine",
    keys: str | None = None,
    indexes: Iterable[str] = (),
) -> CollectionDef[Any]:
    """Describe the entities of one type.

    `schema` is what `validator_for` takes. `key` names the member of a value that holds its key.
    `on_invalid` is what a consumer does with a value that does not fit: `quarantine` keeps it
    aside with its reason and offset, `drop` counts it, `stop` stops this collection, and a
    function gives another value or `DROP`. In each case an entity that was there stays as it was,
    and other types go on. `keys` is a pattern that all keys must match. `indexes` are members that
    are looked for often.
    """
    return CollectionDef(
        validator_for(schema),
        type=type,
        key=key,
        on_invalid=on_invalid,
        keys=keys,
        indexes=indexes,
    )


class StreamState(Mapping[str, CollectionDef[Any]]):
    """The collections of a stream by name; also as attributes."""

    def __init__(self, collections: Mapping[str, CollectionDef[Any]]) -> None:
        self._collections = dict(collections)
        self.by_type: dict[str, CollectionDef[Any]] = {}
        names: dict[str, str] = {}
        for name, each in self._collections.items():
            if each.type in names:
                raise SchemaError(
                    f"The type '{each.type}' has two schemas, in '{names[each.type]}' and "
                    f"'{name}': a type has at most one."
                )
            names[each.type] = name
            self.by_type[each.type] = each

    def __getitem__(self, name: str) -> CollectionDef[Any]:
        return self._collections[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._collections)

    def __len__(self) -> int:
        return len(self._collections)

    def __getattr__(self, name: str) -> CollectionDef[Any]:
        try:
            return self._collections[name]
        except KeyError:
            raise AttributeError(f"there is no collection '{name}'") from None

    @property
    def fingerprint(self) -> str:
        """What must be the same for a saved state to be used again."""
        return "\n".join(sorted(each.fingerprint for each in self.by_type.values()))


def define_stream_state(collections: Mapping[str, CollectionDef[Any]]) -> StreamState:
    """Put collections together; each type may be there once."""
    return StreamState(collections)


def new_epoch(events: Iterable[StateEvent]) -> Iterator[StateEvent]:
    """Begin a new epoch, as an incompatible change of schema needs: `reset` and what follows.

    The events are the whole state under the new schema. They stand in a snapshot, so that nobody
    sees a part of it.
    """
    yield control("reset")
    yield control("snapshot-start")
    yield from events
    yield control("snapshot-end")
