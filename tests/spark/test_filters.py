"""What filters leave to be read: never less than what passes them."""

import re
from collections.abc import Callable, Iterator
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from headwater.client import Client
from headwater.errors import BadOption
from headwater.spark.filters import leave_range, leave_stream, types_left
from headwater.spark.options import source_options
from headwater.spark.ranges import Range
from headwater.spark.source import HeadwaterDataSource
from tests.spark.conftest import Reads

SETTING = "spark.sql.python.filterPushdown.enabled"

# What each filter means, said once more

_TEXTS = st.sampled_from(["a", "b", "ab", "a/b", "c", ""])
_MEANINGS: dict[Callable[..., Any], Callable[[Any, Any], bool]] = {
    EqualTo: lambda text, value: text == value,
    EqualNullSafe: lambda text, value: text == value,
    GreaterThan: lambda text, value: text > value,
    GreaterThanOrEqual: lambda text, value: text >= value,
    LessThan: lambda text, value: text < value,
    LessThanOrEqual: lambda text, value: text <= value,
    StringStartsWith: lambda text, value: text.startswith(value),
    StringEndsWith: lambda text, value: text.endswith(value),
    StringContains: lambda text, value: value in text,
}
_COLUMNS = st.sampled_from([("stream",), ("offset",), ("type",), ("value", "type")])
_simple: st.SearchStrategy[Filter] = st.one_of(
    st.builds(
        lambda kind, column, value: kind(column, value),
        st.sampled_from(list(_MEANINGS)),
        _COLUMNS,
        _TEXTS,
    ),
    st.builds(lambda column, values: In(column, tuple(values)), _COLUMNS, st.lists(_TEXTS)),
    st.builds(IsNull, _COLUMNS),
    st.builds(IsNotNull, _COLUMNS),
)
_filters = st.lists(_simple | st.builds(Not, _simple), max_size=4)


def passes(each: Any, row: dict[tuple[str, ...], str]) -> bool:
    if isinstance(each, Not):
        return not passes(each.child, row)
    text = row[each.attribute]
    if isinstance(each, In):
        return text in each.value
    if isinstance(each, IsNull | IsNotNull):
        return isinstance(each, IsNotNull)
    return _MEANINGS[type(each)](text, each.value)


@given(_filters, _TEXTS, _TEXTS, _TEXTS, _TEXTS, _TEXTS, _TEXTS)
def test_a_row_that_passes_is_left(
    filters: list[Filter], path: str, offset: str, type_: str, value: str, start: str, end: str
) -> None:
    row = {("stream",): path, ("offset",): offset, ("type",): type_, ("value", "type"): value}
    if not all(passes(each, row) for each in filters):
        return
    assert leave_stream(filters, path)
    if start < offset <= end:
        assert leave_range(filters, Range(path, start, end))
    types = types_left(filters)
    assert types is None or type_ in types


def test_what_can_not_pass_is_not_left() -> None:
    assert not leave_stream([EqualTo(("stream",), "a")], "b")
    assert not leave_stream([Not(StringStartsWith(("stream",), "b"))], "b/1")
    assert not leave_range([GreaterThan(("offset",), "5")], Range("a", "1", "5"))
    assert not leave_range([LessThanOrEqual(("offset",), "5")], Range("a", "5", "9"))
    assert not leave_range([In(("offset",), ("1", "9"))], Range("a", "1", "8"))
    filters = [In(("type",), ("a", "b")), EqualTo(("type",), "b")]
    assert types_left(filters) == frozenset({"b"})
    assert types_left([EqualTo(("type",), None), IsNotNull(("type",))]) is None


# On Spark


@pytest.fixture
def pushing(spark: SparkSession) -> Any:
    spark.conf.set(SETTING, "true")
    yield
    spark.conf.unset(SETTING)


@pytest.mark.usefixtures("pushing")
def test_streams_and_ranges_that_filters_rule_out_are_not_read(
    reads: Reads, client: Client, room: str
) -> None:
    for name in ("a", "b"):
        messages = ",".join(f'{{"n": {number}}}' for number in range(2000))
        client.stream(f"{room}/{name}").create(data=f"[{messages}]".encode())
    options = {"splitBytes": "4k"}
    plain = reads.batch(f"{room}/*", **options)
    offsets = [row.offset for row in plain.where(f.col("stream") == f"{room}/b").collect()]
    conditions = [
        f.col("stream") == f"{room}/b",
        (f.col("stream") == f"{room}/b") & (f.col("offset") > offsets[1900]),
        f.col("stream").isin(f"{room}/b") & (f.col("offset") <= offsets[100]),
    ]
    tasks: list[int] = []
    for condition in conditions:
        found = reads.batch(f"{room}/*", pushFilters="true", **options).where(condition)
        tasks.append(found.rdd.getNumPartitions())
        assert found.sort("offset").collect() == plain.where(condition).sort("offset").collect()
    everything = plain.rdd.getNumPartitions()
    assert tasks[0] <= everything / 2
    assert tasks[1] < tasks[0] / 3
    assert tasks[2] < tasks[0] / 3


@pytest.mark.usefixtures("pushing")
def test_a_filter_on_types_is_applied_where_they_are_read(
    reads: Reads, client: Client, room: str
) -> None:
    events = ",".join(
        f'{{"type":"{kind}","key":"1","value":{{}},"headers":{{"operation":"insert"}}}}'
        for kind in ("user", "order", "user")
    )
    client.stream(f"{room}/s").create(data=f"[{events}]".encode())
    rows = reads.batch(f"{room}/s", mode="state", pushFilters="true").where("type = 'user'")
    assert [row.type for row in rows.collect()] == ["user", "user"]
    options = {"url": reads.url, "stream": f"{room}/s", "mode": "state", "pushFilters": "true"}
    source = HeadwaterDataSource(options)
    reader = source.reader(source.schema())
    is_user = EqualTo(("type",), "user")
    assert list(reader.pushFilters([is_user])) == [is_user]
    given: list[str] = []
    for partition in reader.partitions():
        for batch in cast("Iterator[pa.RecordBatch]", reader.read(partition)):
            given += batch.column("type").to_pylist()
    assert given == ["user", "user"]


def test_without_sparks_setting_it_is_said(reads: Reads, client: Client, room: str) -> None:
    client.stream(f"{room}/s").create(data=b"[1]")
    with pytest.raises(PySparkException, match=re.escape(SETTING)):
        reads.batch(f"{room}/s", pushFilters="true").where("stream = 'x'").collect()


def test_a_streaming_query_takes_none() -> None:
    source = HeadwaterDataSource({"url": "http://x", "stream": "s", "pushFilters": "true"})
    with pytest.raises(BadOption, match="pushFilters"):
        source.streamReader(source.schema())
    assert source_options(source.options).push_filters
