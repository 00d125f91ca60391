"""What the readers do, called as Spark calls them, on a real server."""

import json
import pickle
import threading
import time
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes
from pyspark.sql.types import ArrayType, IntegerType, StructType

from headwater.client import Client
from headwater.errors import BadOption, CorruptMessage, StreamLost
from headwater.spark.source import HeadwaterDataSource
from headwater.spark.stream_reader import StreamReader
from tests.support.server import ServerProcess

EVERYTHING = ReadAllAvailable()


def source(url: str, stream: str, **options: str) -> HeadwaterDataSource:
    return HeadwaterDataSource(CaseInsensitiveDict({"url": url, "stream": stream, **options}))


def rows(
    url: str, stream: str, schema: StructType | None = None, **options: str
) -> list[dict[str, Any]]:
    """Read as Spark does: what goes to tasks is pickled."""
    found = source(url, stream, **options)
    reader = found.reader(schema or found.schema())
    sent = pickle.loads(pickle.dumps(reader))
    batches: list[pa.RecordBatch] = []
    for partition in reader.partitions():
        batches += sent.read(pickle.loads(pickle.dumps(partition)))
    return [row for batch in batches for row in batch.to_pylist()]


def following(url: str, stream: str, **options: str) -> StreamReader:
    found = source(url, stream, **{"waitSeconds": "0", **options})
    reader = found.streamReader(found.schema())
    assert isinstance(reader, StreamReader)
    return reader


def test_corrupt_decimals_and_nested_fields_are_found(
    server: ServerProcess, client: Client, room: str
) -> None:
    data = b'[{"d":"1.25","x":{"y":[1,null]}},{"d":"123456.7"},{"x":{"y":["a"]}},{"x":3},7]'
    client.stream(room).create(data=data)
    nested = StructType().add("y", ArrayType(IntegerType()))
    schema = StructType().add("d", "decimal(4,2)").add("x", nested)
    with pytest.raises(CorruptMessage, match="read in mode 'json'"):
        rows(server.url, room, schema)
    found = rows(server.url, room, schema.add("_corrupt", "string"))
    assert (str(found[0]["d"]), found[0]["x"]) == ("1.25", {"y": [1, None]})
    assert [row["_corrupt"] is not None for row in found] == [False, True, True, True, True]
    assert all(row["d"] is None and row["x"] is None for row in found[1:])


def test_state_events_are_checked(server: ServerProcess, client: Client, room: str) -> None:
    good = {"type": "t", "key": "k", "headers": {"operation": "insert"}}
    bad = [{}, {"headers": {}}, {"headers": {"operation": "insert"}, "key": "k"}, 3]
    client.stream(room).create(data=json.dumps([good, *bad]).encode())
    found = rows(server.url, room, mode="state", onCorrupt="column")
    assert [row["_corrupt"] for row in found] == [None, *map(json.dumps, bad)]
    with pytest.raises(CorruptMessage, match=found[1]["offset"]):
        rows(server.url, room, mode="state")


def test_columns_that_a_mode_does_not_have_are_refused(
    server: ServerProcess, client: Client, room: str
) -> None:
    client.stream(room).create()
    some = StructType().add("key", "string").add("offset", "string")
    assert rows(server.url, room, some, mode="state") == []
    for schema, options in [
        (StructType().add("nokey", "string"), {"mode": "state"}),
        (StructType().add("key", "long"), {"mode": "state"}),
        (StructType().add("offset", "long"), {}),
        (StructType().add("n", "long"), {"onCorrupt": "column"}),
        (StructType().add("v", "variant"), {}),
    ]:
        with pytest.raises(BadOption):
            rows(server.url, room, schema, **options)


def test_only_the_types_that_were_chosen_come_and_control_events(
    server: ServerProcess, client: Client, room: str
) -> None:
    changes = [
        {"type": kind, "key": str(number), "headers": {"operation": "insert"}}
        for number, kind in enumerate(["a", "b", "c", "a"])
    ]
    events = [*changes, {"headers": {"control": "reset"}}]
    client.stream(room).create(data=json.dumps(events).encode())
    everything = rows(server.url, room, mode="state")
    found = rows(server.url, room, mode="state", types="a, c")
    assert found == [everything[at] for at in (0, 2, 3, 4)]
    with pytest.raises(BadOption, match="only changes have types"):
        rows(server.url, room, types="a")


def test_the_offset_is_a_map_that_only_grows_by_what_was_admitted(
    server: ServerProcess, client: Client, room: str
) -> None:
    for name in ("a", "b"):
        data = json.dumps(["x" * 100] * 2000).encode()
        client.stream(f"{room}/{name}").create(data=data)
    reader = following(server.url, f"{room}/*")
    start = reader.initialOffset()
    assert start == {}
    everything = reader.latestOffset(start, EVERYTHING)
    assert everything.keys() == {f"{room}/a", f"{room}/b"}
    seen = 0
    at = start
    while (end := reader.latestOffset(at, ReadMaxBytes(150_000))) != at:
        read = [
            batch for partition in reader.partitions(at, end) for batch in reader.read(partition)
        ]
        seen += sum(batch.num_rows for batch in read)
        assert sum(batch.num_rows for batch in read) <= 1500
        at = end
    assert at == everything
    assert seen == 4000
    reader.stop()


def test_streams_appear_and_vanish(server: ServerProcess, client: Client, room: str) -> None:
    client.stream(f"{room}/a").create(data=b"[1]")
    reader = following(server.url, f"{room}/*", startingOffsets="latest")
    start = reader.initialOffset()
    assert start == {f"{room}/a": client.stream(f"{room}/a").head().next_offset}
    assert reader.latestOffset(start, EVERYTHING) == start
    client.stream(f"{room}/b").create(data=b"[1]")
    end = reader.latestOffset(start, EVERYTHING)
    assert end.keys() == {f"{room}/a", f"{room}/b"}
    client.stream(f"{room}/a").delete()
    with pytest.raises(StreamLost, match="was deleted since"):
        reader.latestOffset(end, EVERYTHING)
    reader.stop()
    client.stream(f"{room}/a").create(data=b"[1]")
    restarted = following(server.url, f"{room}/*")
    with pytest.raises(StreamLost, match="created again since"):
        restarted.latestOffset(end, EVERYTHING)
    restarted.stop()
    careless = following(server.url, f"{room}/*", failOnDataLoss="false")
    later = careless.latestOffset(end, EVERYTHING)
    assert later[f"{room}/a"] > end[f"{room}/a"]
    (partition,) = careless.partitions(end, later)
    assert [batch.num_rows for batch in careless.read(partition)] == [1]
    client.stream(f"{room}/a").delete()
    assert list(careless.read(partition)) == []
    assert careless.partitions(end, later) == []
    assert careless.latestOffset(later, EVERYTHING).keys() == {f"{room}/b"}
    careless.stop()


def test_a_stream_that_vanishes_while_it_is_read_in_parts_is_lost(
    server: ServerProcess, client: Client, room: str
) -> None:
    a, b = f"{room}/a", f"{room}/b"
    data = json.dumps(["x" * 100] * 4000).encode()
    for path in (a, b):
        client.stream(path).create(data=data)
    some = ReadMaxBytes(150_000)
    careful = following(server.url, f"{room}/*")
    careless = following(server.url, f"{room}/*", failOnDataLoss="false")
    start = careful.latestOffset({}, some)
    assert careless.latestOffset({}, some) == start
    client.stream(a).delete()
    with pytest.raises(StreamLost, match="was deleted since"):
        careful.latestOffset(start, some)
    careful.stop()
    end = careless.latestOffset(start, some)
    assert end.keys() == {b}
    assert end[b] > start[b]
    # So is one that is there again; the new one is read once the server has told of it.
    client.stream(b).delete()
    client.stream(b).create(data=data)
    assert careless.latestOffset(end, some) == {}
    assert careless.latestOffset({}, some).keys() == {b}
    careless.stop()


def test_an_idle_query_waits_on_the_server_and_is_woken(
    server: ServerProcess, client: Client, room: str
) -> None:
    client.stream(f"{room}/a").create(data=b"[1]")
    reader = following(server.url, f"{room}/*", waitSeconds="0.5")
    at = reader.latestOffset({}, EVERYTHING)
    began = time.monotonic()
    assert reader.latestOffset(at, EVERYTHING) == at
    assert time.monotonic() - began > 0.4
    reader.stop()
    patient = following(server.url, f"{room}/*", waitSeconds="20")
    assert patient.latestOffset({}, EVERYTHING) == at
    timer = threading.Timer(0.3, lambda: client.stream(f"{room}/b").create(data=b"[2]"))
    timer.start()
    began = time.monotonic()
    assert patient.latestOffset(at, EVERYTHING).keys() == {f"{room}/a", f"{room}/b"}
    assert time.monotonic() - began < 5
    timer.join()
    patient.stop()


def test_a_stream_that_is_no_longer_asked_for_is_no_loss(
    server: ServerProcess, client: Client, room: str
) -> None:
    client.stream(f"{room}/a").create(data=b"[1]")
    start = {f"{room}/gone": f"{1:016d}_{0:016d}"}
    reader = following(server.url, f"{room}/a")
    assert reader.latestOffset(start, EVERYTHING).keys() == {f"{room}/a"}
    reader.stop()


def test_what_is_available_now_stays_that(server: ServerProcess, client: Client, room: str) -> None:
    client.stream(f"{room}/a").create(data=b"[1]")
    reader = following(server.url, f"{room}/*")
    reader.prepareForTriggerAvailableNow()
    client.stream(f"{room}/a").append(b"[2]")
    client.stream(f"{room}/b").create(data=b"[3]")
    end = reader.latestOffset({}, EVERYTHING)
    assert end.keys() == {f"{room}/a"}
    assert end[f"{room}/a"] < client.stream(f"{room}/a").head().next_offset
    assert reader.latestOffset(end, EVERYTHING) == end
    reader.stop()


def test_a_batch_may_name_more_streams_than_a_request_holds(
    server: ServerProcess, client: Client, room: str
) -> None:
    names = [f"{room}/{number:04}" for number in range(1001)]
    for name in names:
        client.stream(name).create(data=b"[1]")
    assert [row["stream"] for row in rows(server.url, json.dumps(names))] == names
