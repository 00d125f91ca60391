"""Readers that start from a compact stream, over a real server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.client import Client, Stream
from headwater.errors import StateError
from headwater.state import (
    SqliteBackend,
    StreamDB,
    begin_from_snapshot,
    change,
    collection,
    define_stream_state,
    encode_events,
    find_snapshots,
)
from headwater.state.snapshots import end_event, start_event
from tests.support.server import ServerProcess


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with ServerProcess() as server, Client(server.url) as client:
        yield client


@pytest.fixture
def streams(client: Client, request: pytest.FixtureRequest) -> tuple[Stream, Stream]:
    name = request.node.name
    source, compact = client.stream(f"{name}/ä source"), client.stream(f"{name}/compact")
    source.create()
    compact.create()
    return source, compact


def path(request: pytest.FixtureRequest) -> str:
    return f"{request.node.name}/ä source"


def write(compact: Stream, source: str, offset: str, values: dict[str, Any]) -> str:
    """Append a snapshot; gives where it begins."""
    begin = compact.head().next_offset
    compact.append(b"[" + start_event(source, offset) + b"]")
    for key, value in values.items():
        compact.append(change("insert", "a", key, value).encode())
    compact.append(b"[" + end_event(source, offset, begin) + b"]")
    return begin


def shown(db: StreamDB) -> dict[str, Any]:
    db.preload(timeout=60)
    return {key: db["a"].get(key) for key in db["a"]}


def test_the_last_whole_snapshot_is_found_from_the_end(
    streams: tuple[Stream, Stream], request: pytest.FixtureRequest
) -> None:
    source, compact = streams
    assert find_snapshots(compact) == (None, None)
    offset = source.head().next_offset
    big = {str(number): "x" * 30_000 for number in range(40)}
    write(compact, path(request), offset, big)
    begin = write(compact, path(request), offset, big)
    end = compact.head().next_offset
    compact.append(start_event(path(request), offset))  # given up
    opened = compact.head().next_offset
    compact.append(start_event(path(request), offset))
    for key, value in big.items():
        compact.append(change("insert", "a", key, value).encode())
    whole, last = find_snapshots(compact)
    assert whole is not None
    assert last is not None
    assert (whole.begin, whole.end, whole.source) == (begin, end, path(request))
    assert (last.begin, last.end, last.whole) == (opened, "", False)


def test_values_and_types_that_look_like_controls_are_none(
    streams: tuple[Stream, Stream], request: pytest.FixtureRequest
) -> None:
    source, compact = streams
    begin = write(compact, path(request), source.head().next_offset, {"1": '"snapshot-end"'})
    compact.append(b'{"headers": ["snapshot-end"]}')
    compact.append({"headers": {"control": "snapshot-end"}})  # of another program
    whole, opened = find_snapshots(compact)
    assert whole is not None
    assert whole.begin == begin
    assert opened is None


@pytest.mark.parametrize("kept", ["memory", "file"])
def test_a_database_goes_on_behind_the_snapshot(
    kept: str, streams: tuple[Stream, Stream], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source, compact = streams
    source.append(change("insert", "a", "old", "never read").encode())
    offset = source.head().next_offset
    write(compact, path(request), offset, {"0": "an older snapshot"})
    write(compact, path(request), offset, {"1": 1, "2": 2})
    compact.append(start_event(path(request), offset))
    source.append(encode_events([change("delete", "a", "1"), change("insert", "a", "3", 3)]))
    backend = SqliteBackend(tmp_path / "state.db") if kept == "file" else None
    with StreamDB(source, backend=begin_from_snapshot(compact, source, backend=backend)) as db:
        assert shown(db) == {"2": 2, "3": 3}
        source.append(change("insert", "a", "4", 4).encode())
    if kept == "file":
        again = begin_from_snapshot(compact, source, backend=tmp_path / "state.db")
        with StreamDB(source, backend=again) as db:
            assert shown(db) == {"2": 2, "3": 3, "4": 4}


def test_values_of_a_snapshot_are_checked_as_others_are(
    streams: tuple[Stream, Stream], request: pytest.FixtureRequest
) -> None:
    source, compact = streams
    write(compact, path(request), source.head().next_offset, {"1": 1, "2": "no number"})
    state = define_stream_state({"numbers": collection(int, type="a")})
    backend = begin_from_snapshot(compact, source, state)
    with StreamDB(source, state, backend=backend) as db:
        db.preload(timeout=60)
        assert list(db.numbers) == ["1"]
        assert [each.key for each in db.quarantined()] == ["2"]


def test_without_a_snapshot_everything_is_read(streams: tuple[Stream, Stream]) -> None:
    source, compact = streams
    source.append(change("insert", "a", "1", 1).encode())
    with StreamDB(source, backend=begin_from_snapshot(compact, source)) as db:
        assert shown(db) == {"1": 1}


def test_a_snapshot_of_another_stream_is_refused(
    streams: tuple[Stream, Stream], client: Client
) -> None:
    source, compact = streams
    write(compact, "another", source.head().next_offset, {})
    with pytest.raises(StateError, match="holds snapshots of 'another'"):
        begin_from_snapshot(compact, source)
