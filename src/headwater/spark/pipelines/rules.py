"""What contradicts each other in a pipeline, or can't be done. Pure rules over its values.

A file may be wrong in one place and still say much: so each rule names what it reads, and is asked
where all of that is known.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from headwater.errors import BadOption
from headwater.protocol.globs import matches
from headwater.spark.options import is_glob, sink_options, source_options
from headwater.spark.pipelines.names import blank_names, unwritable_streams
from headwater.spark.pipelines.problems import Problem, is_known, is_within
from headwater.spark.pipelines.triggers import is_trigger
from headwater.spark.pipelines.values import (
    BOUNDED,
    JOBS,
    SOURCE_VIEW,
    Materialize,
    Pipeline,
    Project,
    Publish,
    Restore,
    Snapshot,
    Source,
    SparkTarget,
    StreamTarget,
    TableTarget,
    Transform,
)
from headwater.spark.ranges import is_offset

NO_REMOTE: Final = "'{}' is no Spark Connect URL: sc://host:15002"
_MODES: Final = {"materialize": "state", "project": "runs", "snapshot": "state"}


Rule: TypeAlias = tuple[Callable[[Pipeline], Iterator[Problem]], tuple[str, ...]]
"""What looks at a pipeline, and the places that it reads."""


def contradictions(pipeline: Pipeline, unknown: Collection[str] = ()) -> list[Problem]:
    """Tell all that can be told without a server and without Spark."""
    return found_by(_RULES, pipeline, unknown)


def found_by(rules: Iterable[Rule], pipeline: Pipeline, unknown: Collection[str]) -> list[Problem]:
    """Tell what rules find.

    `unknown` are places of which the pipeline does not say what the file was meant to.
    """
    return [
        problem
        for rule, reads in rules
        if all(is_known(place, unknown) for place in reads)
        for problem in rule(pipeline)
        if not any(is_within(problem.where, each) for each in unknown)
    ]


def view_names(transforms: Iterable[Transform]) -> list[str]:
    """Name the view of each transform."""
    return [step.name or f"step{number}" for number, step in enumerate(transforms, 1)]


def is_remote(text: str) -> bool:
    """Tell the URL of a Spark Connect server from anything else."""
    return text.startswith("sc://")


# The source


def _one_source(pipeline: Pipeline) -> Iterator[Problem]:
    source = pipeline.source
    if isinstance(pipeline.target, Restore):
        if source.streams or source.table:
            yield Problem("source", "'restore' reads its archive alone: remove the source")
    elif source.table is not None:
        if source.streams:
            yield Problem("source", "name streams or a table, not both")
        if pipeline.kind != "publish":
            what = f"a table can be published, but not read by '{pipeline.kind}': name streams"
            yield Problem("source.table", what)
    elif not source.streams:
        yield Problem("source.stream", "name a stream, a list of them, or a glob such as shop/*")
    elif len(source.streams) < len(source.names):
        yield Problem("source.stream", "one of its names is empty: name a stream, or remove it")


def _table_as_it_is(pipeline: Pipeline) -> Iterator[Problem]:
    source = pipeline.source
    if isinstance(pipeline.target, Restore) or source.table is None:
        return
    if source.mode or source.schema or source.options:
        yield Problem("source", "a table has neither mode, schema nor options: remove them")


def _all_types(pipeline: Pipeline) -> Iterator[Problem]:
    if isinstance(pipeline.target, Materialize) and _typed(pipeline.source):
        what = f"'{pipeline.kind}' takes changes of all types: remove it"
        yield Problem("source.options.types", what)


def _source_options(pipeline: Pipeline) -> Iterator[Problem]:
    source, target = pipeline.source, pipeline.target
    if source.table is not None or not source.streams or isinstance(target, Restore):
        return  # other rules tell
    own = {"url", "stream", "path", "token", "headers", "mode"}
    for name in source.options:
        if name.lower() in own:
            yield Problem(f"source.options.{name}", f"set it as source.{name.lower()}")
            return
    told = _typed(source) if isinstance(target, Materialize) else set()
    options = {name: each for name, each in source.options.items() if name not in told}
    try:
        source_options(replace(source, options=options).format_options())
    except BadOption as error:
        yield Problem(_option_place("source", error), error.reason)


def _typed(source: Source) -> set[str]:
    return {name for name in source.options if name.lower() == "types"}


def _columns_of_a_job(pipeline: Pipeline) -> Iterator[Problem]:
    if isinstance(pipeline.target, JOBS) and pipeline.source.schema is not None:
        yield Problem("source.schema", f"'{pipeline.kind}' knows its columns: remove it")


def _mode_of_a_job(pipeline: Pipeline) -> Iterator[Problem]:
    known = {None, _MODES.get(pipeline.kind)}
    if isinstance(pipeline.target, JOBS) and pipeline.source.mode not in known:
        yield Problem("source.mode", f"'{pipeline.kind}' reads in its own mode: remove it")


def _columns_of_a_mode(pipeline: Pipeline) -> Iterator[Problem]:
    source = pipeline.source
    if isinstance(pipeline.target, (*JOBS, Restore)) or source.table is not None:
        return
    if source.schema is not None and source.mode not in {None, "json"}:
        yield Problem("source.mode", f"'{source.mode}' has its own columns: remove the schema")


def _one_stream(pipeline: Pipeline) -> Iterator[Problem]:
    streams = pipeline.source.streams
    is_one = len(streams) == 1 and not is_glob(streams[0])
    if isinstance(pipeline.target, Snapshot) and streams and not is_one:
        yield Problem("source.stream", "a snapshot is taken of one stream: name one")


# Transforms


def _no_transforms(pipeline: Pipeline) -> Iterator[Problem]:
    if pipeline.transform and isinstance(pipeline.target, (*JOBS, Restore)):
        what = (
            f"'{pipeline.kind}' reads its source as it is: remove the transforms, or write what "
            "they give to a stream in a pipeline of its own"
        )
        yield Problem("transform", what)


def _steps(pipeline: Pipeline) -> Iterator[Problem]:
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


# The target


def _sink_options(pipeline: Pipeline) -> Iterator[Problem]:
    target = pipeline.target
    if not isinstance(target, StreamTarget):
        return
    if {"writeid", "batchid"} & {name.lower() for name in target.options}:
        yield Problem("target.options", "a pipeline numbers its batches itself: remove it")
    try:
        sink_options(replace(target, stream=None).format_options())
    except BadOption as error:
        yield Problem(_option_place("target", error), error.reason)


def _restored_part(pipeline: Pipeline) -> Iterator[Problem]:
    target = pipeline.target
    if not isinstance(target, Restore):
        return
    for path, offset in target.until.items():
        if not is_offset(offset):
            what = f"'{offset}' is no offset: the archive's column 'offset' has those of '{path}'"
            yield Problem("target.until", what)


def _one_place(pipeline: Pipeline) -> Iterator[Problem]:
    target = pipeline.target
    if isinstance(target, SparkTarget) and target.folder and target.table:
        yield Problem("target", "name a folder or a table, not both")


def _one_value(pipeline: Pipeline) -> Iterator[Problem]:
    target = pipeline.target
    if isinstance(target, Publish) and target.columns and target.value is not None:
        what = "name the columns of the value or the one that holds it, not both"
        yield Problem("target", what)


def _another_kind(pipeline: Pipeline) -> Iterator[Problem]:
    if isinstance(pipeline.target, SparkTarget) and pipeline.target.format == "headwater":
        yield Problem("target.format", "streams are a kind of target: use kind = 'stream'")


def _another_folder(pipeline: Pipeline) -> Iterator[Problem]:
    target = pipeline.target
    if isinstance(target, TableTarget | SparkTarget) and _same_folder(
        target.folder or "", pipeline.checkpoint
    ):
        yield Problem("target.folder", "is the checkpoint's folder: choose another")


# What is read again


def _loops(pipeline: Pipeline) -> Iterator[Problem]:
    """A pipeline that reads what it writes never ends."""
    source, target = pipeline.source, pipeline.target
    if isinstance(target, Restore):
        return
    written: dict[str, Any] = {}
    if getattr(target, "url", source.url) == source.url:
        written["target.stream"] = getattr(target, "stream", None)
    if isinstance(target, Project):
        written["target.publish"] = target.publish
    yield from _read_again(source, written)


def _loop_of_metrics(pipeline: Pipeline) -> Iterator[Problem]:
    if not isinstance(pipeline.target, Restore):
        yield from _read_again(pipeline.source, {"metrics_stream": pipeline.metrics_stream})


def _read_again(source: Source, written: Mapping[str, Any]) -> Iterator[Problem]:
    for where, path in written.items():
        if isinstance(path, str) and any(matches(glob, path.strip("/")) for glob in source.streams):
            what = f"'{path}' is one of the streams that are read: write to another"
            yield Problem(where, what)


# How it runs


def _trigger(pipeline: Pipeline) -> Iterator[Problem]:
    if not is_trigger(pipeline.trigger):
        what = f"'{pipeline.trigger}' is none of default, available-now, 'every 10 seconds'"
        yield Problem("trigger", what)


def _trigger_of_a_job(pipeline: Pipeline) -> Iterator[Problem]:
    is_every = is_trigger(pipeline.trigger) and pipeline.trigger.startswith("every")
    if isinstance(pipeline.target, BOUNDED) and is_every:
        yield Problem("trigger", f"'{pipeline.kind}' runs once and ends: remove it")


def _one_session(pipeline: Pipeline) -> Iterator[Problem]:
    if pipeline.master and pipeline.remote:
        yield Problem("remote", "a session is on a master or on a remote: remove one")


def _remote(pipeline: Pipeline) -> Iterator[Problem]:
    if pipeline.remote and not is_remote(pipeline.remote):
        yield Problem("remote", NO_REMOTE.format(pipeline.remote))


def _same_folder(one: str, other: str) -> bool:
    return one.rstrip("/") == other.rstrip("/")


def _option_place(section: str, error: BadOption) -> str:
    own = {"url", "stream", "token", "headers", "mode"}
    return f"{section}.{error.name}" if error.name in own else f"{section}.options.{error.name}"


_KIND: Final = "target.kind"
_SERVER: Final = ("source.url", "source.token", "source.headers")
"""The target's, too, where it names none."""
_STREAMS: Final = ("source.stream", *_SERVER)
_PLACE: Final = ("source.stream", "source.table", _KIND)

_RULES: Final[tuple[Rule, ...]] = (
    (_one_source, _PLACE),
    (_table_as_it_is, ("source.mode", "source.schema", "source.options", *_PLACE)),
    (_all_types, (_KIND,)),
    (_source_options, ("source.table", "source.mode", "source.options", *_STREAMS)),
    (_columns_of_a_job, (_KIND,)),
    (_mode_of_a_job, (_KIND,)),
    (_columns_of_a_mode, ("source.schema", "source.table", _KIND)),
    (_one_stream, (_KIND,)),
    (_no_transforms, ("transform", _KIND)),
    (_steps, ("transform",)),
    (_sink_options, ("target.url", "target.token", "target.headers", *_SERVER, _KIND)),
    (_restored_part, (_KIND,)),
    (_one_place, ("target.folder", "target.table")),
    (_one_value, ("target.columns", "target.value")),
    (_another_kind, (_KIND,)),
    (_another_folder, ("checkpoint", _KIND)),
    (_loops, ("target.url", *_STREAMS, _KIND)),
    (_loop_of_metrics, ("source.stream", _KIND)),
    (blank_names, ()),
    (unwritable_streams, ()),
    (_trigger, ()),
    (_trigger_of_a_job, (_KIND,)),
    (_one_session, ("master", "remote")),
    (_remote, ()),
)
"""The rules, each with what it reads beside the place that it tells of."""
