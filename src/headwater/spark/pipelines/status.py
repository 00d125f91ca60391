"""How far a pipeline is, from its checkpoint and its server alone: Spark is not started."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headwater.client import START, Client, Retry
from headwater.errors import ClientError, NotACheckpoint, StreamNotFound
from headwater.protocol.globs import matches
from headwater.spark.options import is_glob, source_options
from headwater.spark.pipelines.checkpoints import (
    Committed,
    holder,
    last_committed,
    local_folder,
    owner,
)
from headwater.spark.pipelines.progress import distance
from headwater.spark.pipelines.values import BOUNDED, Pipeline, Publish, Server, Snapshot, Source
from headwater.spark.planning import chosen_offset, is_of_this_incarnation
from headwater.state.snapshots import find_snapshots

_PUBLISH: Final = str(Publish.__struct_config__.tag)


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
    is_remote: bool = False
    """Whether it runs at a Spark Connect server, where its checkpoint may be as well."""
    known: str = ""
    """What is known of a job that has no batches."""
    unanswered: str = ""
    """Why the server could not be asked, so that `streams` are not known."""

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
    if isinstance(pipeline.target, BOUNDED):
        return _job_status(pipeline)
    folder = _seen(pipeline)
    if folder is None:  # how much there is to do is not known either
        name, kind, checkpoint = pipeline.name, pipeline.kind, pipeline.checkpoint
        is_remote = pipeline.remote is not None
        return Status(name, kind, checkpoint, False, None, None, is_remote=is_remote)
    committed = last_committed(folder)
    known = Status(
        pipeline.name, pipeline.kind, pipeline.checkpoint, True, committed, holder(folder)
    )
    return _measured(known, pipeline.source)


def status_of_checkpoint(
    folder: Path, *, url: str | None = None, token: str | None = None
) -> Status:
    """Tell how far the pipeline of a checkpoint is; `url` is where its server is by now."""
    whose = owner(folder)
    if whose is None:
        raise NotACheckpoint(str(folder))
    process = holder(folder)
    if whose.kind == _PUBLISH:
        known = _of_publication(whose.place)
        return Status(whose.name, whose.kind, str(folder), True, None, process, known=known)
    committed = last_committed(folder)
    source = replace(whose.source, url=url or whose.url, token=token)
    if not source.streams and committed is not None:
        # By an older version, which has not said what was read: a glob may match more by now.
        source = replace(source, stream=tuple(committed.offsets))
    status = Status(whose.name, whose.kind, str(folder), True, committed, process)
    return _measured(status, source)


def _of_publication(stream: str) -> str:
    return f"what differs from '{stream}' is found when it runs"


def _measured(known: Status, source: Source) -> Status:
    """Add what the server says, if it says anything: the checkpoint is read either way."""
    try:
        lags = tuple(lag_of(source, known.committed))
    except ClientError as error:
        return replace(known, unanswered=str(error))
    offsets = {} if known.committed is None else known.committed.offsets
    there = {lag.path for lag in lags}
    gone = [
        path
        for path in sorted(offsets.keys() - there)
        if any(matches(glob, path) for glob in source.streams)
    ]
    return replace(known, streams=lags, gone=tuple(gone))


def _seen(pipeline: Pipeline) -> Path | None:
    """Give the folder of a checkpoint where it can be looked at."""
    folder = local_folder(pipeline.checkpoint)
    if folder is not None and pipeline.remote and not folder.exists():
        return None
    return folder


def _job_status(pipeline: Pipeline) -> Status:
    """Tell what is known of a job that ends by itself: most of them keep nothing."""
    target = pipeline.target
    folder = _seen(pipeline) if pipeline.has_checkpoint else None
    lags: tuple[StreamLag, ...] = ()
    unanswered = ""
    if isinstance(target, Snapshot):
        try:
            known, lags = _since_snapshot(pipeline, target)
        except ClientError as error:
            known, unanswered = "", str(error)
    elif isinstance(target, Publish):
        known = _of_publication(target.stream)
    else:
        known = f"what its streams lack of {target.place} is found when it runs"
    return Status(
        pipeline.name,
        pipeline.kind,
        pipeline.checkpoint if pipeline.has_checkpoint else "",
        folder is not None,
        None,
        None if folder is None else holder(folder),
        lags,
        is_remote=pipeline.remote is not None,
        known=known,
        unanswered=unanswered,
    )


def _since_snapshot(pipeline: Pipeline, target: Snapshot) -> tuple[str, tuple[StreamLag, ...]]:
    """Find the last snapshot, and what its source has got since."""
    (path,) = pipeline.source.streams
    with client_of(pipeline.source) as client:
        source = client.stream(path).head()
        try:
            last, _ = find_snapshots(client.stream(target.stream))
        except StreamNotFound:
            last = None
    if last is None or last.source != path:
        return f"'{target.stream}' holds no snapshot of it", ()
    known = f"the last snapshot in '{target.stream}' is as of offset {last.offset}"
    return known, (StreamLag(path, last.offset, source.next_offset, source.closed),)


def lag_of(source: Source, committed: Committed | None) -> Iterator[StreamLag]:
    """Ask the server how far each stream goes beyond what is committed."""
    if not source.streams:
        return
    starting = source_options(source.format_options()).starting
    offsets = {} if committed is None else committed.offsets
    seen = set()
    with client_of(source) as client:
        for glob in source.streams:
            for stream in client.streams(glob):
                if stream.path in seen:
                    continue
                seen.add(stream.path)
                path, tail = stream.path, stream.tail
                begin = offsets.get(path, START)
                if committed is None:
                    begin = chosen_offset(starting, path, tail, "earliest")
                elif begin != START and not is_of_this_incarnation(client, path, begin, tail):
                    begin = START  # the stream was deleted and created again
                yield StreamLag(path, begin, tail, stream.closed)


def missing_streams(pipeline: Pipeline) -> tuple[list[str], list[str]]:
    """List the streams and the globs of a source that have nothing at the server."""
    streams: list[str] = []
    globs: list[str] = []
    with client_of(pipeline.source) as client:
        for path in pipeline.source.streams:
            if next(iter(client.streams(path)), None) is None:
                (globs if is_glob(path) else streams).append(path)
    return streams, globs
