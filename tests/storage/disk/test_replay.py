"""What a record does to its stream is decided on values, the same for a start and every tool."""

import pytest

from headwater.protocol.lifecycle import WriterState
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
    UnknownStream,
    decide_replay,
)

OPEN = WriterState(end=10)
CLOSED = WriterState(end=10, closed=True)


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
    record: Record, stream: WriterState | None
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
    record: CreateRecord | AppendRecord, stream: WriterState
) -> None:
    assert decide_replay(record, stream) == AlreadyKnown(record)


def test_an_append_after_a_lost_one_is_a_gap() -> None:
    found = decide_replay(appended(12), OPEN)
    assert found == Gap(appended(12), 10)
    assert str(found) == "bytes 10 to 12 before it are missing"


@pytest.mark.parametrize("record", [appended(10), DeleteRecord(7, 0.0)])
def test_a_record_of_a_stream_that_is_not_there_is_refused(
    record: AppendRecord | DeleteRecord,
) -> None:
    found = decide_replay(record, None)
    assert found == UnknownStream(record)
    assert str(found) == "it belongs to an unknown stream"


def test_a_fork_needs_its_source() -> None:
    record = created(source=3)
    assert decide_replay(record, None, OPEN) == Applies(record)
    found = decide_replay(record, None)
    assert found == UnknownStream(record)
    assert str(found) == "it creates a fork of the unknown stream 3"
