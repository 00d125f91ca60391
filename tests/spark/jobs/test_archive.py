"""Streams to Parquet and back, on a real Spark with a real server."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from headwater.client import Client
from headwater.errors import BadOption
from headwater.spark.archives import load
from headwater.spark.archives.log import sweep
from headwater.spark.jobs.archive import archive, archived
from headwater.spark.jobs.restore import restore
from headwater.spark.transforms.state_tables import current_state, violations
from tests.spark.drivers import kill_all
from tests.spark.jobs.driving import KILLS, job_driver
from tests.spark.jobs.materializing import change, control
from tests.spark.patience import PATIENCE
from tests.support.effort import examples
from tests.support.server import ServerProcess


class Archive:
    """One archive of a test."""

    def __init__(self, spark: SparkSession, url: str, streams: str, tmp_path: Path) -> None:
        self.spark = spark
        self.source = {"url": url, "stream": streams}
        self.folder = tmp_path / "archive"
        self.checkpoint = tmp_path / "checkpoint"

    def run(self, **options: str) -> None:
        query = archive(
            self.spark,
            {**self.source, **options},
            folder=str(self.folder),
            checkpoint=str(self.checkpoint),
            trigger={"availableNow": True},
        )
        assert query.awaitTermination(PATIENCE)

    def rows(self, stream: str) -> list[tuple[str, bytes]]:
        found = archived(self.spark, str(self.folder), stream).collect()
        return sorted((row["offset"], bytes(row["value"])) for row in found)


@pytest.fixture
def kept(spark: SparkSession, server: ServerProcess, room: str, tmp_path: Path) -> Archive:
    return Archive(spark, server.url, f"{room}/**", tmp_path)


def test_an_archive_of_state_streams_is_read_as_tables(
    kept: Archive, client: Client, room: str, spark: SparkSession
) -> None:
    events = [
        change("user", "a", "insert", {"n": 1}),
        change("user", "b", "insert", {"n": 2}),
        control("reset"),
        change("user", "a", "insert", {"n": 3}),
    ]
    client.stream(f"{room}/state").create(data=json.dumps(events).encode())
    client.stream(f"{room}/notes").create("text/plain", data=b"no \xff message")
    kept.run()
    rows = archived(spark, str(kept.folder))
    (row,) = current_state(rows, "user", "n long").collect()
    assert (row.stream, row.key, row.n) == (f"{room}/state", "a", 3)
    (aside,) = violations(rows).collect()
    assert (aside.stream, aside.reason) == (f"{room}/notes", "must be a JSON object")


def stored(client: Client, path: str) -> list[bytes]:
    """Everything that a stream holds: messages, or all its bytes as one."""
    batches = list(client.stream(path).read().batches())
    if batches[0].is_json:
        return [message for batch in batches for message in batch.messages()]
    return [b"".join(batch.data for batch in batches)]


def numbers(count: int, start: int = 0) -> bytes:
    return json.dumps([{"n": number} for number in range(start, start + count)]).encode()


def test_messages_are_kept_as_they_are_stored_with_the_offset_behind_each(
    kept: Archive, client: Client, room: str
) -> None:
    stream = client.stream(f"{room}/a")
    stream.create(data=b'[{"a" :  1.0e5}, "\\u00e9\xc3\xa9", [1, [2]], null, "", {"a":1,"a":2}]')
    kept.run()
    values = [value for _, value in kept.rows(f"{room}/a")]
    assert values == stored(client, f"{room}/a")
    assert values[0] == b'{"a" :  1.0e5}'
    last = kept.rows(f"{room}/a")[-1][0]
    assert last == stream.head().next_offset
    second = kept.rows(f"{room}/a")[1][0]
    assert next(stream.read(second).batches()).messages() == values[2:]


def test_an_archive_is_gone_on_with_and_nothing_is_twice(
    kept: Archive, client: Client, room: str
) -> None:
    client.stream(f"{room}/a").create(data=numbers(300))
    kept.run(maxBytesPerTrigger="1000")
    client.stream(f"{room}/a").append(numbers(10, 300))
    client.stream(f"{room}/new").create(data=numbers(5))
    kept.run()
    kept.run()
    assert [value for _, value in kept.rows(f"{room}/a")] == stored(client, f"{room}/a")
    assert [value for _, value in kept.rows(f"{room}/new")] == stored(client, f"{room}/new")


def test_a_lost_checkpoint_and_a_replayed_batch_add_nothing_twice(
    kept: Archive, client: Client, room: str, tmp_path: Path
) -> None:
    client.stream(f"{room}/a").create(data=numbers(300))
    client.stream(f"{room}/b").create("application/octet-stream", data=bytes(range(256)) * 20)
    kept.run(maxBytesPerTrigger="1000")
    *_, last = sorted((kept.checkpoint / "commits").iterdir(), key=lambda file: int(file.name))
    last.unlink()  # as after a crash between the entry of the log and Spark's own
    kept.run()
    assert last.exists()
    client.stream(f"{room}/a").append(numbers(3, 300))
    client.stream(f"{room}/b").append(b"more")
    kept.checkpoint = tmp_path / "another"
    kept.run(maxBytesPerTrigger="777")
    assert [value for _, value in kept.rows(f"{room}/a")] == stored(client, f"{room}/a")
    assert [b"".join(value for _, value in kept.rows(f"{room}/b"))] == stored(client, f"{room}/b")


def test_files_that_no_entry_names_are_no_part_of_the_archive_and_go_when_they_are_old(
    kept: Archive, client: Client, room: str
) -> None:
    client.stream(f"{room}/a").create(data=numbers(10))
    kept.run()
    (file,) = (kept.folder / "streams").glob("*/*.parquet")
    left_over = file.with_name(file.name.replace("-", "-9", 1))
    left_over.write_bytes(file.read_bytes())
    assert len(kept.rows(f"{room}/a")) == 10
    assert sweep(kept.folder, load(kept.folder)) == 0
    assert sweep(kept.folder, load(kept.folder), age=-1) == 1
    assert not left_over.exists()
    assert len(kept.rows(f"{room}/a")) == 10


def test_small_files_are_merged(kept: Archive, client: Client, room: str) -> None:
    stream = client.stream(f"{room}/a")
    stream.create()
    for number in range(9):
        stream.append(numbers(20, 20 * number))
    kept.run(maxBytesPerTrigger="180")
    (incarnation,) = load(kept.folder).streams[f"{room}/a"]
    assert len(incarnation.files) < 8 < incarnation.files[0].rows
    assert [value for _, value in kept.rows(f"{room}/a")] == stored(client, f"{room}/a")


def test_what_is_closed_and_what_is_empty_is_known(
    kept: Archive, client: Client, room: str
) -> None:
    client.stream(f"{room}/closed").create(data=numbers(2), closed=True)
    client.stream(f"{room}/later").create(data=numbers(2))
    client.stream(f"{room}/empty").create("text/plain")
    kept.run()
    streams = load(kept.folder).streams
    assert streams[f"{room}/closed"][0].closed
    assert not streams[f"{room}/later"][0].closed
    assert streams[f"{room}/empty"][0].content_type == "text/plain"
    client.stream(f"{room}/later").close()
    kept.run()
    assert load(kept.folder).streams[f"{room}/later"][0].closed


def test_a_stream_that_is_created_again_is_another_incarnation(
    kept: Archive, client: Client, room: str
) -> None:
    stream = client.stream(f"{room}/a")
    stream.create(data=numbers(20))
    kept.run()
    stream.delete()
    stream.create(data=numbers(3, 100))
    with pytest.raises(StreamingQueryException, match="failOnDataLoss"):
        kept.run()
    kept.run(failOnDataLoss="false")
    assert [len(each.files) for each in load(kept.folder).streams[f"{room}/a"]] == [1, 1]
    url = kept.source["url"]
    for number, count in ((0, 20), (1, 3), (-1, 3)):
        target = f"{room}-back/{number}"
        done = restore(
            kept.spark,
            folder=str(kept.folder),
            url=url,
            stream={f"{room}/a": target},
            incarnation=number,
        )
        assert done.messages == len(stored(client, target)) == count


def both(kept: Archive, client: Client, room: str) -> list[list[bytes]]:
    """Both incarnations of a stream, as they come back."""
    for number in (0, 1):
        restore(
            kept.spark,
            folder=str(kept.folder),
            url=kept.source["url"],
            stream={f"{room}/a": f"{room}-back/{number}"},
            incarnation=number,
        )
    assert len(load(kept.folder).streams[f"{room}/a"]) == 2
    return [stored(client, f"{room}-back/{number}") for number in (0, 1)]


@pytest.mark.parametrize("limit", ["1m", "100"])
def test_a_stream_that_comes_back_as_a_fork_of_an_older_one_is_archived_whole(
    kept: Archive, client: Client, room: str, limit: str
) -> None:
    older = client.stream(f"{room}-older")
    older.create(data=numbers(30, 500))
    stream = client.stream(f"{room}/a")
    stream.create(data=numbers(20))
    before = stored(client, f"{room}/a")
    kept.run()
    stream.delete()
    older.fork(f"{room}/a")
    stream.append(numbers(3, 100))
    kept.run(failOnDataLoss="false", maxBytesPerTrigger=limit)
    stream.append(numbers(2, 200))
    kept.run(failOnDataLoss="false")
    kept.checkpoint = kept.checkpoint.with_name("another")
    kept.run()  # from the start: all of it is there
    assert both(kept, client, room) == [before, stored(client, f"{room}/a")]


def test_a_fork_that_comes_back_from_an_earlier_point_is_archived_whole(
    kept: Archive, client: Client, room: str
) -> None:
    older = client.stream(f"{room}-older", content_type="application/json")
    middle = older.create(data=numbers(10)).next_offset
    older.append(numbers(10, 10))
    older.fork(f"{room}/a")
    before = stored(client, f"{room}/a")
    kept.run()
    client.stream(f"{room}/a").delete()
    older.fork(f"{room}/a", offset=middle)
    kept.run(failOnDataLoss="false")
    client.stream(f"{room}/a").append(numbers(3, 100))
    kept.run(failOnDataLoss="false")
    assert both(kept, client, room) == [before, stored(client, f"{room}/a")]


def test_options_that_would_change_messages_are_refused(kept: Archive) -> None:
    with pytest.raises(BadOption, match="an archive keeps messages as they are"):
        kept.run(mode="state")
    with pytest.raises(BadOption, match="there is none of that name"):
        kept.run(nonsense="1")


def test_object_storage_is_refused_by_all_who_use_an_archive(kept: Archive) -> None:
    folder = "s3://bucket/archive"
    with pytest.raises(BadOption, match="no folder of this machine"):
        archive(kept.spark, kept.source, folder=folder, checkpoint=str(kept.checkpoint))
    with pytest.raises(BadOption, match="no folder of this machine"):
        archived(kept.spark, folder)
    with pytest.raises(BadOption, match="no folder of this machine"):
        restore(kept.spark, folder=folder, url=kept.source["url"])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
PATHS = st.text(
    st.characters(blacklist_categories=("C", "Z"), blacklist_characters="/\\*?#%"),
    min_size=1,
    max_size=30,
).filter(lambda text: text not in {".", "..", "__ds"} and text.isprintable())


@settings(
    max_examples=examples(2, 20),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    messages=st.dictionaries(PATHS, st.lists(JSON, max_size=20), min_size=1, max_size=6),
    pieces=st.dictionaries(PATHS, st.lists(st.binary(min_size=1), max_size=8), max_size=4),
    limit=st.sampled_from(["50", "500", "1m"]),
)
def test_what_goes_in_comes_back_byte_for_byte(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    messages: dict[str, list[Any]],
    pieces: dict[str, list[bytes]],
    limit: str,
) -> None:
    tmp_path = tmp_path_factory.mktemp("odd")
    with ServerProcess() as first, Client(first.url) as client:
        for path, values in messages.items():
            stream = client.stream(f"json/{path}")
            stream.create()
            for value in values:
                stream.append_many([value])
        for path, parts in pieces.items():
            stream = client.stream(f"bytes/{path}")
            stream.create("application/octet-stream")
            for part in parts:
                stream.append(part)
            stream.close()
        Archive(spark, first.url, "**", tmp_path).run(maxBytesPerTrigger=limit)
        before = {each.path: stored(client, each.path) for each in client.streams()}
        ends = {each.path: (each.tail[16:], each.closed) for each in client.streams()}
    with ServerProcess() as second, Client(second.url) as client:
        done = restore(spark, folder=str(tmp_path / "archive"), url=second.url)
        assert {each.path: stored(client, each.path) for each in client.streams()} == before
        assert {each.path: (each.tail[16:], each.closed) for each in client.streams()} == ends
        assert done.bytes == sum(int(tail[1:]) for tail, _ in ends.values())


def test_a_row_of_the_archive_has_its_stream_and_its_message(
    kept: Archive, client: Client, room: str
) -> None:
    client.stream(f"{room}/a").create(data=b"[1]")
    kept.run()
    (row,) = archived(kept.spark, str(kept.folder)).collect()
    assert msgspec.json.decode(row["value"]) == 1
    assert row["stream"] == f"{room}/a"


def test_killed_archives_are_gone_on_with_and_hold_every_message_once(
    kept: Archive, client: Client, room: str, tmp_path: Path
) -> None:
    count = 500 + 1000 * KILLS  # some more batches than are waited for
    for name in ("a", "b"):
        client.stream(f"{room}/{name}").create(data=numbers(count))
    arguments = {
        "source": {**kept.source, "maxBytesPerTrigger": "4000"},
        "folder": str(kept.folder),
        "checkpoint": str(kept.checkpoint),
    }

    def entries() -> int:
        return len(list((kept.folder / "_log").glob("*.json")))

    for _ in range(KILLS):
        before = entries()
        with job_driver("archive", tmp_path, arguments) as process:
            until = time.monotonic() + PATIENCE
            while process.poll() is None and entries() < before + 2:
                assert time.monotonic() < until
                time.sleep(0.01)
            kill_all(process.pid)
        assert process.returncode == -signal.SIGKILL, (tmp_path / "driver.log").read_text()[-2000:]
    assert len(kept.rows(f"{room}/a")) < count
    kept.run()
    for name in ("a", "b"):
        values = [value for _, value in kept.rows(f"{room}/{name}")]
        assert values == stored(client, f"{room}/{name}")
