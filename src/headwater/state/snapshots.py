"""A compact stream: snapshots of another stream's state, and where to go on in that stream.

A snapshot is `snapshot-start`, an insert per entity, `snapshot-end`. Both controls carry, in the
protocol's `offset`, the offset of the source that the state is as of, and beside it `source`, the
source's path; the end also has `start`, the offset where the snapshot begins in the compact stream.
So a reader finds the last whole snapshot from the end, reads it alone, and goes on in the source.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from headwater.client import START, Batch, Stream, stream_url
from headwater.errors import StateError
from headwater.protocol.offsets import MalformedOffset, parse_offset
from headwater.state.backend import BEGINNING, Backend, Saved
from headwater.state.events import ControlEvent, ControlHeaders
from headwater.state.fold import Fold, Incoming
from headwater.state.memory import MemoryBackend
from headwater.state.schemas import StreamState
from headwater.state.sqlite import SqliteBackend

_LOOK_BACK_BYTES: Final = 256 * 1024


class _Headers(Struct):
    control: str | UnsetType = UNSET
    offset: str | UnsetType = UNSET
    source: str | UnsetType = UNSET
    start: str | UnsetType = UNSET


class _Message(Struct):
    headers: _Headers


_MESSAGE: Final = msgspec.json.Decoder(_Message)


class Snapshot(Struct, frozen=True):
    """A snapshot of a compact stream."""

    source: str
    """The path of the stream whose state it is."""
    offset: str
    """Where to go on in that stream."""
    begin: str
    """Where it begins in the compact stream."""
    end: str
    """The offset behind it; nothing where it has not ended."""

    @property
    def whole(self) -> bool:
        return bool(self.end)


def start_event(source: str, offset: str) -> bytes:
    """Write the event that a snapshot begins with."""
    headers = ControlHeaders(control="snapshot-start", offset=offset, others={"source": source})
    return ControlEvent(headers=headers).encode()


def end_event(source: str, offset: str, begin: str) -> bytes:
    """Write the event that a snapshot ends with."""
    headers = ControlHeaders(
        control="snapshot-end", offset=offset, others={"source": source, "start": begin}
    )
    return ControlEvent(headers=headers).encode()


def find_snapshots(compact: Stream) -> tuple[Snapshot | None, Snapshot | None]:
    """Find the last whole snapshot, and one behind it that was begun and has not ended.

    Looks from the end on, at pieces that the server cuts.
    """
    opened: Snapshot | None = None
    for start, end in _pieces_from_the_end(compact):
        for snapshot in reversed(list(_controls(compact, start, end))):
            if snapshot.whole:
                return snapshot, opened
            opened = opened or snapshot  # those before it were given up
    return None, opened


def begin_from_snapshot(
    compact: Stream,
    source: Stream,
    state: StreamState | None = None,
    *,
    backend: Backend | str | Path | None = None,
) -> Backend:
    """Fill a backend with the last snapshot of a stream, for a database that goes on behind it.

    `StreamDB(source, state, backend=begin_from_snapshot(compact, source, state))` is at the same
    state as one that has read all of `source`. A backend that holds a state already is left as it
    is; where the compact stream has no snapshot of this source yet, it stays empty.
    """
    if backend is None or isinstance(backend, str | Path):
        backend = MemoryBackend() if backend is None else SqliteBackend(backend)
    if backend.load().offset != BEGINNING:
        return backend
    snapshot, _ = find_snapshots(compact)
    if snapshot is None:
        return backend
    if stream_url(source.client.base_url, snapshot.source, source.client.root) != source.url:
        raise StateError(
            f"{compact.url} holds snapshots of '{snapshot.source}', and not of {source.url}."
        )
    # Whether the offset still is one of this stream is asked before anything is kept.
    next(source.read(snapshot.offset).batches())
    fold = Fold(Saved(), state)
    for batch in _batches(compact, snapshot.begin, snapshot.end):
        fold.take(Incoming(batch.data, batch.start, batch.next_offset))
    work = fold.work(stream=source.url, incarnation=source.head().incarnation or "")
    work.saved = replace(work.saved, offset=snapshot.offset, complete=False)
    backend.commit(work)
    return backend


def _batches(stream: Stream, start: str, end: str) -> Iterator[Batch]:
    """Read from an offset to another one."""
    at = start
    while at == START or at < end:
        batch = next(stream.read(at).batches())
        if batch.empty:
            return
        if batch.next_offset > end:
            batch = _cut(batch, end)
        yield batch
        at = batch.next_offset


def _cut(batch: Batch, end: str) -> Batch:
    """Leave out what lies behind an offset, which a Headwater server counts in bytes."""
    begin = 0 if batch.start == START else int(batch.start[17:])
    data = batch.data[: int(end[17:]) - begin - 1] + b"]"
    return replace(batch, data=data, next_offset=end)


def _pieces_from_the_end(stream: Stream) -> Iterator[tuple[str, str]]:
    tail = stream.head().next_offset
    if isinstance(parse_offset(tail), MalformedOffset):
        raise StateError(f"{stream.url} is not on a Headwater server, where snapshots are found.")
    root = stream_url(stream.client.base_url, "x", stream.client.root)[:-1]
    path = unquote(stream.url.removeprefix(root))
    cuts = stream.client.splits(path, START, tail, size=_LOOK_BACK_BYTES)
    for end in range(len(cuts) - 1, 0, -1):
        yield cuts[end - 1], cuts[end]


def _controls(stream: Stream, start: str, end: str) -> Iterator[Snapshot]:
    """Give the snapshots that begin or end between two offsets."""
    for batch in _batches(stream, start, end):
        at = 0 if batch.start == START else int(batch.start[17:])
        for message in batch.messages():
            before, at = at, at + len(message) + 2
            if b'"snapshot-' not in message:
                continue
            try:
                headers = _MESSAGE.decode(message).headers
            except msgspec.MsgspecError:
                continue
            if headers.offset is UNSET or headers.source is UNSET:
                continue
            name = batch.next_offset[:16]
            if headers.control == "snapshot-start":
                yield Snapshot(headers.source, headers.offset, f"{name}_{before:016d}", "")
            elif headers.control == "snapshot-end" and headers.start is not UNSET:
                ends = f"{name}_{at:016d}"
                yield Snapshot(headers.source, headers.offset, headers.start, ends)
