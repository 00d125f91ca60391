"""The columns of batches, as a schema, their layout and the rules of state make them."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from headwater.client import Batch
from headwater.errors import BadOption
from headwater.spark.columns import Columns, default_schema
from headwater.spark.layout import lay_out
from headwater.spark.messages import shape_of_schema, shape_of_values
from headwater.spark.options import source_options
from headwater.spark.ranges import Range

# Schemas, and objects that fit them

_SIMPLE: dict[t.DataType, st.SearchStrategy[Any]] = {
    t.StringType(): st.text(),
    t.BooleanType(): st.booleans(),
    t.ByteType(): st.integers(-(2**7), 2**7 - 1),
    t.IntegerType(): st.integers(-(2**31), 2**31 - 1),
    t.LongType(): st.integers(-(2**63), 2**63 - 1),
    t.DoubleType(): st.floats(allow_nan=False, allow_infinity=False),
}


def _struct(kinds: list[t.DataType], *, nullable: bool = True) -> t.StructType:
    names = ("a", "the name", "class")
    return t.StructType(
        [t.StructField(name, kind, nullable) for name, kind in zip(names, kinds, strict=False)]
    )


kinds = st.recursive(
    st.sampled_from(list(_SIMPLE)),
    lambda inner: st.one_of(
        inner.map(t.ArrayType),
        inner.map(lambda kind: t.MapType(t.StringType(), kind)),
        st.lists(inner, min_size=1, max_size=3).map(_struct),
    ),
    max_leaves=8,
)


def values(kind: t.DataType) -> st.SearchStrategy[Any]:
    """Make values of a type, or None; a field of an object may also not be there."""
    made: st.SearchStrategy[Any]
    if isinstance(kind, t.ArrayType):
        made = st.lists(values(kind.elementType), max_size=3)
    elif isinstance(kind, t.MapType):
        made = st.dictionaries(st.text(), values(kind.valueType), max_size=3)
    elif isinstance(kind, t.StructType):
        made = st.fixed_dictionaries(
            {}, optional={each.name: values(each.dataType) for each in kind}
        )
    else:
        made = _SIMPLE[kind]
    return st.none() | made


def expected(kind: t.DataType, value: Any) -> Any:
    """Say what Arrow shows of a value."""
    if value is None:
        return None
    if isinstance(kind, t.ArrayType):
        return [expected(kind.elementType, each) for each in value]
    if isinstance(kind, t.MapType):
        return [(key, expected(kind.valueType, each)) for key, each in value.items()]
    if isinstance(kind, t.StructType):
        return {each.name: expected(each.dataType, value.get(each.name)) for each in kind}
    return float(value) if isinstance(kind, t.DoubleType) else value


@settings(deadline=None)  # the first map imports pandas
@given(st.data())
def test_objects_become_columns_whatever_is_missing_in_them(data: st.DataObject) -> None:
    schema = _struct(data.draw(st.lists(kinds, min_size=1, max_size=3)))
    objects = data.draw(
        st.lists(values(schema).filter(lambda value: value is not None), max_size=5)
    )
    shape = shape_of_values(schema)
    arrow = to_arrow_schema(schema, timezone="UTC")
    columns = shape.columns(shape.parse_all(json.dumps(objects).encode()), arrow)
    for field in schema:
        column = columns[field.name]
        column.validate(full=True)
        assert column.type == arrow.field(field.name).type
        shown = [expected(field.dataType, each.get(field.name)) for each in objects]
        assert column.to_pylist() == shown


KEEPING = source_options({"url": "http://x", "stream": "s", "mode": "json", "onCorrupt": "column"})
NOT_NULL = t.StructType().add("p", "integer", nullable=False)
REQUIRED: dict[str, tuple[t.DataType, list[Any]]] = {
    "of an object": (NOT_NULL, [{"p": None}, {}]),
    "of an object in an array": (t.ArrayType(NOT_NULL), [[{"p": None}], [{"p": 1}, {}]]),
    "of an object in a map": (t.MapType(t.StringType(), NOT_NULL), [{"k": {"p": None}}, {"k": {}}]),
    "of an array": (t.ArrayType(t.IntegerType(), containsNull=False), [[1, None]]),
    "of a map": (t.MapType(t.StringType(), t.IntegerType(), False), [{"k": None}]),
}


@pytest.mark.parametrize(("kind", "broken"), REQUIRED.values(), ids=REQUIRED)
def test_what_is_never_null_is_required_however_deep_it_lies(
    kind: t.DataType, broken: list[Any]
) -> None:
    shape = shape_of_values(t.StructType().add("o", kind))
    for value in broken:
        with pytest.raises(msgspec.ValidationError, match="`"):
            shape.parse_one(json.dumps({"o": value}).encode())
    assert shape.parse_one(b'{"o": null}') == shape.parse_one(b"{}")


@pytest.mark.parametrize("message", [b'{"o":{"p":null}}', b'{"o":{}}'])
def test_a_message_without_a_nested_value_that_is_never_null_is_corrupt(message: bytes) -> None:
    columns = Columns.of(KEEPING, t.StructType().add("o", NOT_NULL).add("_corrupt", "string"))
    batch = batch_of([message, b'{"o":{"p":1}}', b"{}"], 0)
    (rows,) = columns.batches(batch, Range("s", batch.start, batch.next_offset))
    assert rows.to_pylist() == [
        {"o": None, "_corrupt": message.decode()},
        {"o": {"p": 1}, "_corrupt": None},
        {"o": None, "_corrupt": None},
    ]


VARIANTS: dict[str, t.DataType] = {
    "itself": t.VariantType(),
    "in an array": t.ArrayType(t.VariantType()),
    "in a map": t.MapType(t.StringType(), t.VariantType()),
    "in an object": t.StructType().add("v", t.VariantType()),
}


@pytest.mark.parametrize("kind", VARIANTS.values(), ids=VARIANTS)
def test_of_a_variant_is_said_how_to_have_one(kind: t.DataType) -> None:
    schema = t.StructType().add("doc", kind)
    with pytest.raises(BadOption, match=r"'doc' is or holds a variant.*valueType 'variant'"):
        shape_of_schema(schema)
    with pytest.raises(BadOption, match=r"'doc' is or holds a variant.*with parse_json"):
        shape_of_values(schema)


def test_types_that_json_has_not_are_refused_with_what_to_do() -> None:
    with pytest.raises(BadOption, match="'d' is interval day: read it as string and convert it"):
        shape_of_schema(t.StructType().add("d", t.DayTimeIntervalType(0, 0)))
    with pytest.raises(BadOption, match=r"'m' is a map.*: make them string, and convert them"):
        shape_of_schema(t.StructType().add("m", t.MapType(t.LongType(), t.StringType())))


# The layout of a batch

EPOCH = 7


def offset(byte: int) -> str:
    return f"{EPOCH:016d}_{byte:016d}"


def batch_of(messages: list[bytes], begin: int) -> Batch:
    data = b"[" + b",\n".join(messages) + b"]"
    end = begin + sum(len(each) + 2 for each in messages)
    return Batch(data, offset(begin), offset(end), False, False, "application/json")


@given(
    st.lists(
        st.sampled_from([b"1", b'"\xc3\xa9"', b"[1\n]", b"[1,\t\n2]", b'{"a":",\\n"}']), max_size=6
    ),
    st.integers(0, 10**15),
    st.integers(0, 7),
    st.integers(1, 40),
)
def test_messages_are_found_with_the_offset_behind_each(
    messages: list[bytes], begin: int, wanted: int, size: int
) -> None:
    ends = [
        begin + sum(len(each) + 2 for each in messages[: at + 1]) for at in range(len(messages))
    ]
    kept = messages[:wanted]
    last = ends[len(kept) - 1] if kept else begin
    layout = lay_out(batch_of(messages, begin), Range("s", offset(begin), offset(last)))
    assert len(layout) == len(kept)
    assert layout.offsets().to_pylist() == [offset(end) for end in ends[: len(kept)]]
    assert [layout.text(at) for at in range(len(kept))] == kept
    assert [layout.offset(at) for at in range(len(kept))] == layout.offsets().to_pylist()
    if kept:
        assert layout.texts().to_pylist() == kept
        parts = list(layout.parts(size))
        assert [part.offset(at) for part in parts for at in range(len(part))] == [
            offset(end) for end in ends[: len(kept)]
        ]
        assert [each for part in parts for each in part.texts().to_pylist()] == kept
        assert all(json.loads(part.data) for part in parts)


# Two ways to read by a schema

_plain = st.recursive(
    st.sampled_from(list(_SIMPLE)),
    lambda inner: st.one_of(
        st.builds(t.ArrayType, inner, st.booleans()),
        st.builds(_struct, st.lists(inner, min_size=1, max_size=3), nullable=st.booleans()),
    ),
    max_leaves=8,
)
_ODD_TEXTS = (
    *("1.5", "1.0", "-0", "-0.0", "1e2", "1e400", "9223372036854775808", "-129", "2147483648"),
    *('"1"', '"1.5"', '"nan"', '"x"', '"true"', '"\\ud800"', '"\\ud83d\\ude00"', "true", "null"),
    *('"\\u0000"', '["\\u0000"]', '{"a":"\\u0000"}', '"a\\u0000b"'),
    *("[]", "{}", "[1]", '["x",null]', "[[]]", '{"a":1}', '{"a":"x","other":[1,{}]}', "[1\n]"),
)
_odd_messages = st.one_of(
    st.sampled_from(_ODD_TEXTS),
    st.sampled_from(("a", "the name", "class")).flatmap(
        lambda name: st.sampled_from(_ODD_TEXTS).map(lambda text: f'{{"{name}": {text}}}')
    ),
)


@settings(max_examples=300, deadline=None)  # on a busy machine too
@given(st.data())
def test_the_fast_way_to_read_by_a_schema_finds_what_the_slow_one_does(
    data: st.DataObject,
) -> None:
    fields = _struct(data.draw(st.lists(_plain, min_size=1, max_size=3)))
    fitting = values(fields).filter(lambda value: value is not None).map(json.dumps)
    messages = data.draw(st.lists(fitting | _odd_messages, min_size=1, max_size=4))
    schema = t.StructType([*fields, t.StructField("_corrupt", t.StringType())])
    fast, slow = Columns.of(KEEPING, schema), Columns.of(KEEPING, schema)
    assert fast.shape is not None
    assert fast.shape.arrow is not None
    assert slow.shape is not None
    slow.shape.arrow = None
    batch = batch_of([message.encode() for message in messages], 0)
    upto = batch.start
    for message in messages[: data.draw(st.integers(1, len(messages)))]:
        upto = offset(int(upto[17:]) + len(message.encode()) + 2)
    piece = Range("s", batch.start, upto)
    (made,) = fast.batches(batch, piece)
    made.validate(full=True)
    (expected,) = slow.batches(batch, piece)
    assert made.schema.equals(expected.schema)
    assert repr(made.to_pylist()) == repr(expected.to_pylist())  # 0.0 is not -0.0


_NUMBERS = ("-0", "-0.0", "-0e0", "0", "1e-400", "-1e-400", "0.1", "9007199254740993", "1e38")
_TOO_LARGE = {
    "float": ("1e39", "-3.5e38", "1e308", "1e999", "1" * 400),
    "double": ("1e309", "-1e999", "1" * 400),
}


def shown(kind: str, *numbers: str) -> list[tuple[Any, bool]]:
    """Read numbers of one batch: what is in the column, and whether the message is corrupt."""
    schema = t.StructType().add("v", t.DataType.fromDDL(kind)).add("_corrupt", "string")
    batch = batch_of([f'{{"v":{number}}}'.encode() for number in numbers], 0)
    (rows,) = Columns.of(KEEPING, schema).batches(batch, Range("s", batch.start, batch.next_offset))
    return [(row["v"], row["_corrupt"] is not None) for row in rows.to_pylist()]


@pytest.mark.parametrize("kind", ["double", "float"])
def test_a_number_is_what_it_is_to_spark_whatever_is_beside_it(
    spark: SparkSession, kind: str
) -> None:
    texts = spark.createDataFrame([(f'{{"v":{each}}}',) for each in _NUMBERS], "text string")
    read = texts.select(f.from_json("text", f"v {kind}").alias("read")).collect()
    for number, row in zip(_NUMBERS, read, strict=True):
        for beside in ((), ("1",), ("null",), ('"x"',), ("-0.0",), ("-0",)):
            value, is_corrupt = shown(kind, number, *beside)[0]
            assert (repr(value), is_corrupt) == (repr(row.read.v), False), (number, beside)


@pytest.mark.parametrize("kind", ["double", "float"])
@pytest.mark.parametrize("form", ["{}", "array<{}>", "map<string,{}>", "struct<a:{}>"])
def test_a_number_that_has_no_room_makes_its_message_corrupt_whatever_is_beside_it(
    spark: SparkSession, kind: str, form: str
) -> None:
    del spark  # it reads the type
    written = {"a": "[{}]", "m": '{{"a":{}}}', "s": '{{"a":{}}}'}.get(form[0], "{}")
    for number in _TOO_LARGE[kind]:
        for beside in ((), ("1",), ('"x"',)):
            numbers = [written.format(each) for each in (number, *beside)]
            assert shown(form.format(kind), *numbers)[0] == (None, True), (number, beside)


def test_messages_that_fit_are_read_the_fast_way() -> None:
    kinds = [t.StringType(), t.ArrayType(t.LongType()), _struct([t.BooleanType(), t.DoubleType()])]
    schema = _struct(kinds)
    shape = shape_of_schema(schema)
    assert shape.arrow is not None
    values = [{"a": "x", "the name": [1, None], "class": {"a": True, "the name": 1.5}}, {}]
    batch = batch_of([json.dumps(value).encode() for value in values], 0)
    layout = lay_out(batch, Range("s", batch.start, batch.next_offset))
    columns = shape.arrow.columns(layout, to_arrow_schema(schema, timezone="UTC"))
    assert columns is not None
    assert [columns[field.name].to_pylist() for field in schema] == [
        [expected(field.dataType, value.get(field.name)) for value in values] for field in schema
    ]


@pytest.mark.parametrize(
    "kind", [t.DateType(), t.TimestampType(), t.FloatType(), t.DecimalType(5, 2), t.BinaryType()]
)
def test_types_that_the_two_ways_understand_differently_are_read_the_slow_way(
    kind: t.DataType,
) -> None:
    assert shape_of_schema(_struct([t.ArrayType(kind)])).arrow is None


# The rules of state

_ODD: st.SearchStrategy[Any] = st.sampled_from([None, "", 3, "x", "é", [], {"a": 1}])
_OF_HEADERS = ("operation", "control", "txid", "timestamp")
_headers = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys((*_OF_HEADERS, "offset", "other"), _ODD),
)
_events = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("type", "key", "value", "old_value", "other"), _ODD),
        "headers": st.just({"operation": "insert"}) | _headers | _ODD,
    },
)
_good = st.builds(
    lambda value: {"type": "t", "key": "k", "value": value, "headers": {"operation": "insert"}},
    _ODD,
)


def is_event(event: Any) -> bool:
    """Say the rule of the state mode again."""
    headers = event.get("headers") if isinstance(event, dict) else None
    if not isinstance(headers, dict):
        return False
    texts = [headers.get(name) for name in _OF_HEADERS] + [event.get("type"), event.get("key")]
    if not all(text is None or isinstance(text, str) for text in texts):
        return False
    if headers.get("control") is not None:
        return True
    return headers.get("operation") is not None and all(texts[-2:])


@given(st.lists(_good | _events | _ODD, max_size=5))
def test_the_state_mode_takes_events_apart_and_finds_what_is_none(events: list[Any]) -> None:
    options = source_options(
        {"url": "http://x", "stream": "s", "mode": "state", "onCorrupt": "column"}
    )
    columns = Columns.of(options, default_schema(options))
    messages = [json.dumps(event).encode() for event in events]
    batch = batch_of(messages, 0)
    shown: list[dict[str, Any]] = []
    for rows in columns.batches(batch, Range("s", batch.start, batch.next_offset)):
        rows.validate(full=True)
        shown += rows.to_pylist()
    names = ("type", "key", "value", "old_value", *_OF_HEADERS)
    for event, message, row in zip(events, messages, shown, strict=True):
        told = {name: row[name] for name in names}
        if not is_event(event):
            assert row["_corrupt"] == message.decode()
            assert told == dict.fromkeys(names)
            continue
        assert row["_corrupt"] is None
        headers = {name: event["headers"].get(name) for name in _OF_HEADERS}
        carried = {
            name: json.dumps(event[name]) if name in event else None
            for name in ("value", "old_value")
        }
        assert told == {"type": event.get("type"), "key": event.get("key")} | carried | headers
