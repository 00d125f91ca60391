"""`publish`: any table or query to a stream of change events, by comparing with the last state.

The last state is what the stream itself says: nothing else has to agree with it, so there is no
moment at which a crash could leave something published twice, or not at all. A table beside it
only saves reading the stream from its start. It is believed as far as the stream still holds what
was read last: one that was put back, or begun anew, is read from its start into another table. See
docs/decisions/0041.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from math import ceil
from typing import Any, Final
from uuid import uuid4

from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from headwater.client import SPLIT_BYTES, START, Client, ProducerClaim, Stream
from headwater.errors import (
    BadOption,
    BadRow,
    BatchRefused,
    BodyTooLarge,
    ProducerFenced,
    RequestRefused,
    StreamNotFound,
)
from headwater.protocol.content_types import JSON, holds_json
from headwater.protocol.offsets import Offset
from headwater.spark.options import Server, is_glob, source_options
from headwater.spark.planning import what_was_lost
from headwater.spark.producer_ids import producer_id
from headwater.spark.ranges import byte_of, epoch_of
from headwater.spark.tables import Table, open_table
from headwater.spark.transforms.comparing import (
    BODIES,
    STATE,
    bodies,
    changes_within,
    compared,
    keyed,
    merge_state,
)
from headwater.spark.transforms.controls import course_of
from headwater.spark.transforms.raw_events import CONTROLS, controls_of

log: Final = logging.getLogger("headwater.spark")

APPEND_BYTES: Final = 4 << 20
_APPENDS_AT_ONCE: Final = 16
"""So many are about what the driver holds."""
_ATTEMPTS: Final = 5
_FOLD: Final = "fold"
"""Who commits to the table of the state: its batches are byte positions of the stream."""
_MARK_BYTES: Final = 4096
"""So much of what was read last is known again, or one message that is longer."""


class Published(Struct, frozen=True):
    """What a publication has appended."""

    inserts: int
    updates: int
    deletes: int
    offset: str
    """The end of the stream behind it."""
    txid: str | None = None
    """The transaction that its changes carry; None where nothing has changed."""


def publish(
    spark: SparkSession,
    rows: DataFrame | str,
    *,
    url: str,
    stream: str,
    type: str,
    key: str | Sequence[str],
    state: str,
    value: str | Sequence[str] | None = None,
    deletes: bool = True,
    writer: str = "",
    options: Mapping[str, str] | None = None,
    table_format: str = "delta",
    append_bytes: int = APPEND_BYTES,
    told: Callable[[int, int], None] | None = None,
) -> Published:
    """Append the changes that make the state of a type in a stream what the rows are.

    `rows` is a DataFrame or the name of a table. `state` is a folder for what was read of the
    stream; it may be deleted, and is then made again. Without `deletes`, keys that have no row are
    left as they are. `writer` names whoever publishes this: two at once with one name never mix
    their changes. `options` are more options of the format, such as `token`. `told` hears before
    each append how many of the changes are in the stream, and at last that all are; what it raises
    ends the job.
    """
    df = spark.table(rows) if isinstance(rows, str) else rows
    if not type:
        raise BadOption("type", "name the type that the rows are of")
    if not state.strip():
        raise BadOption("state", "it is empty: name a folder for what is read of the stream")
    publishing = _Publishing(
        spark,
        _source(url, stream, options or {}),
        type,
        writer or f"publish-{type}",
        state,
        table_format,
        told or _untold,
    )
    return publishing.run(keyed(df, key, value), deletes=deletes, append_bytes=append_bytes)


def _source(url: str, stream: str, options: Mapping[str, str]) -> dict[str, str]:
    path = stream.strip("/")
    if is_glob(path) or "," in path or path.startswith("["):
        raise BadOption("stream", "changes are published to one stream: name it")
    source = {**options, "url": url, "stream": path, "mode": "raw", "valueType": "binary"}
    source_options(source)  # what is wrong with it is said now
    return source


class _Contended(Exception):
    """Somebody else has published under the same name since the stream was read."""


class _Publishing:
    """One publication: read on, compare, append; and again where another one came first."""

    def __init__(
        self,
        spark: SparkSession,
        source: dict[str, str],
        kind: str,
        writer: str,
        state: str,
        table_format: str,
        told: Callable[[int, int], None],
    ) -> None:
        self._spark = spark
        self._told = told
        self._source = source
        self._path = source["stream"]
        self._server: Server = source_options(source).server
        self._kind = kind
        self._writer = writer
        self._producer = producer_id(writer)
        self._state = state
        self._table_format = table_format

    def run(self, new: DataFrame, *, deletes: bool, append_bytes: int) -> Published:
        with self._server.client() as client:
            stream = client.stream(self._path, content_type=JSON)
            for _ in range(_ATTEMPTS):
                tail = _tail(stream, self._path)
                changes = compared(self._last_state(client, tail), new)
                if not deletes:
                    changes = changes.where("operation <> 'delete' OR problem IS NOT NULL")
                changes = changes.persist()
                try:
                    return self._append(stream, changes, tail, append_bytes)
                except _Contended:
                    log.warning("another publisher came first stream=%s", self._path)
                finally:
                    changes.unpersist()
        raise BatchRefused(
            self._path,
            f"others publish as '{self._writer}' all the time: have one publisher for a type.",
        )

    # The last state

    def _last_state(self, client: Client, tail: str) -> DataFrame:
        """Bring the table of the state up to the end of the stream, and read it."""
        table = self._table(client, tail)
        done = table.committed(_FOLD)
        if done < byte_of(tail):
            self._fold(client, table, done, tail)
        state = table.read(self._spark)
        if state is None:
            return self._spark.createDataFrame([], STATE)
        return state.where("key IS NOT NULL")  # all but the mark

    def _table(self, client: Client, tail: str) -> Table:
        """Find the table of this incarnation of the stream: another one's would mean nothing.

        A server that began anew counts its incarnations from the start, and one that was put back
        gives the same again. So the last table is looked at, and where it was made of something
        else, the next one is begun. A crash leaves that without a batch, as any new one is.
        """
        name = "\n".join([self._server.url, self._path, self._kind, str(epoch_of(tail))])
        folder = f"{self._state}/{hashlib.sha256(name.encode()).hexdigest()[:24]}"
        table = open_table(folder, self._table_format)
        for number in count(1):
            following = open_table(f"{folder}-{number}", self._table_format)
            if not following.exists:
                break
            table = following
        if self._is_of(client, table):
            return table
        log.warning(
            "not the stream that was read, so it is read anew stream=%s read=%d tail=%s",
            self._path,
            table.committed(_FOLD),
            tail,
        )
        return following

    def _is_of(self, client: Client, table: Table) -> bool:
        """Ask whether the stream holds what the table was made of, however long it is by now."""
        if table.committed(_FOLD) <= 0:
            return True  # nothing was read
        state = table.read(self._spark)
        mark = None if state is None else state.where("key IS NULL").first()
        if mark is None:
            return False  # by an earlier release, which left none
        start, digest = str(mark["value"]).split()
        try:
            return self._digest(client, start, mark["offset"]) == digest
        except RequestRefused as refused:
            if what_was_lost(refused) is None and refused.code != "offset-inside-message":
                raise
            return False

    def _mark(self, client: Client, since: str, tail: str) -> DataFrame:
        """Make the row without a key, which tells what the stream held right before `tail`."""
        if byte_of(tail) == 0:
            return self._spark.createDataFrame([], STATE)
        start = since
        for size in (SPLIT_BYTES, _MARK_BYTES):  # a long stream has too many of the small ones
            start = client.splits(self._path, start, tail, size=size)[-2]
        mark = f"{start} {self._digest(client, start, tail)}"
        return self._spark.createDataFrame([(None, mark, tail)], STATE)

    def _digest(self, client: Client, start: str, end: str) -> str:
        digest = hashlib.sha256()
        for batch in client.stream(self._path).read(start, until=end):
            digest.update(batch.data)
        return digest.hexdigest()

    def _fold(self, client: Client, table: Table, done: int, tail: str) -> None:
        """Merge what the stream says behind `done`; another publisher may come further first."""
        since = str(Offset(epoch_of(tail), done)) if done >= 0 else START
        # Before the rest: if the stream is replaced meanwhile, the mark is of the old one.
        mark = self._mark(client, since, tail)
        messages = (
            self._spark.read.format("headwater")
            .options(**self._source)
            .options(
                startingOffsets=json.dumps({self._path: since}),
                endingOffsets=json.dumps({self._path: tail}),
            )
            .load()
        )
        told = messages.mapInArrow(controls_of, CONTROLS).collect()
        course = course_of((row["offset"], row["control"]) for row in told)
        cleared = course.cleared is not None
        if course.opened is not None:
            raise BatchRefused(
                self._path,
                f"a snapshot is being written to it since offset {course.opened}, and what comes "
                "now would become a part of it. Publish again once it has ended.",
            )
        table.rewrite(
            changes_within(messages, self._kind, course.part).unionByName(mark),
            partial(merge_state, since=since, cleared=cleared),
            key=["key"],
            schema=STATE,
            writer=_FOLD,
            batch=byte_of(tail),
            follows=done,
            every_bucket=cleared,
        )

    # Appending

    def _append(
        self, stream: Stream, changes: DataFrame, tail: str, append_bytes: int
    ) -> Published:
        length = f.length("key") + f.coalesce(f.length("value"), f.lit(0))
        found = (
            changes.groupBy("operation")
            .agg(
                f.count("*").alias("rows"),
                f.sum(length).alias("length"),
                f.min("problem").alias("problem"),
            )
            .collect()
        )
        for row in found:
            if row["problem"] is not None:
                raise BadRow(row["problem"])
        counts: dict[str, int] = {row["operation"]: row["rows"] for row in found}
        txid = str(uuid4()) if counts else None
        offset = tail
        if txid is not None:
            encode = partial(bodies, kind=self._kind, txid=txid, most_bytes=append_bytes)
            # A task's part comes to the driver as a whole, however many there are behind it.
            parts = ceil(sum(row["length"] for row in found) / (_APPENDS_AT_ONCE * append_bytes))
            if parts > 1:
                changes = changes.repartition(parts)
            encoded = changes.mapInArrow(encode, BODIES).toLocalIterator()
            sent = ((int(row["events"]), bytes(row["body"])) for row in encoded)
            offset = self._send(stream, sent, tail, sum(counts.values()))
        return Published(
            counts.get("insert", 0), counts.get("update", 0), counts.get("delete", 0), offset, txid
        )

    def _send(
        self, stream: Stream, parts: Iterator[tuple[int, bytes]], tail: str, changes: int
    ) -> str:
        """Append under claims that name the stream's end: of two who know the same, one gets it."""
        offset = tail
        sent = 0
        for events, body in parts:
            self._told(sent, changes)
            try:
                appended = stream.append(
                    body, producer=ProducerClaim(self._producer, byte_of(offset), 0)
                )
            except ProducerFenced as fenced:
                raise _Contended from fenced
            except RequestRefused as refused:
                raise BatchRefused(self._path, _advice(refused, len(body))) from refused
            if appended.duplicate:
                # Another's, or our own whose answer was lost: the stream will tell.
                raise _Contended
            offset = appended.next_offset
            sent += events
        self._told(sent, changes)
        return offset


def _untold(_sent: int, _changes: int) -> None:
    """Nobody watches."""


def _tail(stream: Stream, path: str) -> str:
    """Give the end of a stream, which is made if it is not there."""
    try:
        info = stream.head()
    except StreamNotFound:
        return stream.create(JSON).next_offset
    if not holds_json(info.content_type):
        raise BatchRefused(path, f"it holds {info.content_type}, and no events: name another.")
    return info.next_offset


def _advice(refused: RequestRefused, size: int) -> str:
    if isinstance(refused, BodyTooLarge):
        return (
            f"{size} bytes are over the server's limit. Set append_bytes below it, or raise "
            "--max-body-bytes: one change must fit as a whole."
        )
    return str(refused)


def publishing(
    *,
    url: str,
    stream: str,
    type: str,
    key: str | Sequence[str],
    state: str,
    **more: Any,
) -> "_Batches":
    """Make a function for `foreachBatch` that publishes each batch as `publish` would."""
    return _Batches(
        {"url": url, "stream": stream, "type": type, "key": key, "state": state, **more}
    )


class _Batches:
    """Publishes batches; replaying one appends nothing, since the stream has it already."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._arguments = arguments

    def __call__(self, batch: DataFrame, _number: int) -> None:
        publish(batch.sparkSession, batch, **self._arguments)
