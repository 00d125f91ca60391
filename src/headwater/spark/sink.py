"""Writing, exactly once: `df.writeStream.format("headwater")` and `df.write`.

Tasks only encode: what they made travels to the driver with Spark's own commit messages, and is
forgotten if a task fails. The driver appends once per stream and batch, under a producer whose
epoch is the batch: the server takes a batch once, whatever a replay looks like inside, and refuses
an older one. See docs/decisions/0031.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    StringType,
    StructType,
)

from headwater.client import Client, ProducerClaim
from headwater.errors import (
    BadOption,
    BadRow,
    BatchRefused,
    BodyTooLarge,
    ContentTypeMismatch,
    ProducerFenced,
    RequestRefused,
    SparkError,
    StreamNotFound,
)
from headwater.protocol.content_types import holds_json
from headwater.spark.arrays import leaves
from headwater.spark.options import SinkOptions, is_path
from headwater.spark.variants import holds_variants

_STREAM: Final = "stream"
_VALUE: Final = "value"
_QUERY: Final = "sql.streaming.queryId"
_AT_ONCE: Final = 8
"""So many appends of a batch are under way at once: the server makes them durable together."""
_USUAL_PATH: Final = 255
_ONE_VALUE: Final = msgspec.json.Decoder(msgspec.Raw)


class Staged(WriterCommitMessage):
    """What a task has encoded: for each stream, bytes that its messages make in their order."""

    def __init__(self, partition: int, query: str | None, parts: dict[str, bytes]) -> None:
        self.partition = partition
        self.query = query
        self.parts = parts


class Encoder:
    """Turns rows into messages, and finds the stream of each."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._json = holds_json(options.content_type)
        self._stream = options.stream
        names = schema.fieldNames()
        self._routed = _STREAM in names
        if self._routed and not isinstance(schema[_STREAM].dataType, StringType):
            raise BadOption("stream", "the column 'stream' must hold the paths of streams")
        if not self._routed and self._stream is None:
            raise BadOption("stream", "name a stream, or have a column 'stream' name one per row")
        fields = [name for name in names if name != _STREAM]
        self._fields = fields
        self._plain = fields == [_VALUE] and isinstance(
            schema[_VALUE].dataType, StringType | BinaryType
        )
        """Whether rows are messages already."""
        if not self._plain and not self._json:
            raise BadOption("contentType", "rows with fields become JSON: have one column 'value'")
        for name in fields:
            if holds_variants(schema[name].dataType):
                raise BadOption("schema", f"'{name}' is or holds a variant: write to_json({name})")

    def encode(self, batches: Iterator[pa.RecordBatch]) -> dict[str, bytes]:
        """Encode the rows of a task."""
        parts: dict[str, list[bytes]] = {}
        for batch in batches:
            messages = self._messages(batch)
            if not self._routed:
                parts.setdefault(self._stream or "", []).extend(messages)
                continue
            for stream, message in zip(batch.column(_STREAM).to_pylist(), messages, strict=True):
                path = stream or self._stream or ""
                if not path:
                    raise BadRow("its column 'stream' is empty, and there is no option 'stream'")
                if path not in parts and not is_path(path):
                    raise BadRow(
                        f"its column 'stream' holds '{path}', which is no path of a stream"
                    )
                parts.setdefault(path, []).append(message)
        separator = b"," if self._json else b""
        joined = {path: separator.join(messages) for path, messages in parts.items()}
        return {path: data for path, data in joined.items() if data}

    def length(self, parts: Sequence[bytes]) -> int:
        """Say how long `body` is."""
        return sum(map(len, parts)) + (len(parts) + 1 if self._json else 0)

    def body(self, parts: Sequence[bytes]) -> bytes:
        """Put the parts of tasks together into one append."""
        return b"[" + b",".join(parts) + b"]" if self._json else b"".join(parts)

    def _messages(self, batch: pa.RecordBatch) -> list[bytes]:
        if self._plain:
            return [self._checked(value) for value in batch.column(_VALUE).to_pylist()]
        for name in self._fields:
            if not all(map(_are_finite, leaves(batch.column(name)))):
                reason = f"'{name}' is or holds NaN or an infinity, which JSON has not"
                raise BadRow(f"{reason}: make it null, or a text")
        try:
            rows = batch.select(self._fields).to_pylist(maps_as_pydicts="strict")
            return [msgspec.json.encode(row) for row in rows]
        except (TypeError, ValueError, OverflowError) as error:
            raise BadRow(f"it can't be written as JSON ({error})") from None

    def _checked(self, value: str | bytes | None) -> bytes:
        if value is None:
            raise BadRow("its column 'value' is null")
        data = value.encode() if isinstance(value, str) else value
        if self._json:
            # Two values with a comma between would become two messages.
            try:
                _ONE_VALUE.decode(data)
            except (msgspec.DecodeError, RecursionError) as error:
                raise BadRow(f"its value {data[:80]!r} is no JSON ({error})") from None
        return data


def _are_finite(array: pa.Array) -> bool:
    return not pa.types.is_floating(array.type) or pc.all(pc.is_finite(array)).as_py() is not False


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        if options.write_id is not None:
            raise BadOption("writeId", "a query has an id of its own: it is for df.write")
        self.options = options
        self.encoder = Encoder(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return _stage(self.encoder, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        staged = _in_order(messages)
        query = next((one.query for one in staged if one.query), None)
        if query is None and any(one.parts for one in staged):
            raise SparkError("Spark does not say which query this is: use Spark 4.1 or newer.")
        claim = ProducerClaim(f"spark-{query}", batchId, 0)
        _append(self.options, self.encoder, staged, claim)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing was appended: there is nothing to take back."""


class BatchWriter(DataSourceArrowWriter):
    """Writes a table once; with a `writeId`, once however often it is tried."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self.options = options
        self.encoder = Encoder(options, schema)
        self.write_id = options.write_id or str(uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return _stage(self.encoder, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        claim = ProducerClaim(f"spark-write-{self.write_id}", self.options.batch_id, 0)
        _append(self.options, self.encoder, _in_order(messages), claim)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing was appended: there is nothing to take back."""


def _stage(encoder: Encoder, batches: Iterator[pa.RecordBatch]) -> Staged:
    context: Any = TaskContext.get()
    partition = context.partitionId() if context else 0
    query = context.getLocalProperty(_QUERY) if context else None
    return Staged(partition, query, encoder.encode(batches))


def _in_order(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    staged = [message for message in messages if isinstance(message, Staged)]
    return sorted(staged, key=lambda one: one.partition)


def _append(
    options: SinkOptions, encoder: Encoder, staged: Sequence[Staged], claim: ProducerClaim
) -> None:
    """Append each stream's part of a batch; repeating it appends nothing twice."""
    parts: dict[str, list[bytes]] = {}
    for one in staged:
        for path, part in one.parts.items():
            parts.setdefault(path, []).append(part)
    # The longest first, alone: where it is too long for the server, no stream has got anything.
    order = sorted(parts, key=lambda path: (-encoder.length(parts[path]), path))
    with options.server.client() as client, ThreadPoolExecutor(_AT_ONCE) as pool:

        def append(path: str) -> None:
            body = encoder.body(parts[path])
            try:
                _append_one(client, options, path, body, claim)
            except RequestRefused as refused:
                raise BatchRefused(path, _advice(refused, len(body))) from refused

        _refuse_long_paths(client, order)
        for path in order[:1]:
            append(path)
        for _ in pool.map(append, order[1:]):
            pass  # whatever one of them raises is raised here


def _refuse_long_paths(client: Client, paths: Sequence[str]) -> None:
    """Ask the server, who says how long a path may be, before anything is appended."""
    for path in paths:
        if len(path) > _USUAL_PATH:
            try:
                client.stream(path).exists()
            except RequestRefused as refused:
                if refused.status not in {400, 414}:
                    raise
                reason = "its path is longer than the server allows, and nothing was appended."
                raise BatchRefused(path, reason) from refused


def _append_one(
    client: Client, options: SinkOptions, path: str, body: bytes, claim: ProducerClaim
) -> None:
    stream = client.stream(path, content_type=options.content_type)
    try:
        stream.append(body, producer=claim)
    except StreamNotFound:
        if not options.create:
            raise
        stream.create(options.content_type)
        stream.append(body, producer=claim)


def _advice(refused: RequestRefused, size: int) -> str:
    if isinstance(refused, BodyTooLarge):
        return (
            f"its {size} bytes are over the server's limit, and nothing was appended. A batch is "
            "one append, so that it is seen as a whole: raise the server's --max-body-bytes for "
            "it. A query repeats a batch as it was: maxBytesPerTrigger makes those behind it "
            "short. Write a table in parts, with one writeId and a batchId for each."
        )
    if isinstance(refused, ProducerFenced):
        return (
            "a later batch of this query was written before. Another driver runs on the same "
            "checkpoint, or the checkpoint is an older copy: stop one, or start a new checkpoint."
        )
    if isinstance(refused, ContentTypeMismatch):
        return f"{refused} Set the option contentType to the stream's."
    return str(refused)
