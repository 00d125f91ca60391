"""What can be found wrong with a pipeline without Spark: servers, checkpoint, functions, Java.

A file may be wrong in one place and still say much: so each look names what it reads, and is taken
where all of that is known.
"""

import os
import socket
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from urllib.parse import urlsplit

from headwater.errors import CheckpointUnreadable, HeadwaterError, NoJava
from headwater.spark.java import find_java
from headwater.spark.pipelines.building import find_source, no_table
from headwater.spark.pipelines.checkpoints import (
    Owner,
    holder,
    last_committed,
    local_folder,
    mismatches,
    owner,
)
from headwater.spark.pipelines.failures import named_reason_of, reason_of
from headwater.spark.pipelines.problems import Problem
from headwater.spark.pipelines.rules import Rule, found_by
from headwater.spark.pipelines.status import client_of, missing_streams
from headwater.spark.pipelines.values import Pipeline, Server

_CONNECT_PORT: Final = 15002
_CONNECT_SECONDS: Final = 5.0
_MASTER: Final = "spark://"
_MASTER_PORT: Final = 7077
_MASTER_SECONDS: Final = 1.0


def before_spark(pipeline: Pipeline, unknown: Collection[str] = ()) -> list[Problem]:
    """Find what is wrong outside of Spark; of what is `unknown`, nothing is told."""
    return found_by(_LOOKS, pipeline, unknown)


def _source_server(pipeline: Pipeline) -> Iterator[Problem]:
    if not pipeline.source.streams:
        return
    reason = _silence(pipeline.source)
    if reason is None:
        yield from _streams(pipeline)
    else:
        yield Problem("source.url", reason)


def _target_server(pipeline: Pipeline) -> Iterator[Problem]:
    source, target = pipeline.source, pipeline.target
    if isinstance(target, Server) and not (source.streams and source.url == target.url):
        reason = _silence(target)
        if reason is not None:
            yield Problem("target.url", reason)


def _silence(server: Server) -> str | None:
    """Say why a server does not answer; None where it does."""
    try:
        with client_of(server) as client:
            client.changes("**", wait=0)
    except (HeadwaterError, ValueError) as error:
        return reason_of(error)
    return None


def _streams(pipeline: Pipeline) -> Iterator[Problem]:
    streams, globs = missing_streams(pipeline)
    for path in streams:
        what = f"there is no stream '{path}': create it with: headwater create {path}"
        yield Problem("source.stream", what)
    for glob in globs:
        what = f"no stream matches '{glob}' yet; those that appear are read"
        yield Problem("source.stream", what, is_warning=True)


def _table(pipeline: Pipeline) -> Iterator[Problem]:
    """Look for a table of this machine; with Connect its folder is there, and not here."""
    from headwater.spark.tables import holds_table  # noqa: PLC0415 - only tables need Delta

    source = pipeline.source
    if source.table is None or local_folder(source.table) is None or pipeline.remote is not None:
        return
    try:
        if not holds_table(source.table, source.format):
            yield no_table(source)
    except HeadwaterError as error:
        yield Problem("source.table", reason_of(error))


def _checkpoint(pipeline: Pipeline) -> Iterator[Problem]:
    if not pipeline.has_checkpoint:
        return
    folder = local_folder(pipeline.checkpoint)
    if folder is None:
        what = f"{pipeline.checkpoint} is on another machine and was not looked at"
        yield Problem("checkpoint", what, is_warning=True)
        return
    try:
        last_committed(folder)
        before = owner(folder)
        process = holder(folder)
    except CheckpointUnreadable as error:
        yield Problem("checkpoint", str(error))
        return
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        what = f"{there} can't be written by this user: let it, or choose another"
        yield Problem("checkpoint", what)
        return
    if before is not None:
        yield from mismatches(before, Owner.of(pipeline))
    elif (folder / "metadata").exists():
        what = f"{folder} was written by another query: set another, or remove it"
        yield Problem("checkpoint", what)
    if process is not None:
        what = f"process {process} runs this pipeline now: it has to stop before another run"
        yield Problem("checkpoint", what, is_warning=True)


def _functions(pipeline: Pipeline) -> Iterator[Problem]:
    for number, step in enumerate(pipeline.transform, 1):
        if step.python is not None:
            place = step.python.rpartition(":")[0]
            try:
                is_there = find_source(place)
            except Exception as error:  # noqa: BLE001 - the module is the user's program
                yield Problem(f"transform {number}.python", named_reason_of(error))
                continue
            if not is_there:
                what = f"there is no {place}: a file beside the pipeline, or an installed module"
                yield Problem(f"transform {number}.python", what)


def _session(pipeline: Pipeline) -> Iterator[Problem]:
    if pipeline.remote is not None:
        yield from _connect(pipeline.remote)
    else:
        yield from _java()
        yield from _master(pipeline.master or "")


def _connect(remote: str) -> Iterator[Problem]:
    """Look whether a Connect server is there at all: Spark itself would try for minutes."""
    reason = _refusal(remote, _CONNECT_PORT, _CONNECT_SECONDS)
    if reason is not None:
        yield Problem("remote", f"there is no Spark Connect server at {remote} ({reason})")


def _master(master: str) -> Iterator[Problem]:
    """Look whether a master of Spark's own cluster is there: Spark itself would try for long."""
    if not master.startswith(_MASTER):
        return
    places = master.removeprefix(_MASTER).split(",")
    with ThreadPoolExecutor(len(places)) as pool:  # one that answers is enough
        reasons = list(pool.map(_no_master, places))
    if None not in reasons:
        what = f"there is no Spark master at {master} ({reasons[0]}): start it, or name another"
        yield Problem("master", what)


def _no_master(place: str) -> str | None:
    return _refusal(f"{_MASTER}{place}", _MASTER_PORT, _MASTER_SECONDS)


def _refusal(url: str, port: int, seconds: float) -> str | None:
    """Say why nobody is reached at a URL; None where somebody is."""
    at = urlsplit(url)
    try:
        socket.create_connection((at.hostname or "", at.port or port), seconds).close()
    except (OSError, ValueError) as error:
        return str(error)
    return None


def _java() -> Iterator[Problem]:
    try:
        find_java()
    except NoJava as error:
        yield Problem("java", str(error))


_LOOKS: Final[tuple[Rule, ...]] = (
    (_source_server, ("source.url", "source.token", "source.headers", "source.stream")),
    (_target_server, ("target.url", "target.token", "target.headers", "source.url")),
    (_checkpoint, ("checkpoint", "source", "transform", "target")),
    (_functions, ()),
    (_table, ("source.table", "source.format", "remote")),
    (_session, ("master", "remote")),
)
"""The looks, each with what it reads beside the place that it tells of."""
