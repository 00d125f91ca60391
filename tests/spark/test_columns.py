"""The columns of batches, as a schema, their layout and the rules of state make them."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from headwater.client import Batch
from headwater.spark.columns import Columns, default_schema
from headwater.spark.layout import lay_out
from headwater.spark.messages import shape_of_values
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


def _struct(kinds: list[t.DataType]) -> t.StructType:
    names = ("a", "the name", "class")
    return t.StructType(
        [t.StructField(name, kind) for name, kind in zip(names, kinds, strict=False)]
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
    for rows in columns.batches(batch, Range("s", batch.start, batch.offset)):
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
