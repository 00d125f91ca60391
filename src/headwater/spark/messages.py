"""How modes look into messages: which fields they take, and of which types.

Fields become `msgspec` types, so that one pass parses, checks and takes apart a whole batch. What
is only carried along (values of changes, data of events) stays as it was written.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Final, NotRequired, Required, TypedDict

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta, Raw, Struct
from pyspark.sql import types as t

from headwater.errors import BadOption
from headwater.spark.arrays import ABSENT, Values, array_of, carried, field_name, values_at
from headwater.spark.arrow_json import ArrowReader, is_plain, numbers_in
from headwater.spark.variants import holds_variants

CORRUPT: Final = "_corrupt"
_OUTSIDE: Final = ("stream", "offset", CORRUPT)
_NO_ROOM: Final = (pa.ArrowInvalid, OverflowError)

_Long = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]

_SIMPLE: Final[dict[type[t.DataType], Any]] = {
    t.StringType: str,
    t.BooleanType: bool,
    t.ByteType: Annotated[int, Meta(ge=-(2**7), lt=2**7)],
    t.ShortType: Annotated[int, Meta(ge=-(2**15), lt=2**15)],
    t.IntegerType: Annotated[int, Meta(ge=-(2**31), lt=2**31)],
    t.LongType: _Long,
    t.FloatType: float,
    t.DoubleType: float,
    t.DecimalType: Decimal,
    t.DateType: date,
    t.TimestampType: datetime,
    t.TimestampNTZType: Annotated[datetime, Meta(tz=False)],
    t.BinaryType: bytes,
}


_WHOLE_VARIANTS: Final = (
    "only whole messages are read as variants, in mode 'raw' with the option valueType 'variant'; "
    "variant_get takes fields out of them"
)
_PARSED_VARIANTS: Final = (
    "leave the type without a schema, so that its values stay JSON, and read them with parse_json"
)
"""What to do instead, for messages and for values of changes."""


class Shape:
    """How to parse messages, and which columns come of them."""

    part_bytes: int = 1 << 30
    """How much to take apart at a time."""
    carried: frozenset[str] = frozenset()
    """The columns of JSON that stays as it was written."""
    checked: frozenset[str] = frozenset()
    """The columns, all of text, that `broken_rules` looks at."""
    arrow: ArrowReader | None = None
    """What makes columns sooner where all messages fit, if the fields are of plain types."""

    def __init__(
        self, kind: type[Struct], paths: Mapping[str, str], *, strict: bool = True
    ) -> None:
        array: Any = list[kind]  # type: ignore[valid-type] # made from a schema
        self._all = msgspec.json.Decoder(array, strict=strict)
        self._one = msgspec.json.Decoder(kind, strict=strict)
        self._values = {name: values_at(path) for name, path in paths.items()}
        self._blank = _blank(
            kind, {path.partition(".")[0] for path in paths.values() if "." in path}
        )

    def parse_all(self, data: bytes) -> list[Any]:
        """Parse a JSON array of messages."""
        parsed: list[Any] = self._all.decode(data)
        return parsed

    def parse_one(self, data: bytes) -> Any:
        """Parse one message."""
        return self._one.decode(data)

    def columns(self, parsed: Sequence[Any], schema: pa.Schema) -> dict[str, pa.Array]:
        """Make the columns of a schema; what could not be parsed is null."""
        rows = parsed
        if None in parsed:
            rows = [self._blank if row is None else row for row in parsed]
        return {
            name: self._column(name, values(rows), schema)
            for name, values in self._values.items()
            if name in schema.names or name in self.checked
        }

    def _column(self, name: str, values: list[Any], schema: pa.Schema) -> pa.Array:
        if name in self.carried:
            return carried(values)
        return array_of(values, pa.string() if name in self.checked else schema.field(name).type)

    def complaints(self, parsed: Sequence[Any], schema: pa.Schema) -> dict[int, str]:
        """Find what parsed, but has no room in its column."""
        found: dict[int, str] = {}
        rows = [row for row in parsed if row is not None]
        for name, values in self._values.items():
            if name in schema.names and _is_bounded(schema.field(name).type):
                try:
                    self._column(name, values(rows), schema)
                except _NO_ROOM:
                    found |= self._misfits(name, values, parsed, schema)
        return found

    def _misfits(
        self, name: str, values: Callable[[Values], list[Any]], parsed: Values, schema: pa.Schema
    ) -> dict[int, str]:
        found: dict[int, str] = {}
        for at, row in enumerate(parsed):
            try:
                self._column(name, [] if row is None else values([row]), schema)
            except _NO_ROOM as error:
                found[at] = f"{error} - at `$.{name}`"
        return found

    def broken_rules(
        self,
        columns: Mapping[str, pa.Array],  # noqa: ARG002 - for modes that have rules
    ) -> dict[int, str]:
        """Find what parsed, but is still not what the mode reads."""
        return {}


_BOUNDED: Final = (pa.types.is_decimal, pa.types.is_timestamp, pa.types.is_float32)


def _is_bounded(kind: pa.DataType) -> bool:
    """Tell a type that has not room for all that its Python type holds."""
    inner = [kind.field(at).type for at in range(kind.num_fields)]
    is_bounded = any(is_one(kind) for is_one in _BOUNDED)
    return is_bounded or any(map(_is_bounded, inner))


def _blank(kind: type[Struct], entered: Collection[str] = ()) -> Struct:
    """Make what holds nothing; only the objects that columns are taken out of are there."""
    blanks: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        nothing = ABSENT if field.default is ABSENT else None
        blanks[field.name] = _blank(field.type) if field.name in entered else nothing
    return kind(**blanks)


# A user's schema


class _SchemaShape(Shape):
    """A shape that is pickled as the schema that it came from."""

    part_bytes = 256 * 1024  # the objects of so much stay in the cache of a core

    def __init__(self, schema: t.StructType, outside: tuple[str, ...] = _OUTSIDE) -> None:
        self._schema = schema
        self._outside = outside
        fields = [field for field in schema if field.name not in outside]
        for field in fields:
            if holds_variants(field.dataType):
                advice = _WHOLE_VARIANTS if outside else _PARSED_VARIANTS
                raise BadOption("schema", f"'{field.name}' is or holds a variant: {advice}")
        kinds = [_json_type(field.dataType, field.name) for field in fields]
        kind = _class_of("Message", fields, kinds)
        super().__init__(kind, {field.name: field_name(at) for at, field in enumerate(fields)})
        if outside and is_plain(t.StructType(fields)):
            self.arrow = ArrowReader([field.name for field in fields], _numbers_of(fields))

    def __reduce__(self) -> Any:
        return _SchemaShape, (self._schema, self._outside)


def shape_of_schema(schema: t.StructType) -> Shape:
    """Read messages as objects with the fields of a schema."""
    for name in ("stream", "offset", CORRUPT):
        if name in schema.fieldNames() and not isinstance(schema[name].dataType, t.StringType):
            raise BadOption("schema", f"'{name}' is not a field of messages, and is a string")
    required = [field.name for field in schema if not field.nullable and field.name not in _OUTSIDE]
    if CORRUPT in schema.fieldNames() and required:
        what = f"'{required[0]}' is NOT NULL, but null beside a text in '{CORRUPT}'"
        raise BadOption("schema", f"{what}: let it be null, and ask whether '{CORRUPT}' is")
    return _SchemaShape(schema)


def shape_of_values(schema: t.StructType) -> Shape:
    """Read JSON values as objects with the fields of a schema, whatever they are called."""
    return _SchemaShape(schema, ())


def _numbers_of(fields: list[t.StructField]) -> "msgspec.json.Decoder[list[Any]] | None":
    numbers = numbers_in(t.StructType(fields))
    if numbers is None:
        return None
    array: Any = list[_json_type(numbers, "")]  # type: ignore[misc] # made from a schema
    return msgspec.json.Decoder(array)


def _class_of(name: str, fields: Sequence[t.StructField], kinds: Sequence[Any]) -> type[Struct]:
    """Make the class of objects with so many fields; those that are never null are required."""
    made: list[Any] = []
    for at, (field, kind) in enumerate(zip(fields, kinds, strict=True)):
        made.append(
            (field_name(at), kind | None, None) if field.nullable else (field_name(at), kind)
        )
    names = {field_name(at): field.name for at, field in enumerate(fields)}
    return msgspec.defstruct(name, made, rename=names, kw_only=True, gc=False)


def _json_type(kind: t.DataType, where: str, *, in_map: bool = False) -> Any:
    if isinstance(kind, t.ArrayType):
        items = _json_type(kind.elementType, where, in_map=in_map)
        return list[items | None if kind.containsNull else items]  # type: ignore[misc] # made here
    if isinstance(kind, t.MapType):
        if not isinstance(kind.keyType, t.StringType):
            what = "is a map, and JSON has text keys only: make them string, and convert them"
            raise BadOption("schema", f"'{where}' {what}")
        held = _json_type(kind.valueType, where, in_map=True)
        return dict[str, held | None if kind.valueContainsNull else held]  # type: ignore[misc] # made here
    if isinstance(kind, t.StructType):
        kinds = [_json_type(one.dataType, where, in_map=in_map) for one in kind]
        if not in_map:
            return _class_of("Nested", kind.fields, kinds)
        # Arrow takes maps apart by itself, and knows no classes.
        fields = {
            one.name: NotRequired[json | None] if one.nullable else Required[json]
            for one, json in zip(kind, kinds, strict=True)
        }
        return TypedDict("Nested", fields)  # type: ignore[operator] # made here
    simple = _SIMPLE.get(type(kind))
    if simple is None:
        raise BadOption(
            "schema", f"'{where}' is {kind.simpleString()}: read it as string and convert it"
        )
    return simple


# State


class _ChangeHeaders(Struct, gc=False):
    operation: str | None = None
    control: str | None = None
    txid: str | None = None
    timestamp: str | None = None


class _ChangeEvent(Struct, gc=False):
    headers: _ChangeHeaders
    type: str | None = None
    key: str | None = None
    value: Raw = ABSENT
    old_value: Raw = ABSENT


_NO_TEXT: Final = array_of([""], pa.string())[0]


class _StateShape(Shape):
    carried = frozenset({"value", "old_value"})
    checked = frozenset({"type", "key", "operation", "control"})

    def __init__(self) -> None:
        of_event = [name for name in _ChangeEvent.__struct_fields__ if name != "headers"]
        of_headers = _ChangeHeaders.__struct_fields__
        paths = {name: name for name in of_event} | {name: f"headers.{name}" for name in of_headers}
        super().__init__(_ChangeEvent, paths)

    def __reduce__(self) -> Any:
        return _StateShape, ()

    def broken_rules(self, columns: Mapping[str, pa.Array]) -> dict[int, str]:
        is_change = columns["operation"].is_valid()
        is_named = pc.and_(_is_said(columns["type"]), _is_said(columns["key"]))
        is_fine = pc.or_(columns["control"].is_valid(), pc.and_(is_change, is_named))
        return {
            at: "a change needs a type and a key"
            if is_change[at].as_py()
            else "its headers have neither an operation nor a control"
            for at in pc.indices_nonzero(pc.invert(is_fine)).to_pylist()
        }


def _is_said(texts: pa.StringArray) -> pa.BooleanArray:
    return pc.and_kleene(texts.is_valid(), pc.not_equal(texts, _NO_TEXT))


# Runs


# Nine digits, as for the stores: a run's row holds events in their form.
_Attempt = Annotated[int, Meta(ge=0, le=999_999_999)]


class _RunEvent(Struct, gc=False, rename="camel"):
    run_id: str
    event_type: str
    run_seq: _Long | None = None
    event_id: str | None = None
    step_id: str | None = None
    logical_attempt_id: _Attempt | None = None
    engine_attempt_id: _Attempt | None = None
    idempotency_key: str | None = None
    emitted_at: datetime | None = None
    persisted_at: datetime | None = None
    caused_by_signal_id: str | None = None
    parent_event_id: str | None = None
    adapter_version: str | None = None
    contract_version: str | None = None
    engine_run_ref: Raw = ABSENT
    event_data: Raw = ABSENT


class _RunsShape(Shape):
    carried = frozenset({"engine_run_ref", "event_data"})

    def __init__(self) -> None:
        # Attempts are numbers that are written as texts.
        super().__init__(
            _RunEvent, {name: name for name in _RunEvent.__struct_fields__}, strict=False
        )

    def __reduce__(self) -> Any:
        return _RunsShape, ()


class _Events(Struct, frozen=True):
    """A mode whose messages have known fields."""

    columns: tuple[tuple[str, str], ...]
    shape: Callable[[], Shape]


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
