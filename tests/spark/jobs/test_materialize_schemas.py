"""Columns of tables follow their schemas, and what does not fit is kept aside or refused."""

import json
from datetime import datetime

import pytest
from pyspark.errors import StreamingQueryException

from headwater.client import Client
from headwater.errors import BadOption
from headwater.spark.jobs.materializing import table_folder
from tests.spark.jobs.materializing import Job, append, change


def test_columns_of_the_tables(job: Job, client: Client) -> None:
    event = change("user", "a", "insert", {"n": 1}, timestamp="2025-01-15T10:30:00Z", txid="t1")
    client.stream(f"{job.room}/a").create(data=json.dumps([event]).encode())
    job.run(source={"mode": "raw"})
    (row,) = job.rows("user")
    offset = client.stream(f"{job.room}/a").head().next_offset
    assert row == {
        "stream": f"{job.room}/a",
        "key": "a",
        "n": 1,
        "s": None,
        "offset": offset,
        "timestamp": datetime(2025, 1, 15, 10, 30),  # noqa: DTZ001 - as Spark gives it
        "txid": "t1",
    }
    (version,) = job.rows("user_history")
    assert version["operation"] == "insert"
    assert (version["valid_from"], version["valid_to"]) == (offset, None)
    assert version["valid_from_time"] == row["timestamp"]


def test_new_types_and_new_columns_appear_and_what_cannot_change_is_said(
    job: Job, client: Client
) -> None:
    stream = client.stream(f"{job.room}/a")
    stream.create(data=json.dumps([change("user", "a", "insert", {"n": 1, "x": 2})]).encode())
    job.run(history=False, table_format="parquet")
    append(client, f"{job.room}/a", [change("../über history", "é", "insert", [1])])
    append(client, f"{job.room}/a", [change("user", "b", "insert", {"n": 1, "x": 2})])
    wider = {"user": "n long not null, s string, x long"}
    job.run(history=False, table_format="parquet", schemas=wider)
    rows = sorted(job.rows("user", "parquet"), key=lambda row: str(row["key"]))
    assert [row["x"] for row in rows] == [None, 2]
    assert job.rows(table_folder("../über history"), "parquet")[0]["value"] == "[1]"
    assert not (job.folder / "tables" / "user_history").exists()

    append(client, f"{job.room}/a", [change("user", "c", "insert", {"n": 1, "x": 2})])
    for schema, reason in {
        "n string": "can't be changed to string",
        "n long, s string, y long not null": "'y' is not there",
        None: "'value' is columns",
    }.items():
        schemas = {} if schema is None else {"user": schema}
        with pytest.raises(StreamingQueryException, match=reason):
            job.run(history=False, table_format="parquet", schemas=schemas)
    other = str(job.folder / "other")
    with pytest.raises(StreamingQueryException, match="another checkpoint"):
        job.run(history=False, table_format="parquet", schemas=wider, checkpoint=other)
    with pytest.raises(StreamingQueryException, match="gone on without"):
        job.run(table_format="parquet", schemas=wider)
    job.run(history=False, table_format="parquet", schemas=wider)
    assert len(job.rows("user", "parquet")) == 3


def test_a_field_may_be_called_as_a_column_of_the_table(job: Job, client: Client) -> None:
    value = {"key": "k", "Offset": 5, "_bucket": 6, "n": 1}
    data = json.dumps([change("user", "a", "insert", value)]).encode()
    client.stream(f"{job.room}/a").create(data=data)
    job.run(schemas={"user": "key string, Offset int, _bucket int, n long"})
    for name in ("user", "user_history"):
        (row,) = job.rows(name)
        assert (row["key"], row["value_key"], row["value_Offset"], row["n"]) == ("a", "k", 5, 1)
        assert row["value__bucket"] == 6


def test_a_nested_value_that_is_never_null_keeps_aside_what_lacks_it(
    job: Job, client: Client
) -> None:
    events = [
        change("user", "a", "insert", {"o": {"p": 1}}),
        change("user", "b", "insert", {"o": {"p": None}}),
        change("user", "c", "insert", {"o": {}}),
        change("user", "d", "insert", {"o": None}),
        change("user", "e", "insert", {}),
        change("user", "a", "delete"),
    ]
    client.stream(f"{job.room}/a").create(data=json.dumps(events).encode())
    job.run(schemas={"user": "o struct<p: int not null>"})
    assert {row["key"]: row["o"] for row in job.rows("user")} == {"d": None, "e": None}
    versions = [(row["key"], row["operation"], row["o"]) for row in job.rows("user_history")]
    assert sorted(versions, key=lambda row: row[:2]) == [
        ("a", "delete", None),
        ("a", "insert", {"p": 1}),
        ("d", "insert", None),
        ("e", "insert", None),
    ]
    assert job.quarantined() == [
        (f"{job.room}/a", "user", "b", "Expected `int`, got `null` - at `$.o.p`"),
        (f"{job.room}/a", "user", "c", "Object missing required field `p` - at `$.o`"),
    ]


def test_a_stream_that_holds_no_messages_is_kept_aside_and_others_go_on(
    job: Job, client: Client
) -> None:
    text, image = client.stream(f"{job.room}/a"), client.stream(f"{job.room}/b")
    text.create(content_type="text/plain", data=b"hello")
    image.create(content_type="image/png", data=b"\x89PNG\xff")
    events = [change("order", "a", "insert", 1)]
    client.stream(f"{job.room}/c").create(data=json.dumps(events).encode())
    job.run()
    assert job.current() == {f"{job.room}/c": {("order", "a"): 1}}
    aside = sorted(job.rows("_quarantine"), key=lambda row: str(row["stream"]))
    assert [(row["stream"], row["offset"], row["reason"]) for row in aside] == [
        (
            f"{job.room}/{name}",
            stream.head().next_offset,
            f"the stream holds {kind} and no messages",
        )
        for name, stream, kind in (("a", text, "text/plain"), ("b", image, "image/png"))
    ]


def test_schemas_that_cannot_be_used_are_refused_before_anything_runs(job: Job) -> None:
    for schema, reason in {
        "n lnog": "no schema",
        "int": "one type",
        "n interval day": "read it as string",
        "name string, Name string": "'name' and 'Name' would be one column: rename one",
        "key string, value_key string": "'key' and 'value_key' would be one column: rename one",
        "n int, n int": "'n' and 'n' would be one column",
        "o struct<a: int, A: int>": "'o.a' and 'o.A' would be one column",
        "l array<struct<m: map<string, struct<a: int, A: int>>>>": "'l.m.a' and 'l.m.A' would be",
    }.items():
        with pytest.raises(BadOption, match=reason):
            job.run(schemas={"user": schema})
    with pytest.raises(BadOption, match="all types: remove it"):
        job.run(source={"mode": "state", "types": "user"})
    with pytest.raises(BadOption, match="delta, parquet"):
        job.run(table_format="csv")
