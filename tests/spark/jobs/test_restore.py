"""An archive back to streams: refusals, choices, and kills in the middle."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headwater.client import Client
from headwater.errors import BadOption, RestoreRefused
from headwater.spark.archives import load
from headwater.spark.jobs.archive import archive
from headwater.spark.jobs.restore import Restored, restore
from headwater.spark.ranges import byte_of
from tests.spark.drivers import kill_all
from tests.spark.jobs.driving import KILLS, job_driver
from tests.spark.patience import PATIENCE
from tests.support.server import ServerProcess


class Kept:
    """An archive of two streams, one of them closed, and a server that has none of them."""

    def __init__(self, spark: SparkSession, folder: Path, url: str) -> None:
        self.spark = spark
        self.folder = folder
        self.url = url
        self.messages: list[bytes] = []
        self.offsets: list[str] = []

    def restore(self, **options: Any) -> Restored:
        return restore(self.spark, folder=str(self.folder), url=self.url, **options)


@pytest.fixture(scope="module")
def source(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[bytes], list[str]]:
    """An archive that tests only read: its folder, and messages and offsets of `log`."""
    tmp_path = tmp_path_factory.mktemp("kept")
    with ServerProcess() as server, Client(server.url) as client:
        items = [{"n": number, "text": "ü" * (number % 9)} for number in range(2000)]
        client.stream("log").create(data=json.dumps(items, ensure_ascii=False).encode())
        client.stream("log").close()
        client.stream("raw/data").create("text/plain", data="grün\n".encode() * 500)
        query = archive(
            spark,
            {"url": server.url, "stream": "**", "maxBytesPerTrigger": "20k"},
            folder=str(tmp_path / "archive"),
            checkpoint=str(tmp_path / "checkpoint"),
            trigger={"availableNow": True},
        )
        assert query.awaitTermination(PATIENCE)
        batches = list(client.stream("log").read().batches())
        messages = [message for batch in batches for message in batch.messages()]
    at, offsets = 0, []
    for message in messages:
        at += len(message) + 2
        offsets.append(f"{1:016d}_{at:016d}")
    return tmp_path / "archive", messages, offsets


@pytest.fixture
def kept(
    spark: SparkSession, server: ServerProcess, source: tuple[Path, list[bytes], list[str]]
) -> Kept:
    made = Kept(spark, source[0], server.url)
    _, made.messages, made.offsets = source
    return made


def messages(client: Client, path: str) -> list[bytes]:
    return [m for batch in client.stream(path).read().batches() for m in batch.messages()]


def test_a_stream_comes_back_at_another_path_and_is_closed(
    kept: Kept, client: Client, room: str
) -> None:
    done = kept.restore(stream={"log": f"{room}/log", "raw/data": f"{room}/raw"})
    log, raw = done.streams
    assert messages(client, f"{room}/log") == kept.messages
    assert (log.messages, log.appended, log.closed) == (2000, log.bytes, True)
    assert byte_of(log.offset) == byte_of(kept.offsets[-1])
    assert "".join(client.stream(f"{room}/raw").read().text()) == "grün\n" * 500
    assert client.stream(f"{room}/raw").head().content_type == "text/plain"
    assert not raw.closed
    again = kept.restore(stream={"log": f"{room}/log"})
    assert again.streams[0].appended == 0
    assert messages(client, f"{room}/log") == kept.messages


def test_a_stream_comes_back_up_to_an_offset_and_later_the_rest(
    kept: Kept, client: Client, room: str
) -> None:
    target = {"log": f"{room}/log"}
    done = kept.restore(stream=target, until={"log": kept.offsets[6]})
    assert messages(client, f"{room}/log") == kept.messages[:7]
    assert not done.streams[0].closed
    done = kept.restore(stream=target, close=False)
    assert messages(client, f"{room}/log") == kept.messages
    assert not done.streams[0].closed


def test_an_until_that_is_no_offset_is_refused(kept: Kept) -> None:
    with pytest.raises(BadOption, match="'100', for 'log', is no offset"):
        kept.restore(stream="log", until={"log": "100"})


def test_bytes_come_back_up_to_any_byte(kept: Kept, client: Client, room: str) -> None:
    reached = load(kept.folder).streams["raw/data"][0].reached
    until = f"{reached[:16]}_{1003:016d}"
    kept.restore(stream={"raw/data": f"{room}/raw"}, until={"raw/data": until})
    assert client.stream(f"{room}/raw").head().next_offset.endswith(f"{1003:016d}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stream": "nothing/*"}, "holds no such stream"),
        ({"stream": {"nothing": "x"}}, "holds no such stream"),
        ({"stream": "log", "incarnation": 3}, "1 incarnations"),
        ({"stream": "log", "until": {"log": f"{1:016d}_{10**9:016d}"}}, "the archive reaches"),
        ({"stream": "log", "until": {"other": f"{1:016d}_{1:016d}"}}, "not among those"),
        ({"stream": "log", "until": {"log": f"{1:016d}_{3:016d}"}}, "no message ends at"),
    ],
)
def test_what_cannot_be_restored_is_said_before_anything_is_written(
    kept: Kept, options: dict[str, Any], message: str
) -> None:
    with ServerProcess() as empty, Client(empty.url) as client:
        kept.url = empty.url
        with pytest.raises(RestoreRefused, match=message):
            kept.restore(**options)
        assert all(byte_of(each.tail) == 0 for each in client.streams())


def test_a_folder_that_is_no_archive_and_a_url_that_is_none_are_refused(
    kept: Kept, tmp_path: Path
) -> None:
    with pytest.raises(BadOption, match="url"):
        restore(kept.spark, folder=str(kept.folder), url="localhost")
    kept.folder = tmp_path
    with pytest.raises(RestoreRefused, match="is not an archive"):
        kept.restore()


def test_a_stream_that_holds_something_else_is_left_alone(
    kept: Kept, client: Client, room: str
) -> None:
    client.stream(f"{room}/log").create(data=b"[1,2]")
    client.stream(f"{room}/text").create("text/plain")
    with pytest.raises(RestoreRefused, match="does not hold the expected data"):
        kept.restore(stream={"log": f"{room}/log"})
    assert messages(client, f"{room}/log") == [b"1", b"2"]
    with pytest.raises(RestoreRefused, match="text"):
        kept.restore(stream={"log": f"{room}/text"})


def test_a_stream_that_holds_more_is_refused(kept: Kept, client: Client, room: str) -> None:
    kept.restore(stream={"log": f"{room}/log"}, close=False)
    client.stream(f"{room}/log").append({"more": 1})
    with pytest.raises(RestoreRefused, match="somebody else appends"):
        kept.restore(stream={"log": f"{room}/log"})


@pytest.fixture
def copy(kept: Kept, tmp_path: Path) -> Kept:
    """A copy of the archive that may be damaged."""
    for file in kept.folder.rglob("*"):
        if file.is_file():
            target = tmp_path / "copy" / file.relative_to(kept.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    kept.folder = tmp_path / "copy"
    return kept


def test_a_missing_file_is_a_gap_and_what_lies_before_it_can_be_had(
    copy: Kept, client: Client, room: str
) -> None:
    _, second, *_ = load(copy.folder).streams["log"][0].files
    (copy.folder / second.name).unlink()
    with pytest.raises(
        RestoreRefused, match=f"missing, with all of 'log' behind byte {second.start}"
    ) as refused:
        copy.restore(stream={"log": f"{room}/log"})
    assert not client.stream(f"{room}/log").exists()
    until = f"{1:016d}_{second.start:016d}"
    assert str(refused.value).endswith(f"with an 'until'. It is '{until}'.")
    copy.restore(stream={"log": f"{room}/log"}, until={"log": until})
    assert byte_of(client.stream(f"{room}/log").head().next_offset) == second.start


@pytest.mark.parametrize("where", ["size", "bit"])
def test_a_damaged_file_is_noticed(copy: Kept, room: str, where: str) -> None:
    first, *_ = load(copy.folder).streams["log"][0].files
    data = bytearray((copy.folder / first.name).read_bytes())
    if where == "size":
        data = data[:-10]
    else:
        data[len(data) // 2] ^= 4
    (copy.folder / first.name).write_bytes(data)
    with pytest.raises(RestoreRefused, match="can't be used"):
        copy.restore(stream={"log": f"{room}/log"})


def test_a_missing_entry_of_the_log_is_a_gap(copy: Kept, room: str) -> None:
    entries = sorted((copy.folder / "_log").glob("*.json"))
    taken = next(entry for entry in entries if b'"start":0' in entry.read_bytes())
    taken.write_bytes(b"{}")
    with pytest.raises(RestoreRefused, match=r"not at its beginning|is missing"):
        copy.restore(stream={"log": f"{room}/log"})


def test_an_archive_without_the_beginning_is_restored_only_on_request(
    spark: SparkSession, server: ServerProcess, client: Client, room: str, tmp_path: Path
) -> None:
    stream = client.stream(f"{room}/a")
    offset = stream.create(data=b"[1,2,3]").next_offset
    stream.append(b"[4,5]")
    query = archive(
        spark,
        {
            "url": server.url,
            "stream": f"{room}/a",
            "startingOffsets": json.dumps({f"{room}/a": offset}),
        },
        folder=str(tmp_path / "archive"),
        checkpoint=str(tmp_path / "checkpoint"),
        trigger={"availableNow": True},
    )
    assert query.awaitTermination(PATIENCE)
    late = Kept(spark, tmp_path / "archive", server.url)
    with pytest.raises(RestoreRefused, match="set missing_start"):
        late.restore(stream={f"{room}/a": f"{room}/b"})
    late.restore(stream={f"{room}/a": f"{room}/b"}, missing_start=True)
    assert messages(client, f"{room}/b") == [b"4", b"5"]


def test_killed_restores_are_gone_on_with_and_leave_every_byte_once(
    kept: Kept, client: Client, room: str, tmp_path: Path
) -> None:
    path = f"{room}/log"
    end = byte_of(kept.offsets[-1])
    arguments = {
        "folder": str(kept.folder),
        "url": kept.url,
        "stream": {"log": path},
        "chunk_bytes": 40,
    }
    tails = [0]
    for _ in range(KILLS):
        with job_driver("restore", tmp_path, arguments) as process:
            until = time.monotonic() + PATIENCE
            while process.poll() is None:
                assert time.monotonic() < until
                if client.stream(path).exists():
                    tail = byte_of(client.stream(path).head().next_offset)
                    if tail > tails[-1] + 500:
                        break
                time.sleep(0.01)
            kill_all(process.pid)
        tails.append(byte_of(client.stream(path).head().next_offset))
    assert tails == sorted(set(tails))
    assert tails[-1] < end
    done = kept.restore(stream={"log": path})
    assert done.streams[0].appended == end - tails[-1]
    assert messages(client, path) == kept.messages
    assert client.stream(path).head().closed
