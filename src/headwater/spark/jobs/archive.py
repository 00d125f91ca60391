"""`archive`: streams to Parquet, as a query that goes on where it was.

Tasks write files next to the rows that they read, without a shuffle; the driver adds them to the
archive's log, one entry per batch. What is archived already is known by its offsets, so a replayed
batch, a second query or a new checkpoint adds nothing twice.
"""

import logging
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headwater.client import Client
from headwater.errors import BadOption, OffsetGone, StreamGone, StreamLost, StreamNotFound
from headwater.spark.archives.contents import ArchivedFile, Contents, Entry, Seen, mergeable
from headwater.spark.archives.files import FileWriter, merge, runs, start_of
from headwater.spark.archives.log import archive_folder, commit, load, load_or_begin
from headwater.spark.options import Server, SourceOptions, source_options
from headwater.spark.planning import is_of_this_incarnation
from headwater.spark.ranges import byte_of, epoch_of
from headwater.spark.tables.files import folder_uri

log: Final = logging.getLogger("headwater.spark")

COLUMNS: Final = "stream string, offset string, value binary"

_DEFAULTS: Final = {"maxBytesPerTrigger": "1g", "splitBytes": "64m"}
"""A file is what a task reads, and a batch is what a crash may undo."""

_FILE: Final = msgspec.json.Decoder(ArchivedFile)
_FILES: Final = msgspec.json.Decoder(list[ArchivedFile])


def archive(
    spark: SparkSession,
    source: Mapping[str, str],
    *,
    folder: str,
    checkpoint: str,
    trigger: Mapping[str, Any] | None = None,
) -> StreamingQuery:
    """Copy streams to an archive in a folder that driver and executors share."""
    chosen = _checked(source)
    folder = str(archive_folder(folder))
    look = partial(_look, folder=folder, source=chosen)
    spark.range(0, 1, 1, 1).mapInArrow(look, "streams long").collect()
    rows = spark.readStream.format("headwater").options(**chosen).load()
    writer = rows.writeStream.foreachBatch(_Archiving(folder, chosen))
    writer = writer.option("checkpointLocation", folder_uri(checkpoint, "checkpoint"))
    return (writer.trigger(**trigger) if trigger else writer).start()


def archived(spark: SparkSession, folder: str, stream: str | None = None) -> DataFrame:
    """Read an archive as a table of `stream`, `offset` and `value`: all of it, or one stream."""
    names = partial(_names, folder=str(archive_folder(folder)), stream=stream)
    found = spark.range(0, 1, 1, 1).mapInArrow(names, "name string").collect()
    reader = spark.read.schema(COLUMNS)
    return (
        reader.parquet(*[row["name"] for row in found])
        if found
        else spark.createDataFrame([], COLUMNS)
    )


class _Archiving:
    """What is done with each batch, by the driver or, with Spark Connect, by the server."""

    def __init__(self, folder: str, source: Mapping[str, str]) -> None:
        self.folder = folder
        self.source = dict(source)

    def __call__(self, batch: DataFrame, _: int) -> None:
        folder = Path(self.folder)
        options = source_options(self.source)
        contents = load_or_begin(folder)
        reached = {path: contents.reached(path) for path in contents.streams}
        write = partial(_write, folder=folder, options=options, reached=reached)
        written = batch.mapInArrow(write, "file string").collect()
        files = [_FILE.decode(row["file"]) for row in written]
        if files:
            files.sort(key=lambda file: (file.stream, file.last))
            contents = commit(folder, contents, Entry(added=files))
        contents = _note(folder, contents, options)
        _merge(batch.sparkSession, folder, contents, {file.stream for file in files})


def _checked(source: Mapping[str, str]) -> dict[str, str]:
    given = {name.lower() for name in source}
    for name in ("mode", "valueType", "types", "onCorrupt"):
        if name.lower() in given:
            raise BadOption(name, "an archive keeps messages as they are")
    defaults = {name: value for name, value in _DEFAULTS.items() if name.lower() not in given}
    chosen = {**defaults, **source, "mode": "raw", "valueType": "binary"}
    source_options(chosen)  # what is wrong with it is said now
    return chosen


def _note(folder: Path, contents: Contents, options: SourceOptions) -> Contents:
    """Write down which streams are closed, and those that have no data."""
    with options.server.client() as client:
        listed = {each.path: each for glob in options.streams for each in client.streams(glob)}
    seen = [Seen(each.path, each.content_type, each.tail, each.closed) for each in listed.values()]
    news = contents.news(seen)
    return commit(folder, contents, Entry(seen=news)) if news else contents


def _merge(spark: SparkSession, folder: Path, contents: Contents, streams: set[str]) -> None:
    """Have small files that follow each other written as one."""
    groups = []
    for path in sorted(streams):
        files = contents.streams[path][-1].files
        count = mergeable([file.size for file in files])
        if count:
            groups.append((msgspec.json.encode(files[-count:]).decode(),))
    if not groups:
        return
    tasks = spark.createDataFrame(groups, "files string").repartition(len(groups))
    done = tasks.mapInArrow(partial(_merge_files, folder=folder), "files string, file string")
    merged = [
        ([old.name for old in _FILES.decode(row["files"])], _FILE.decode(row["file"]))
        for row in done.collect()
    ]
    commit(folder, contents, Entry(merged=merged))


# What tasks do


def _look(
    rows: Iterator[pa.RecordBatch], *, folder: str, source: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    for _ in rows:
        contents = _note(Path(folder), load_or_begin(Path(folder)), source_options(source))
        yield pa.RecordBatch.from_pydict({"streams": [len(contents.streams)]})


def _names(
    rows: Iterator[pa.RecordBatch], *, folder: str, stream: str | None
) -> Iterator[pa.RecordBatch]:
    for _ in rows:
        found = [
            f"file://{(Path(folder) / file.name).as_posix()}"
            for file in load(Path(folder)).files()
            if stream in (None, file.stream)
        ]
        yield pa.RecordBatch.from_arrays([pa.array(found, pa.string())], ["name"])


def _merge_files(rows: Iterator[pa.RecordBatch], *, folder: Path) -> Iterator[pa.RecordBatch]:
    for batch in rows:
        for files in batch.column("files").to_pylist():
            file = msgspec.json.encode(merge(folder, _FILES.decode(files))).decode()
            yield pa.RecordBatch.from_pydict({"files": [files], "file": [file]})


def _write(
    rows: Iterator[pa.RecordBatch],
    *,
    folder: Path,
    options: SourceOptions,
    reached: Mapping[str, str],
) -> Iterator[pa.RecordBatch]:
    """Write the rows of a task that the archive does not hold yet, a file per stream and range."""
    writer: FileWriter | None = None
    streams = _Streams(options, reached)
    try:
        for batch in rows:
            for stream, offsets, values in runs(batch):
                other_than = streams.other_than(stream, offsets[-1].as_py())
                content_type = streams.content_type(stream, offsets[0].as_py())
                if content_type is None:
                    continue
                offsets, values = _behind(  # noqa: PLW2901 - the rest of the run
                    "" if other_than else reached.get(stream, ""), offsets, values, content_type
                )
                if not len(offsets):
                    continue
                start = start_of(offsets[0].as_py(), len(values[0].as_py()), content_type)
                if writer and (writer.stream != stream or byte_of(writer.last) != start):
                    yield _told(writer.finish())
                    writer = None
                writer = writer or FileWriter(folder, stream, content_type, start, other_than)
                writer.write(offsets, values)
        if writer:
            yield _told(writer.finish())
    except BaseException:
        if writer:
            writer.abandon()
        raise
    finally:
        streams.close()


def _told(file: ArchivedFile) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"file": [msgspec.json.encode(file).decode()]})


def _behind(
    reached: str, offsets: pa.Array, values: pa.Array, content_type: str
) -> tuple[pa.Array, pa.Array]:
    """Leave out what is archived already of the same incarnation, whose offsets sort."""
    if not reached or offsets[0].as_py() > reached:
        first = 0
    else:
        first = pc.sum(pc.less_equal(offsets, pa.scalar(reached))).as_py()
    offsets, values = offsets.slice(first), values.slice(first)
    if reached and len(offsets) and epoch_of(offsets[0].as_py()) == epoch_of(reached):
        head = values[0].as_py()
        known = byte_of(reached) - start_of(offsets[0].as_py(), len(head), content_type)
        if 0 < known < len(head):
            # Bytes have no boundaries: the archive ends within this piece.
            rest = pa.array([head[known:]], values.type)
            values = pa.concat_arrays([rest, values.slice(1)])
    return offsets, values


class _Streams:
    """Asks about streams, once for each; an offset tells which incarnation is meant."""

    def __init__(self, options: SourceOptions, reached: Mapping[str, str]) -> None:
        self._server: Server = options.server
        self._fail = options.fail_on_data_loss
        self._reached = reached
        self._client: Client | None = None
        self._types: dict[str, str | None] = {}
        self._others: dict[str, str] = {}

    def other_than(self, stream: str, offset: str) -> str:
        """Give what the archive has reached, if that is no offset of the stream; else nothing.

        Has to be asked before `content_type`, which tells whether the rows are still the stream's.
        """
        if stream not in self._others:
            reached = self._reached.get(stream, "")
            is_other = reached and not is_of_this_incarnation(
                self._connected(), stream, reached, offset
            )
            self._others[stream] = reached if is_other else ""
        return self._others[stream]

    def content_type(self, stream: str, offset: str) -> str | None:
        """Give the content type of a stream; None where it is lost, and may be."""
        if stream not in self._types:
            self._types[stream] = self._ask(stream, offset)
        return self._types[stream]

    def close(self) -> None:
        """Let go of the connection."""
        if self._client is not None:
            self._client.close()

    def _ask(self, stream: str, offset: str) -> str | None:
        try:
            return self._connected().split_page(stream, offset, limit=1).content_type
        except (StreamNotFound, StreamGone, OffsetGone) as gone:
            if self._fail:
                raise StreamLost(stream, offset, "was deleted") from gone
            log.warning("stream lost stream=%s offset=%s", stream, offset)
            return None

    def _connected(self) -> Client:
        self._client = self._client or self._server.client()
        return self._client
