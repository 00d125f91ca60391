"""Two ways to the same columns: Arrow's own parser, and message by message."""

import json
from typing import Any

import msgspec
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, LongType, StringType, StructType

from headwater.spark.messages import shape_of_schema

SCHEMA = (
    StructType()
    .add("s", "string")
    .add("b", "boolean")
    .add("i", "integer")
    .add("y", "byte")
    .add("l", "long")
    .add("d", "double")
    .add("a", ArrayType(StringType()))
    .add("o", StructType().add("l", "long").add("a", ArrayType(LongType())))
)
ARROW = to_arrow_schema(SCHEMA, timezone="UTC")
SHAPE = shape_of_schema(SCHEMA)

numbers = st.one_of(
    st.integers(-130, 130), st.sampled_from([2**31, -(2**31) - 1, 2**63, -(2**63), 2**70])
)
scalars = st.one_of(
    st.none(), st.booleans(), numbers, st.floats(allow_nan=False, allow_infinity=False), st.text()
)
anything = st.one_of(
    scalars, st.lists(scalars, max_size=3), st.dictionaries(st.sampled_from("slxa"), scalars)
)
fitting = st.fixed_dictionaries(
    {},
    optional={
        "s": st.none() | st.text(),
        "b": st.none() | st.booleans(),
        "i": st.none() | st.integers(-(2**31), 2**31 - 1),
        "y": st.none() | st.integers(-128, 127),
        "l": st.none() | st.integers(-(2**63), 2**63 - 1),
        "d": st.none()
        | st.integers(-1000, 1000)
        | st.floats(allow_nan=False, allow_infinity=False),
        "a": st.none() | st.lists(st.none() | st.text(), max_size=3),
        "o": st.none()
        | st.fixed_dictionaries({}, optional={"l": st.integers(-5, 5), "a": st.just([1, None])}),
        "other": anything,
    },
)
objects = fitting | st.dictionaries(st.sampled_from([*SCHEMA.fieldNames(), "other"]), anything)


def one_by_one(messages: list[bytes]) -> dict[str, pa.Array] | None:
    try:
        parsed = SHAPE.parse_all(b"[" + b",".join(messages) + b"]")
    except msgspec.DecodeError:
        return None
    return SHAPE.columns(parsed, ARROW)


@settings(max_examples=400, deadline=None)
@given(st.lists(objects, min_size=1, max_size=4), st.booleans())
def test_what_arrow_takes_is_what_we_take(rows: list[Any], escaped: bool) -> None:
    messages = [json.dumps(row, ensure_ascii=escaped).encode(errors="replace") for row in rows]
    at_once = SHAPE.at_once(b"\n".join(messages), ARROW)
    if at_once is None:
        return  # then the other way decides
    parsed = one_by_one(messages)
    assert parsed is not None
    for name, column in at_once.items():
        assert column.type == parsed[name].type
        assert column.to_pylist() == parsed[name].to_pylist()


@settings(max_examples=200, deadline=None)
@given(st.lists(fitting, min_size=1, max_size=4))
def test_what_fits_is_taken_at_once(rows: list[Any]) -> None:
    messages = [json.dumps(row).encode() for row in rows]
    assert SHAPE.at_once(b"\n".join(messages), ARROW) is not None
