"""How far a pipeline is, from its checkpoint and its server alone: Spark is not started."""

import time
from collections.abc import Iterator

from msgspec import Struct

from headwater.client import START, Client, Retry
from headwater.protocol.globs import matches
from headwater.spark.options import is_glob, source_options
from headwater.spark.pipelines.checkpoints import Committed, holder, last_committed, local_folder
from headwater.spark.pipelines.progress import distance
from headwater.spark.pipelines.values import Pipeline, Server
from headwater.spark.ranges import byte_of


class StreamLag(Struct, frozen=True):
    """One stream: where the pipeline goes on, where the stream ends, and the bytes between."""

    path: str
    offset: str
    tail: str
    closed: bool

    @property
    def bytes(self) -> int:
        return distance({self.path: self.offset}, {self.path: self.tail})


class Status(Struct, frozen=True):
    """Where a pipeline stands."""

    name: str
    kind: str
    checkpoint: str
    is_local: bool
    """Whether the checkpoint can be read from here."""
    committed: Committed | None
    runs_in: str | None
    """The process that runs it."""
    streams: tuple[StreamLag, ...] = ()
    gone: tuple[str, ...] = ()
    """Streams that it has read and that are not there any more."""

    @property
    def lag_bytes(self) -> int:
        return sum(stream.bytes for stream in self.streams)

    @property
    def age(self) -> float | None:
        """Seconds since the last batch began."""
        return None if self.committed is None else max(0.0, time.time() - self.committed.began)


def client_of(server: Server) -> Client:
    """Make a client for a person who waits: it gives up within seconds."""
    return Client(
        server.url,
        headers=server.headers or None,
        auth=server.token,
        retry=Retry(attempts=3),
        timeout=10.0,
    )


def status_of(pipeline: Pipeline) -> Status:
    """Read the checkpoint of a pipeline, and ask its server for the ends of its streams."""
    folder = local_folder(pipeline.checkpoint)
    committed = None if folder is None else last_committed(folder)
    offsets = {} if committed is None else committed.offsets
    lags = tuple(lag_of(pipeline, committed))
    there = {lag.path for lag in lags}
    wanted = pipeline.source.streams
    gone = [
        path
        for path in sorted(offsets.keys() - there)
        if any(matches(glob, path) for glob in wanted)
    ]
    return Status(
        pipeline.name,
        pipeline.kind,
        pipeline.checkpoint,
        folder is not None,
        committed,
        None if folder is None else holder(folder),
        lags,
        tuple(gone),
    )


def lag_of(pipeline: Pipeline, committed: Committed | None) -> Iterator[StreamLag]:
    """Ask the server how far each stream goes beyond what is committed."""
    if not pipeline.source.streams:
        return
    starting = source_options(pipeline.source.format_options()).starting
    offsets = {} if committed is None else committed.offsets
    seen = set()
    with client_of(pipeline.source) as client:
        for glob in pipeline.source.streams:
            for stream in client.streams(glob):
                if stream.path in seen:
                    continue
                seen.add(stream.path)
                begin = START
                if committed is None and not isinstance(starting, str):
                    begin = starting.get(stream.path, START)
                elif committed is None and starting == "latest":
                    begin = stream.tail
                begin = offsets.get(stream.path, begin)
                if byte_of(begin) > byte_of(stream.tail):
                    begin = START  # the stream was deleted and created again
                yield StreamLag(stream.path, begin, stream.tail, stream.closed)


def tails_of(pipeline: Pipeline) -> dict[str, str]:
    """Ask the server where each stream ends."""
    with client_of(pipeline.source) as client:
        found = (client.streams(glob) for glob in pipeline.source.streams)
        return {stream.path: stream.tail for streams in found for stream in streams}


def missing_streams(pipeline: Pipeline) -> tuple[list[str], list[str]]:
    """List the streams and the globs of a source that have nothing at the server."""
    streams: list[str] = []
    globs: list[str] = []
    with client_of(pipeline.source) as client:
        for path in pipeline.source.streams:
            if next(iter(client.streams(path)), None) is None:
                (globs if is_glob(path) else streams).append(path)
    return streams, globs
