"""How modes look into messages: which fields they take, and of which types.

Fields become `msgspec` types, so that one pass parses, checks and takes apart a whole batch. What
is only carried along (values of changes, data of events) stays as it was written.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Final, TypedDict

import msgspec
import pyarrow as pa
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from pyspark.sql import types as t

from headwater.errors import BadOption
from headwater.state.checking import Violation, check
from headwater.state.events import Control, ControlEvent, NonEmpty, Operation
from headwater.state.timestamps import is_timestamp

CORRUPT: Final = "_corrupt"
_NO_TEXT: Final = re.compile(rb'[^"]|""')
_OUTSIDE: Final = ("stream", "offset", CORRUPT)

_SIMPLE: Final[dict[type[t.DataType], Any]] = {
    t.StringType: str,
    t.BooleanType: bool,
    t.ByteType: Annotated[int, Meta(ge=-(2**7), lt=2**7)],
    t.ShortType: Annotated[int, Meta(ge=-(2**15), lt=2**15)],
    t.IntegerType: Annotated[int, Meta(ge=-(2**31), lt=2**31)],
    t.LongType: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)],
    t.FloatType: float,
    t.DoubleType: float,
    t.DecimalType: Decimal,
    t.DateType: date,
    t.TimestampType: datetime,
    t.TimestampNTZType: Annotated[datetime, Meta(tz=False)],
    t.BinaryType: bytes,
}


class Shape:
    """How to parse messages, and which columns come of them."""

    def __init__(
        self,
        kind: Any,
        getters: Mapping[str, Callable[[Any], Any]],
        complaint: Callable[[Any], str | None] | None = None,
        *,
        strict: bool = True,
    ) -> None:
        self._all = msgspec.json.Decoder(list[kind], strict=strict)
        self._one = msgspec.json.Decoder(kind, strict=strict)
        self._getters = getters
        self._complaint = complaint

    def parse_all(self, data: bytes) -> list[Any]:
        """Parse a JSON array of messages."""
        return self._all.decode(data)

    def parse_one(self, data: bytes) -> Any:
        """Parse one message."""
        return self._one.decode(data)

    def columns(self, parsed: Sequence[Any], schema: pa.Schema) -> dict[str, pa.Array]:
        """Make the columns of a schema; what could not be parsed is null."""
        return {
            name: _array([None if row is None else get(row) for row in parsed], schema, name)
            for name, get in self._getters.items()
            if name in schema.names
        }

    def complaints(self, parsed: Sequence[Any], schema: pa.Schema) -> dict[int, str]:
        """Find what parsed, but is still not what the mode reads."""
        found: dict[int, str] = {}
        if self._complaint is not None:
            for at, row in enumerate(parsed):
                reason = None if row is None else self._complaint(row)
                if reason is not None:
                    found[at] = reason
        for name, get in self._getters.items():
            if name in schema.names and pa.types.is_decimal(schema.field(name).type):
                for at, row in enumerate(parsed):
                    reason = None if row is None else _misfit(get(row), schema.field(name))
                    if reason is not None:
                        found[at] = reason
        return found


def _array(values: list[Any], schema: pa.Schema, name: str) -> pa.Array:
    kind = schema.field(name).type
    if pa.types.is_string(kind):
        # Texts of their own and JSON that is carried along: both are UTF-8 already.
        return pa.array(values, pa.binary()).view(pa.string())
    return pa.array(values, kind)


def _misfit(value: Any, field: pa.Field) -> str | None:
    try:
        pa.scalar(value, field.type)
    except pa.ArrowInvalid as error:
        return f"{error} - at `$.{field.name}`"
    return None


# A user's schema


class _SchemaShape(Shape):
    """A shape that is pickled as the schema that it came from."""

    def __init__(self, schema: t.StructType, outside: tuple[str, ...] = _OUTSIDE) -> None:
        self._schema = schema
        self._outside = outside
        fields = [field for field in schema if field.name not in outside]
        names = {f"f{at}": field.name for at, field in enumerate(fields)}
        kind = msgspec.defstruct(
            "Message",
            [_field(name, field) for name, field in zip(names, fields, strict=True)],
            rename=names,
            kw_only=True,
        )
        super().__init__(kind, {field: _attribute(name) for name, field in names.items()})

    def __reduce__(self) -> Any:
        return _SchemaShape, (self._schema, self._outside)


def shape_of_schema(schema: t.StructType) -> Shape:
    """Read messages as objects with the fields of a schema."""
    for name in ("stream", "offset", CORRUPT):
        if name in schema.fieldNames() and not isinstance(schema[name].dataType, t.StringType):
            raise BadOption("schema", f"'{name}' is not a field of messages, and is a string")
    return _SchemaShape(schema)


def shape_of_values(schema: t.StructType) -> Shape:
    """Read JSON values as objects with the fields of a schema, whatever they are called."""
    return _SchemaShape(schema, ())


def _attribute(name: str) -> Callable[[Any], Any]:
    return lambda row: getattr(row, name)


def _field(name: str, field: t.StructField) -> Any:
    kind = _json_type(field.dataType, field.name)
    return (name, kind | None, None) if field.nullable else (name, kind)


def _json_type(kind: t.DataType, where: str) -> Any:
    if isinstance(kind, t.ArrayType):
        return list[_json_type(kind.elementType, where) | None]  # type: ignore[misc] # made here
    if isinstance(kind, t.MapType):
        if not isinstance(kind.keyType, t.StringType):
            raise BadOption("schema", f"'{where}' is a map, and JSON has text keys only")
        return dict[str, _json_type(kind.valueType, where) | None]  # type: ignore[misc] # made here
    if isinstance(kind, t.StructType):
        fields = {one.name: _json_type(one.dataType, where) | None for one in kind}
        return TypedDict("Nested", fields, total=False)  # type: ignore[operator] # made here
    simple = _SIMPLE.get(type(kind))
    if simple is None:
        raise BadOption(
            "schema", f"'{where}' is {kind.simpleString()}: read it as string and convert it"
        )
    return simple


# State


class _ChangeHeaders(Struct, gc=False):
    operation: Operation | UnsetType = UNSET
    control: Control | UnsetType = UNSET
    txid: NonEmpty | UnsetType = UNSET
    timestamp: str | UnsetType = UNSET
    offset: Raw | UnsetType = UNSET


class _ChangeEvent(Struct, gc=False):
    headers: _ChangeHeaders
    type: NonEmpty | UnsetType = UNSET
    key: NonEmpty | UnsetType = UNSET
    value: Raw | UnsetType = UNSET
    old_value: Raw | UnsetType = UNSET


class _Carried(Struct):
    value: Raw | UnsetType = UNSET
    old_value: Raw | UnsetType = UNSET


_CARRIED: Final = msgspec.json.Decoder(_Carried)


def _text(raw: Raw | UnsetType) -> bytes | None:
    return None if raw is UNSET else bytes(raw)


def _given(text: str | UnsetType) -> str | None:
    return None if text is UNSET else text


def _change_complaint(event: _ChangeEvent) -> str | None:
    """Tell what the types don't: the rules are those of `headwater.state.checking`."""
    headers = event.headers
    if headers.operation is UNSET:
        if headers.control is UNSET:
            return "headers: has neither an operation nor a control"
        if headers.offset is not UNSET and _NO_TEXT.match(bytes(headers.offset)):
            return "headers.offset: must be a text that is not empty"
        return None
    if headers.control is not UNSET:
        return "headers: has both an operation and a control, so it is neither"
    if event.type is UNSET or event.key is UNSET:
        return "a change needs a type and a key"
    if event.value is UNSET and headers.operation != "delete":
        return f"value: is missing, and {headers.operation} sets it"
    if headers.timestamp is not UNSET and not is_timestamp(headers.timestamp):
        return "headers.timestamp: must be an RFC 3339 timestamp, such as 2025-01-15T10:30:00Z"
    return None


# Runs


class _RunEvent(Struct, gc=False, rename="camel"):
    run_id: str
    event_type: str
    run_seq: int | None = None
    event_id: str | None = None
    step_id: str | None = None
    logical_attempt_id: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    engine_attempt_id: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    idempotency_key: str | None = None
    emitted_at: datetime | None = None
    persisted_at: datetime | None = None
    caused_by_signal_id: str | None = None
    parent_event_id: str | None = None
    adapter_version: str | None = None
    contract_version: str | None = None
    engine_run_ref: Raw | UnsetType = UNSET
    event_data: Raw | UnsetType = UNSET


class _Events(Struct, frozen=True):
    """A mode whose messages have known fields."""

    columns: tuple[tuple[str, str], ...]
    shape: Callable[[], Shape]


class _StateShape(Shape):
    def __init__(self) -> None:
        super().__init__(
            _ChangeEvent,
            {
                "type": lambda event: _given(event.type),
                "key": lambda event: _given(event.key),
                "value": lambda event: _text(event.value),
                "old_value": lambda event: _text(event.old_value),
                "operation": lambda event: _given(event.headers.operation),
                "txid": lambda event: _given(event.headers.txid),
                "timestamp": lambda event: _given(event.headers.timestamp),
                "control": lambda event: _given(event.headers.control),
            },
            _change_complaint,
        )

    def parse_one(self, data: bytes) -> Any:
        """Read one message by all the rules: also what has none may have failed the decoder."""
        outcome = check(data)
        if isinstance(outcome, Violation):
            raise msgspec.ValidationError(str(outcome))
        if isinstance(outcome, ControlEvent):
            return _ChangeEvent(_ChangeHeaders(control=outcome.headers.control))
        told, texts = outcome.headers, _CARRIED.decode(data)
        headers = _ChangeHeaders(told.operation, txid=told.txid, timestamp=told.timestamp)
        return _ChangeEvent(headers, outcome.type, outcome.key, texts.value, texts.old_value)

    def __reduce__(self) -> Any:
        return _StateShape, ()


class _RunsShape(Shape):
    def __init__(self) -> None:
        carried = {"engine_run_ref", "event_data"}
        plain = [name for name in _RunEvent.__struct_fields__ if name not in carried]
        getters: dict[str, Callable[[Any], Any]] = {name: _attribute(name) for name in plain}
        getters["engine_run_ref"] = lambda event: _text(event.engine_run_ref)
        getters["event_data"] = lambda event: _text(event.event_data)
        # Attempts are numbers that are written as texts.
        super().__init__(_RunEvent, getters, strict=False)

    def __reduce__(self) -> Any:
        return _RunsShape, ()


EVENTS: Final = {
    "state": _Events(
        (
            ("type", "string"),
            ("key", "string"),
            ("value", "string"),
            ("old_value", "string"),
            ("operation", "string"),
            ("txid", "string"),
            ("timestamp", "string"),
            ("control", "string"),
        ),
        _StateShape,
    ),
    "runs": _Events(
        (
            ("run_id", "string"),
            ("run_seq", "long"),
            ("event_id", "string"),
            ("event_type", "string"),
            ("step_id", "string"),
            ("logical_attempt_id", "integer"),
            ("engine_attempt_id", "integer"),
            ("idempotency_key", "string"),
            ("emitted_at", "timestamp"),
            ("persisted_at", "timestamp"),
            ("caused_by_signal_id", "string"),
            ("parent_event_id", "string"),
            ("adapter_version", "string"),
            ("contract_version", "string"),
            ("engine_run_ref", "string"),
            ("event_data", "string"),
        ),
        _RunsShape,
    ),
}
"""The modes whose messages have known fields."""
