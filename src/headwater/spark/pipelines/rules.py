"""What contradicts each other in a pipeline, or can't be done. Pure rules over its values."""

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from headwater.errors import BadOption
from headwater.protocol.globs import matches
from headwater.spark.options import is_glob, sink_options, source_options
from headwater.spark.pipelines.problems import Problem
from headwater.spark.pipelines.triggers import is_trigger
from headwater.spark.pipelines.values import (
    BOUNDED,
    JOBS,
    SOURCE_VIEW,
    Materialize,
    Pipeline,
    Project,
    Restore,
    Snapshot,
    Source,
    SparkTarget,
    StreamTarget,
    TableTarget,
    Transform,
)
from headwater.spark.ranges import is_offset

_MODES: Final = {"materialize": "state", "project": "runs", "snapshot": "state"}


def contradictions(pipeline: Pipeline) -> list[Problem]:
    """Tell all that can be told without a server and without Spark."""
    return [
        *_source(pipeline),
        *_transforms(pipeline),
        *_target(pipeline),
        *_loops(pipeline),
        *how_it_runs(pipeline),
    ]


def how_it_runs(pipeline: Pipeline) -> list[Problem]:
    """Tell what is wrong with trigger, session and metrics."""
    return list(_running(pipeline))


def view_names(transforms: Iterable[Transform]) -> list[str]:
    """Name the view of each transform."""
    return [step.name or f"step{number}" for number, step in enumerate(transforms, 1)]


def _source(pipeline: Pipeline) -> Iterator[Problem]:
    source, target = pipeline.source, pipeline.target
    if isinstance(target, Restore):
        if source.streams or source.table:
            yield Problem("source", "'restore' reads its archive alone: remove the source")
        return
    if source.table is not None:
        if source.streams:
            yield Problem("source", "name streams or a table, not both")
        if source.mode or source.schema or source.options:
            yield Problem("source", "a table has neither mode, schema nor options: remove them")
        if pipeline.kind != "publish":
            what = f"a table can be published, but not read by '{pipeline.kind}': name streams"
            yield Problem("source.table", what)
        return
    if not source.streams:
        yield Problem("source.stream", "name a stream, a list of them, or a glob such as shop/*")
        return
    options = {name: each for name, each in source.options.items() if name.lower() != "types"}
    if isinstance(target, Materialize) and len(options) < len(source.options):
        what = f"'{pipeline.kind}' takes changes of all types: remove it"
        yield Problem("source.options.types", what)
        source = replace(source, options=options)
    yield from _source_options(source)
    if isinstance(target, JOBS):
        if source.schema is not None:
            yield Problem("source.schema", f"'{pipeline.kind}' knows its columns: remove it")
        if source.mode not in {None, _MODES.get(pipeline.kind)}:
            yield Problem("source.mode", f"'{pipeline.kind}' reads in its own mode: remove it")
    elif source.schema is not None and source.mode not in {None, "json"}:
        yield Problem("source.mode", f"'{source.mode}' has its own columns: remove the schema")
    if isinstance(target, Snapshot) and (len(source.streams) > 1 or is_glob(source.streams[0])):
        yield Problem("source.stream", "a snapshot is taken of one stream: name one")


def _source_options(source: Source) -> Iterator[Problem]:
    own = {"url", "stream", "path", "token", "headers", "mode"}
    for name in source.options:
        if name.lower() in own:
            yield Problem(f"source.options.{name}", f"set it as source.{name.lower()}")
            return
    try:
        source_options(source.format_options())
    except BadOption as error:
        yield Problem(_option_place("source", error), error.reason)


def _transforms(pipeline: Pipeline) -> Iterator[Problem]:
    if pipeline.transform and isinstance(pipeline.target, (*JOBS, Restore)):
        what = (
            f"'{pipeline.kind}' reads its source as it is: remove the transforms, or write what "
            "they give to a stream in a pipeline of its own"
        )
        yield Problem("transform", what)
    seen = {SOURCE_VIEW}
    for number, (step, name) in enumerate(
        zip(pipeline.transform, view_names(pipeline.transform), strict=True), 1
    ):
        where = f"transform {number}"
        if (step.sql is None) == (step.python is None):
            yield Problem(where, "has to have either sql or python")
        if step.sql is not None and not step.sql.strip():
            yield Problem(f"{where}.sql", "is empty: write a SELECT over the view 'source'")
        if step.python is not None and not all(step.python.rpartition(":")):
            what = f"'{step.python}' has to be module:function or file.py:function"
            yield Problem(f"{where}.python", what)
        if not name.isidentifier():
            yield Problem(f"{where}.name", f"'{name}' can't name a view: use letters, digits, _")
        if name.lower() in seen:
            yield Problem(f"{where}.name", f"'{name}' names another view already: choose another")
        seen.add(name.lower())


def _target(pipeline: Pipeline) -> Iterator[Problem]:
    target = pipeline.target
    if isinstance(target, StreamTarget):
        if "writeId" in target.options or "batchId" in target.options:
            yield Problem("target.options", "a pipeline numbers its batches itself: remove it")
        try:
            sink_options(target.format_options())
        except BadOption as error:
            yield Problem(_option_place("target", error), error.reason)
    if isinstance(target, Restore):
        for path, offset in target.until.items():
            if not is_offset(offset):
                what = (
                    f"'{offset}' is no offset: the archive's column 'offset' has those of '{path}'"
                )
                yield Problem("target.until", what)
    for place in ("folder", "tables", "table", "stream", "format"):
        if getattr(target, place, None) == "":
            yield Problem(f"target.{place}", "is empty: say where rows go")
    if isinstance(target, SparkTarget):
        if target.folder and target.table:
            yield Problem("target", "name a folder or a table, not both")
        if target.format == "headwater":
            yield Problem("target.format", "streams are a kind of target: use kind = 'stream'")
    if isinstance(target, TableTarget | SparkTarget) and _same_folder(
        target.folder or "", pipeline.checkpoint
    ):
        yield Problem("target.folder", "is the checkpoint's folder: choose another")


def _loops(pipeline: Pipeline) -> Iterator[Problem]:
    """A pipeline that reads what it writes never ends."""
    source, target = pipeline.source, pipeline.target
    written = {"metrics_stream": pipeline.metrics_stream}
    if source.streams and getattr(target, "url", source.url) == source.url:
        written["target.stream"] = getattr(target, "stream", None)
    if isinstance(target, Project):
        written["target.publish"] = target.publish
    if isinstance(target, Restore):
        return
    for where, path in written.items():
        if isinstance(path, str) and any(matches(glob, path.strip("/")) for glob in source.streams):
            what = f"'{path}' is one of the streams that are read: write to another"
            yield Problem(where, what)


def _running(pipeline: Pipeline) -> Iterator[Problem]:
    if not is_trigger(pipeline.trigger):
        what = f"'{pipeline.trigger}' is none of default, available-now, 'every 10 seconds'"
        yield Problem("trigger", what)
    elif isinstance(pipeline.target, BOUNDED) and pipeline.trigger.startswith("every"):
        yield Problem("trigger", f"'{pipeline.kind}' runs once and ends: remove it")
    if pipeline.master and pipeline.remote:
        yield Problem("remote", "a session is on a master or on a remote: remove one")
    if pipeline.remote and not pipeline.remote.startswith("sc://"):
        yield Problem("remote", f"'{pipeline.remote}' is no Spark Connect URL: sc://host:15002")
    if pipeline.metrics_stream == "":
        yield Problem("metrics_stream", "is empty: name a stream or remove it")


def _same_folder(one: str, other: str) -> bool:
    return one.rstrip("/") == other.rstrip("/")


def _option_place(section: str, error: BadOption) -> str:
    own = {"url", "stream", "token", "headers", "mode"}
    return f"{section}.{error.name}" if error.name in own else f"{section}.options.{error.name}"
