"""`restore`: an archive back to streams, byte for byte.

A task per stream reads its files in order and puts their messages into a stream, from its beginning
on, by `headwater.spark.placing`: what a killed run has left is compared and gone on with.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
from msgspec import Struct
from pyspark.sql import SparkSession

from headwater.errors import (
    ArchiveDamaged,
    BadOption,
    BodyTooLarge,
    HeadwaterError,
    NotAnArchive,
    RestoreRefused,
    StreamExists,
)
from headwater.protocol.content_types import holds_json
from headwater.protocol.globs import matches
from headwater.spark.archives.contents import ArchivedFile, Contents, Incarnation
from headwater.spark.archives.files import check, row_groups
from headwater.spark.archives.log import archive_folder, load
from headwater.spark.options import Server, is_writable
from headwater.spark.placing import CHUNK_BYTES, Placed, place
from headwater.spark.ranges import byte_of, is_offset


class RestoredStream(Struct, frozen=True):
    """A stream that is back."""

    stream: str
    """Its path in the archive."""
    path: str
    """Where it is now."""
    content_type: str
    messages: int
    """Messages (JSON) or pieces."""
    bytes: int
    """As the stream counts them."""
    appended: int
    """How many of the bytes were not there before this run."""
    offset: str
    """The offset behind the last message, in the new stream."""
    closed: bool


class Restored(Struct, frozen=True):
    """What was brought back."""

    streams: list[RestoredStream]

    @property
    def messages(self) -> int:
        return sum(each.messages for each in self.streams)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.streams)


class _Order(Struct, frozen=True):
    """What a task brings back, and how."""

    archive: str
    stream: str
    path: str
    incarnation: int
    until: str | None
    close: bool
    verify: bool
    bytes: int
    """What the stream will hold."""


class _Outcome(Struct, frozen=True):
    stream: str
    done: RestoredStream | None = None
    refused: str = ""


_ORDER: Final = msgspec.json.Decoder(_Order)
_ORDERS: Final = msgspec.json.Decoder(list[_Order])
_OUTCOME: Final = msgspec.json.Decoder(_Outcome)


def restore(
    spark: SparkSession,
    *,
    folder: str,
    url: str,
    stream: str | Mapping[str, str] | None = None,
    until: Mapping[str, str] | None = None,
    incarnation: int = -1,
    close: bool = True,
    verify: bool = True,
    missing_start: bool = False,
    chunk_bytes: int = CHUNK_BYTES,
    token: str | None = None,
    headers: Mapping[str, str] | None = None,
    begun: Callable[[Mapping[str, int]], None] | None = None,
) -> Restored:
    """Bring streams of an archive back; what is back already is compared, and left as it is.

    `stream` is a path or a glob, or says for each archived stream its new path. `until` is the
    offset, in the archived stream, behind which nothing is restored. Of a stream that was deleted
    and created again, `incarnation` chooses one; the last by default. A stream that was closed is
    closed, unless `close` is false or an `until` leaves something out. With `verify` everything is
    read back and compared. An archive that does not begin at a stream's beginning is refused unless
    `missing_start` says that this is known. An append has `chunk_bytes`, or one longer message.
    `begun` is told how many bytes each stream will hold before the first is written; what it raises
    ends the job.
    """
    if not url.lower().startswith(("http://", "https://")):
        raise BadOption("url", "set it to the server's URL, such as http://127.0.0.1:4437")
    for path, offset in (until or {}).items():
        if not is_offset(offset):
            raise BadOption("until", f"'{offset}', for '{path}', is no offset")
    _check_paths(stream)
    kept = archive_folder(folder)
    choose = partial(
        _choose,
        folder=kept,
        stream=dict(stream) if isinstance(stream, Mapping) else stream,
        until=dict(until or {}),
        wishes={"incarnation": incarnation, "close": close, "verify": verify},
        missing_start=missing_start,
    )
    planned = spark.range(0, 1, 1, 1).mapInArrow(choose, "orders string, refused string").collect()
    orders, refused = planned[0]["orders"], planned[0]["refused"]
    if not orders:
        raise RestoreRefused(msgspec.json.decode(refused, type=dict[str, str]))
    chosen = _ORDERS.decode(orders)
    if begun is not None:
        begun({order.path: order.bytes for order in chosen})
    rows = [(msgspec.json.encode(order).decode(),) for order in chosen]
    server = Server(url.rstrip("/"), dict(headers or {}), token)
    bring = partial(_bring, folder=kept, server=server, chunk_bytes=chunk_bytes)
    tasks = spark.createDataFrame(rows, "order string").repartition(max(1, len(rows)))
    done = tasks.mapInArrow(bring, "outcome string").collect()
    outcomes = [_OUTCOME.decode(row["outcome"]) for row in done]
    reasons = {each.stream: each.refused for each in outcomes if each.done is None}
    if reasons:
        raise RestoreRefused(reasons)
    back = [each.done for each in outcomes if each.done is not None]
    return Restored(sorted(back, key=lambda each: each.path))


def _check_paths(stream: str | Mapping[str, str] | None) -> None:
    if isinstance(stream, str) and not stream.strip("/ "):
        raise BadOption("stream", "it is empty: name a path or a glob, or leave it out for all")
    for path, new in stream.items() if isinstance(stream, Mapping) else ():
        if not is_writable(new):
            raise BadOption("stream", f"'{new}', for '{path}', is no path of a stream")


# What tasks do


def _choose(
    rows: Iterator[pa.RecordBatch],
    *,
    folder: Path,
    stream: str | dict[str, str] | None,
    until: dict[str, str],
    wishes: dict[str, int],
    missing_start: bool,
) -> Iterator[pa.RecordBatch]:
    """Decide what to restore, or say why not, before anything is written."""
    for _ in rows:
        orders: list[_Order] = []
        refused: dict[str, str] = {}
        try:
            contents = load(folder)
            for path, target in _targets(contents, stream).items():
                reason = _refusal(contents, folder, path, until.get(path), wishes, missing_start)
                if reason:
                    refused[path] = reason
                else:
                    orders.append(
                        _Order(
                            contents.archive,
                            path,
                            target,
                            wishes["incarnation"],
                            until.get(path),
                            bool(wishes["close"]),
                            bool(wishes["verify"]),
                            _size(contents.streams[path][wishes["incarnation"]], until.get(path)),
                        )
                    )
            if not orders and not refused:
                refused[str(stream or "**")] = f"'{folder}' holds no such stream."
            for path in until.keys() - {order.stream for order in orders}:
                refused.setdefault(path, "it has an 'until', and is not among those to restore.")
        except HeadwaterError as error:
            refused[str(stream or "**")] = str(error)
        told = None if refused else msgspec.json.encode(orders).decode()
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([told], pa.string()),
                pa.array([msgspec.json.encode(refused).decode()], pa.string()),
            ],
            ["orders", "refused"],
        )


def _targets(contents: Contents, stream: str | dict[str, str] | None) -> dict[str, str]:
    if isinstance(stream, dict):
        return {path: target.strip("/") for path, target in stream.items()}
    glob = "**" if stream is None else stream.strip("/")
    return {path: path for path in sorted(contents.streams) if path == glob or matches(glob, path)}


def _refusal(
    contents: Contents,
    folder: Path,
    path: str,
    until: str | None,
    wishes: dict[str, int],
    missing_start: bool,
) -> str | None:
    known = contents.streams.get(path)
    if not known:
        return "the archive holds no such stream."
    try:
        chosen = known[wishes["incarnation"]]
    except IndexError:
        return f"it has {len(known)} incarnations, counted from 0."
    if chosen.begin and not missing_start:
        return (
            f"the archive begins at byte {chosen.begin} of it, not at its beginning. To restore "
            "what there is, at other offsets than it had, set missing_start."
        )
    if until is not None and not byte_of(chosen.reached) >= byte_of(until) >= chosen.begin:
        return f"the archive reaches offset {chosen.reached}, not {until}."
    before = ""
    for file in _needed(chosen, until):
        try:
            check(folder, file)
        except ArchiveDamaged as error:
            return f"{error} It is '{before}'." if before else str(error)
        before = file.last
    return None


def _needed(chosen: Incarnation, until: str | None) -> list[ArchivedFile]:
    end = byte_of(until or chosen.reached)
    return [file for file in chosen.files if file.start < end]


def _size(chosen: Incarnation, until: str | None) -> int:
    return byte_of(until or chosen.reached) - chosen.begin


def _bring(
    rows: Iterator[pa.RecordBatch], *, folder: Path, server: Server, chunk_bytes: int
) -> Iterator[pa.RecordBatch]:
    for batch in rows:
        for text in batch.column("order").to_pylist():
            order = _ORDER.decode(text)
            try:
                outcome = _Outcome(order.stream, _restore_one(folder, server, order, chunk_bytes))
            except BodyTooLarge as error:
                reason = f"{error} A message is one append: raise --max-body-bytes."
                outcome = _Outcome(order.stream, refused=reason)
            except HeadwaterError as error:
                outcome = _Outcome(order.stream, refused=str(error))
            told = msgspec.json.encode(outcome).decode()
            yield pa.RecordBatch.from_pydict({"outcome": [told]})


def _restore_one(folder: Path, server: Server, order: _Order, chunk_bytes: int) -> RestoredStream:
    contents = load(folder)
    if contents.archive != order.archive or order.stream not in contents.streams:
        raise NotAnArchive(str(folder), "another one is there than at the beginning")
    chosen = contents.streams[order.stream][order.incarnation]
    json = holds_json(chosen.content_type)
    # By the archive and the stream: every run for the same target is the same producer.
    name = sha256(order.stream.encode()).hexdigest()[:16]
    producer = f"restore-{order.archive}-{name}"
    with server.client() as client:
        target = client.stream(order.path)
        try:
            target.create(chosen.content_type)
        except StreamExists:
            # Closed by an earlier run, or of another kind: what it holds is compared either way.
            if target.head().content_type != chosen.content_type:
                raise
        placed = Placed(0, 0, 0, "")
        for _ in range(2 if order.verify else 1):
            messages = _messages(folder, chosen, order.until)
            again = place(target, messages, json=json, producer=producer, chunk_bytes=chunk_bytes)
            placed = msgspec.structs.replace(again, appended=again.appended + placed.appended)
            if not again.appended:
                break  # all of it was there, and was compared
        end = target.head()
        wanted = _size(chosen, order.until)
        if not placed.bytes == wanted == byte_of(end.next_offset):
            raise RestoreRefused(
                {
                    order.path: f"it holds {byte_of(end.next_offset)} bytes, and the archive "
                    f"{wanted}: it is another stream, or somebody else appends to it."
                }
            )
        whole = wanted == byte_of(chosen.reached) - chosen.begin
        if chosen.closed and order.close and whole and not end.closed:
            target.close()
        return RestoredStream(
            order.stream,
            order.path,
            chosen.content_type,
            placed.messages,
            placed.bytes,
            placed.appended,
            end.next_offset,
            target.head().closed,
        )


def _messages(folder: Path, chosen: Incarnation, until: str | None) -> Iterator[bytes]:
    """Give the messages of a stream up to an offset, a row group at a time."""
    end = byte_of(until or chosen.reached)
    at = chosen.begin
    for file in _needed(chosen, until):
        for table in row_groups(folder, file):
            ends = [int(offset[17:]) for offset in table["offset"].to_pylist()]
            for message, behind in zip(table["value"].to_pylist(), ends, strict=True):
                if behind > end:
                    yield from _part(message, end - at, until, chosen)
                    return
                yield message
                at = behind


def _part(message: bytes, size: int, until: str | None, chosen: Incarnation) -> Iterator[bytes]:
    """Give the beginning of a piece; messages have none."""
    if size and holds_json(chosen.content_type):
        raise BadOption("until", f"no message ends at offset {until}")
    if size:
        yield message[:size]
