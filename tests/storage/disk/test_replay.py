"""What a record does to its stream is decided on values, the same for a start and every tool."""

import pytest

from headwater.storage.disk.records import (
    NOTHING_ELSE,
    AppendExtras,
    AppendRecord,
    CreateMeta,
    CreateRecord,
    DeleteRecord,
    KeepRecord,
    Record,
)
from headwater.storage.disk.replay import (
    AlreadyKnown,
    Applies,
    Gap,
    KnownStream,
    UnknownStream,
    decide_replay,
)

OPEN = KnownStream(end=10)
CLOSED = KnownStream(end=10, closed=True)
DELETED = KnownStream(end=10, deleted=True)


def created(source: int = 0) -> CreateRecord:
    meta = CreateMeta("s", "text/plain", None, None, None, closed=False, now=0.0, source=source)
    return CreateRecord(7, meta, b"")


def appended(start: int, data: bytes = b"abc", *, close: bool = False) -> AppendRecord:
    return AppendRecord(7, start, 0.0, AppendExtras(close) if close else NOTHING_ELSE, data)


@pytest.mark.parametrize(
    ("record", "stream"),
    [
        (created(), None),
        (appended(10), OPEN),
        (appended(10, b"", close=True), OPEN),
        (DeleteRecord(7, 0.0), OPEN),
        (DeleteRecord(7, 0.0), CLOSED),
        (KeepRecord(0, {"a": b"1"}), None),
    ],
)
def test_a_record_that_continues_its_stream_applies(
    record: Record, stream: KnownStream | None
) -> None:
    assert decide_replay(record, stream) == Applies(record)


@pytest.mark.parametrize(
    ("record", "stream"),
    [
        (created(), OPEN),
        (appended(7), OPEN),
        (appended(0), OPEN),
        (appended(10, b"", close=True), CLOSED),
    ],
)
def test_what_the_stream_already_has_is_known(
    record: CreateRecord | AppendRecord, stream: KnownStream
) -> None:
    assert decide_replay(record, stream) == AlreadyKnown(record)


def test_an_append_after_a_lost_one_is_a_gap() -> None:
    found = decide_replay(appended(12), OPEN)
    assert found == Gap(appended(12), 10)
    assert str(found) == "bytes 10 to 12 before it are missing"


@pytest.mark.parametrize("record", [appended(10), DeleteRecord(7, 0.0)])
@pytest.mark.parametrize("stream", [None, DELETED])
def test_a_record_of_a_stream_that_is_not_there_is_refused(
    record: AppendRecord | DeleteRecord, stream: KnownStream | None
) -> None:
    found = decide_replay(record, stream)
    assert found == UnknownStream(record)
    assert str(found) == "it belongs to an unknown stream"


@pytest.mark.parametrize("source", [None, DELETED])
def test_a_fork_needs_its_source(source: KnownStream | None) -> None:
    record = created(source=3)
    assert decide_replay(record, None, OPEN) == Applies(record)
    found = decide_replay(record, None, source)
    assert found == UnknownStream(record)
    assert str(found) == "it creates a fork of the unknown stream 3"
