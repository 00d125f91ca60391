"""Names in a pipeline that are blank, or of streams that nobody can write. Pure rules."""

from collections.abc import Iterator
from typing import Any, Final

from headwater.spark.options import is_glob, is_path
from headwater.spark.pipelines.problems import Problem
from headwater.spark.pipelines.values import (
    Materialize,
    Pipeline,
    Project,
    Publish,
    Restore,
    Snapshot,
    StreamTarget,
)

_ADVICE: Final = {
    "source.table": "name the folder of a table",
    "source.schema": "write the columns that you want, or remove it",
    "target.folder": "name a folder",
    "target.tables": "name a folder",
    "target.table": "name a table",
    "target.format": "name a format",
    "target.stream": "name a stream",
    "target.publish": "name a stream, or remove it",
    "target.type": "name the type of the entities",
    "target.key": "name the column, or the columns, that tell entities apart",
    "target.columns": "name columns, or remove it",
    "target.value": "name a column, or remove it",
    "target.partition_by": "name columns, or remove it",
    "checkpoint": "name a folder, or remove it",
    "metrics_file": "name a file, or remove it",
    "metrics_stream": "name a stream, or remove it",
}
"""By place, what to do where a name is blank, or one of several is."""
_STREAMS: Final = frozenset({"target.stream", "target.publish", "metrics_stream"})
_TEXTS: Final = frozenset(
    {"target.type", "target.key", "target.columns", "target.value", "target.partition_by"}
)
"""Types and columns, which spaces may name as well."""


def blank_names(pipeline: Pipeline) -> Iterator[Problem]:
    """Tell what is named, but by nothing; of the source's streams other rules do."""
    for where, advice in _ADVICE.items():
        given = _at(pipeline, where)
        names = list(given.values()) if isinstance(given, dict) else given
        names = [names] if isinstance(names, str) else names or []
        if where == "target.key" and not names and isinstance(pipeline.target, Publish):
            names = [""]
        if not all(_said(where, name) for name in names):
            yield Problem(where, f"is empty: {advice}")
    if isinstance(pipeline.target, Materialize):
        yield from _blank_schemas(pipeline.target)


def _said(where: str, name: str) -> str:
    """Leave what a name says."""
    if where in _TEXTS:
        return name
    return name.strip().strip("/") if where in _STREAMS else name.strip()


def _blank_schemas(target: Materialize) -> Iterator[Problem]:
    for type_, columns in target.schemas.items():
        if not type_:
            yield Problem("target.schemas", "the name of a type is empty: say which it is")
        elif not columns.strip():
            what = "is empty: write the columns of its values, or remove it to have them as JSON"
            yield Problem(f"target.schemas.{type_}", what)


def unwritable_streams(pipeline: Pipeline) -> Iterator[Problem]:
    """Tell of streams that are written, and can't be."""
    for where, path in _written(pipeline):
        name = path.strip().strip("/")
        if is_glob(name):
            yield Problem(where, "a glob can't be written to: name one stream")
        elif name and not is_path(name):
            yield Problem(where, f"'{path}' is no path of a stream: name one such as shop/orders")


def _written(pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    target = pipeline.target
    if isinstance(target, StreamTarget | Snapshot | Publish) and target.stream is not None:
        yield "target.stream", target.stream
    if isinstance(target, Project) and target.publish is not None:
        yield "target.publish", target.publish
    if isinstance(target, Restore) and isinstance(target.stream, dict):
        yield from (("target.stream", new) for new in target.stream.values())
    if pipeline.metrics_stream is not None:
        yield "metrics_stream", pipeline.metrics_stream


def _at(pipeline: Pipeline, where: str) -> Any:
    section, _, field = where.rpartition(".")
    return getattr(getattr(pipeline, section) if section else pipeline, field, None)
