"""What the readers do, called as Spark calls them, on a real server."""

import json
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from headwater.client import Client, Retry
from headwater.errors import BadOption, CorruptMessage, StreamLost, Unreachable
from headwater.spark.source import HeadwaterDataSource
from headwater.spark.stream_reader import StreamReader
from tests.support.barrier import barrier
from tests.support.patience import PATIENCE_SECONDS, wait_until
from tests.support.proxy import Proxy
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


def test_an_idle_query_waits_on_the_server_for_some_time(
    server: ServerProcess, client: Client, room: str
) -> None:
    client.stream(f"{room}/a").create(data=b"[1]")
    reader = following(server.url, f"{room}/*", waitSeconds="0.1")
    at = reader.latestOffset({}, EVERYTHING)
    assert reader.latestOffset(at, EVERYTHING) == at
    reader.stop()


def test_an_idle_query_that_waits_on_the_server_is_woken(room: str) -> None:
    with (
        ServerProcess("--long-poll-timeout", "3600") as server,
        Client(server.url) as client,
        Proxy(server.url) as proxy,
        ThreadPoolExecutor(1) as pool,
    ):
        client.stream(f"{room}/a").create(data=b"[1]")
        reader = following(proxy.url, f"{room}/*", timeoutSeconds="3600")
        at = reader.latestOffset({}, EVERYTHING)
        # Longer than a user may choose: only a change ends this in time.
        reader.options = msgspec.structs.replace(reader.options, wait=3600.0)
        asked = len(proxy.requests)
        found = pool.submit(reader.latestOffset, at, EVERYTHING)
        try:
            wait_until(lambda: len(proxy.requests) > asked, "the request that waits")
            barrier(server.port)
            client.stream(f"{room}/b").create(data=b"[2]")
            assert found.result(PATIENCE_SECONDS).keys() == {f"{room}/a", f"{room}/b"}
        finally:
            reader.stop()


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


def test_a_message_that_is_no_variant_is_found(
    server: ServerProcess, client: Client, room: str
) -> None:
    long = b"9" * 5000
    client.stream(room).create(data=b'[{"n":1},' + long + b",7]")
    offset = rows(server.url, room)[1]["offset"]
    with pytest.raises(CorruptMessage, match="it is no variant") as refused:
        rows(server.url, room, valueType="variant")
    assert room in str(refused.value)
    assert offset in str(refused.value)
    found = rows(server.url, room, valueType="variant", onCorrupt="column")
    assert [row["_corrupt"] for row in found] == [None, long.decode(), None]
    assert [row["value"] is None for row in found] == [False, True, False]


def test_each_stream_begins_where_it_was_told(
    server: ServerProcess, client: Client, room: str
) -> None:
    ends = {}
    for name in ("a", "b", "c"):
        stream = client.stream(f"{room}/{name}")
        stream.create(data=b"[1]")
        ends[name] = stream.head().next_offset
        stream.append(b"[2]")
    chosen = {f"{room}/a": ends["a"], f"{room}/b": "latest"}
    reader = following(server.url, f"{room}/*", startingOffsets=json.dumps(chosen))
    start = reader.initialOffset()
    end = reader.latestOffset(start, EVERYTHING)
    seen: dict[str, list[str]] = {}
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            for row in batch.to_pylist():
                seen.setdefault(row["stream"], []).append(row["value"])
    assert seen == {f"{room}/a": ["2"], f"{room}/c": ["1", "2"]}
    reader.stop()
    with pytest.raises(BadOption, match="'elsewhere' is none of the streams"):
        following(server.url, f"{room}/*", startingOffsets='{"elsewhere": "latest"}')


def test_a_stream_that_has_expired_is_gone(
    server: ServerProcess, client: Client, room: str
) -> None:
    short, long = f"{room}/short", f"{room}/long"
    client.stream(long).create(data=b"[1]")
    for seconds in (1, 5, 25):  # It lives longer where it was gone before it was seen.
        client.stream(short).create(data=b"[1]", expires_at=in_some(seconds))
        reader = following(server.url, f"{room}/*")
        careless = following(server.url, f"{room}/*", failOnDataLoss="false")
        start = reader.latestOffset({}, EVERYTHING)
        if careless.latestOffset({}, EVERYTHING).keys() == {short, long}:
            break
        reader.stop()
        careless.stop()
    assert start.keys() == {short, long}
    wait_until(lambda: not client.stream(short).exists(), "the end of the stream")
    with pytest.raises(StreamLost, match="was deleted since"):
        reader.latestOffset(start, EVERYTHING)
    assert careless.latestOffset(start, EVERYTHING).keys() == {long}
    reader.stop()
    careless.stop()


def in_some(seconds: int) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize("starting", ["latest", '{"ROOM/a": "latest"}'])
def test_what_comes_after_the_start_is_read_however_often_spark_asks_where_it_begins(
    server: ServerProcess, client: Client, room: str, starting: str
) -> None:
    stream = client.stream(f"{room}/a")
    stream.create(data=b"[1]")
    chosen = {"startingOffsets": starting.replace("ROOM", room)}
    reader = following(server.url, f"{room}/*", **chosen)
    start = reader.initialOffset()
    stream.append(b"[2]")
    first = reader.latestOffset(start, EVERYTHING)
    stream.append(b"[3]")
    again = reader.initialOffset()
    assert read_between(reader, again, first) == []
    # The driver is killed and the first batch is run anew, by a reader that knows only its end.
    other = following(server.url, f"{room}/*", **chosen)
    assert read_between(other, other.initialOffset(), first) == []
    client.stream(f"{room}/b").create(data=b"[4]")
    for going_on in (reader, other):
        second = going_on.latestOffset(first, EVERYTHING)
        third = going_on.latestOffset(second, EVERYTHING)
        assert read_between(going_on, first, third) == ["2", "3", "4"]
        going_on.stop()


def test_a_first_batch_reads_the_streams_whose_beginning_stays_where_it_is(
    server: ServerProcess, client: Client, room: str
) -> None:
    for name in ("a", "b"):
        client.stream(f"{room}/{name}").create(data=b"[1]")
    starting = json.dumps({f"{room}/a": "latest", f"{room}/b": "earliest"})
    reader = following(server.url, f"{room}/*", startingOffsets=starting)
    start = reader.initialOffset()
    first = reader.latestOffset(start, EVERYTHING)
    assert read_between(reader, reader.initialOffset(), first) == ["1"]
    reader.stop()


def read_between(reader: StreamReader, start: dict[str, str], end: dict[str, str]) -> list[str]:
    return [
        row["value"]
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def test_a_stream_of_a_server_that_began_anew_is_not_taken_for_the_one_before(room: str) -> None:
    with ServerProcess() as first, Client(first.url) as client:
        client.stream(room).create(data=json.dumps(["old"] * 60).encode())
        port = first.url.rpartition(":")[2]
        reader = following(first.url, room)
        read = reader.latestOffset({}, EVERYTHING)
        (planned,) = reader.partitions({}, read)
        reader.stop()
    with ServerProcess("--port", port) as second, Client(second.url) as client:
        client.stream(room).create(data=json.dumps(["new"] * 10).encode())
        # Epochs are counted from the start of a server that keeps nothing: this one is the same.
        assert client.stream(room).head().next_offset[:16] == read[room][:16]
        again = following(second.url, room)
        with pytest.raises(StreamLost, match="created again"):
            again.latestOffset(read, EVERYTHING)
        with pytest.raises(StreamLost, match="has become shorter"):
            list(again.read(planned))
        careless = following(second.url, room, failOnDataLoss="false")
        end = careless.latestOffset(read, EVERYTHING)
        assert read_between(careless, read, end) == ['"new"'] * 10
        client.stream("other").create()
        client.stream(room).delete()
        client.stream(room).create(data=json.dumps(["newer"] * 5).encode())
        later = following(second.url, room, failOnDataLoss="false")
        end = later.latestOffset(read, EVERYTHING)
        assert read_between(later, read, end) == ['"newer"'] * 5
        for each in (again, careless, later):
            each.stop()


def test_offsets_that_lie_the_wrong_way_round_are_refused(
    server: ServerProcess, client: Client, room: str
) -> None:
    client.stream(room).create(data=b"[1,2,3]")
    first, second, third = (row["offset"] for row in rows(server.url, room))
    beyond = json.dumps({room: third[:-1] + "99"})
    with pytest.raises(BadOption, match="startingOffsets"):
        rows(server.url, room, startingOffsets=beyond)
    begin, before = json.dumps({room: second}), json.dumps({room: first})
    with pytest.raises(BadOption, match="endingOffsets"):
        rows(server.url, room, startingOffsets=begin, endingOffsets=before)
    assert rows(server.url, room, startingOffsets=begin, endingOffsets=begin) == []


def test_a_query_can_not_begin_behind_the_end_of_a_stream(
    server: ServerProcess, client: Client, room: str
) -> None:
    path = f"{room}/s"
    client.stream(path).create(data=b"[1]")
    epoch = client.stream(path).head().next_offset.split("_")[0]
    starts = json.dumps({path: f"{epoch}_{500:016d}"})
    for lossy in ("true", "false"):
        reader = following(server.url, path, startingOffsets=starts, failOnDataLoss=lossy)
        with pytest.raises(BadOption, match="does not have that offset"):
            reader.initialOffset()
        reader.stop()


def test_a_named_stream_that_is_not_there_yet_is_told_of_and_read_later(
    server: ServerProcess, client: Client, room: str, caplog: pytest.LogCaptureFixture
) -> None:
    reader = following(server.url, f"{room}/late", waitSeconds="0")
    assert reader.latestOffset({}, ReadAllAvailable()) == {}
    assert f"there is no stream '{room}/late' yet" in caplog.text
    client.stream(f"{room}/late").create(data=b"[1]")
    assert list(reader.latestOffset({}, ReadAllAvailable())) == [f"{room}/late"]
    reader.stop()


def test_a_query_may_name_more_streams_than_a_request_holds(
    server: ServerProcess, client: Client, room: str
) -> None:
    paths = [f"{room}/many/{number:04d}-{'x' * 20}" for number in range(1000)]
    client.stream(paths[0]).create(data=b"[1]")
    client.stream(f"{room}/many/other").create(data=b"[2]")
    reader = following(server.url, json.dumps(paths))
    end = reader.latestOffset({}, EVERYTHING)
    assert end.keys() == {paths[0]}
    client.stream(paths[-1]).create(data=b"[3]")
    client.stream(f"{room}/many/other").append(b"[4]")
    assert reader.latestOffset(end, EVERYTHING).keys() == {paths[0], paths[-1]}
    reader.stop()


def retries(caplog: pytest.LogCaptureFixture) -> int:
    """Count how often a request was to be sent again."""
    return sum("trying again" in record.message for record in list(caplog.records))


def test_a_server_that_is_away_for_some_seconds_is_waited_for(
    room: str, caplog: pytest.LogCaptureFixture
) -> None:
    with ServerProcess() as first:
        port = first.url.rpartition(":")[2]
        reader = following(first.url, room)
        reader.latestOffset({}, EVERYTHING)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(reader.latestOffset, {}, EVERYTHING)
        # By then a client with the usual patience has given up.
        wait_until(lambda: retries(caplog) >= Retry().attempts, "more attempts than usual")
        with ServerProcess("--port", port):
            assert found.result(PATIENCE_SECONDS) == {}
    reader.stop()


def test_a_server_that_was_never_there_is_told_of_soon(
    room: str, caplog: pytest.LogCaptureFixture
) -> None:
    with ServerProcess() as gone:
        url = gone.url
    with pytest.raises(Unreachable):
        rows(url, room)
    assert retries(caplog) == Retry().attempts - 1


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (TimestampType(), lambda text: text),
        (ArrayType(TimestampType()), lambda text: [text]),
        (MapType(StringType(), TimestampType()), lambda text: {"k": text}),
    ],
)
def test_a_timestamp_that_no_column_has_room_for_is_corrupt(
    server: ServerProcess, client: Client, room: str, kind: DataType, value: Callable[[str], Any]
) -> None:
    texts = ["2026-11-17T12:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-01:00"]
    client.stream(room).create(data=json.dumps([{"at": value(text)} for text in texts]).encode())
    schema = StructType().add("at", kind)
    with pytest.raises(CorruptMessage, match=room):
        rows(server.url, room, schema)
    found = rows(server.url, room, schema.add("_corrupt", "string"))
    assert [row["_corrupt"] is None for row in found] == [True, False, False]
    assert [row["at"] is None for row in found] == [False, True, True]


def test_an_event_of_a_run_at_no_time_is_corrupt(
    server: ServerProcess, client: Client, room: str
) -> None:
    event = {"runId": "r", "eventType": "RunQueued", "emittedAt": "0001-01-01T00:00:00+14:00"}
    client.stream(room).create(data=json.dumps([event]).encode())
    with pytest.raises(CorruptMessage, match="emitted_at"):
        rows(server.url, room, mode="runs")
    (found,) = rows(server.url, room, mode="runs", onCorrupt="column")
    assert found["_corrupt"] is not None


def test_what_is_never_null_has_no_room_beside_corrupt_messages(
    server: ServerProcess, client: Client, room: str
) -> None:
    client.stream(room).create(data=b'[{"n":"x"}]')
    schema = StructType().add("n", "long", nullable=False).add("_corrupt", "string")
    with pytest.raises(BadOption, match="'n' is NOT NULL"):
        rows(server.url, room, schema)
