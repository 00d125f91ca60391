"""Everything that can be found wrong with a pipeline before it runs, all at once.

First what needs no Spark: the server, its streams, the checkpoint, Java, the functions. Then Spark
analyses each transform over no rows, and starts the whole query once over streams that match
nothing, which finds what can't be done in a stream.
"""

import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from urllib.parse import urlsplit
from uuid import uuid4

from msgspec.structs import replace
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headwater.errors import BadOption, BadPipeline, CheckpointUnreadable, HeadwaterError, NoJava
from headwater.spark.columns import Columns, default_schema
from headwater.spark.java import find_java
from headwater.spark.options import sink_options, source_options
from headwater.spark.pipelines.building import (
    apply,
    find_source,
    no_table,
    rows_now,
    streaming_rows,
    transformed,
)
from headwater.spark.pipelines.checkpoints import (
    Owner,
    holder,
    last_committed,
    local_folder,
    mismatches,
    owner,
)
from headwater.spark.pipelines.failures import named_reason_of, reason_of
from headwater.spark.pipelines.problems import Problem, are_fatal
from headwater.spark.pipelines.rules import view_names
from headwater.spark.pipelines.status import client_of, missing_streams
from headwater.spark.pipelines.table_columns import unfit_columns
from headwater.spark.pipelines.values import (
    JOBS,
    SOURCE_VIEW,
    Materialize,
    Pipeline,
    Publish,
    Restore,
    Server,
    Source,
    SparkTarget,
    StreamTarget,
    TableTarget,
)
from headwater.spark.sink import Encoder
from headwater.spark.transforms.comparing import column_complaints
from headwater.spark.transforms.state import read_schema

_NOTHING: Final = f"headwater-check/{uuid4().hex}"
"""A path at which nobody has anything."""
_DRY_SECONDS: Final = 60
_CONNECT_PORT: Final = 15002
_CONNECT_SECONDS: Final = 5.0
_MASTER: Final = "spark://"
_MASTER_PORT: Final = 7077
_MASTER_SECONDS: Final = 1.0


def before_spark(pipeline: Pipeline) -> list[Problem]:
    """Find what is wrong outside of Spark: servers, streams, checkpoint, Java, functions."""
    problems = [*_servers(pipeline), *_checkpoint(pipeline), *_functions(pipeline)]
    if pipeline.remote is not None:  # the folder of a table is there then, and not here
        return problems + list(_connect(pipeline.remote))
    return [*problems, *_table(pipeline.source), *_java(), *_master(pipeline.master or "")]


def with_spark(spark: SparkSession, pipeline: Pipeline, *, dry_run: bool) -> list[Problem]:
    """Have Spark look at schemas and transforms; with `dry_run` also start the query once."""
    if isinstance(pipeline.target, Materialize):
        return list(_schemas(spark, pipeline.target))
    if isinstance(pipeline.target, (*JOBS, Restore)):
        return []
    problems: list[Problem] = []
    if isinstance(pipeline.target, SparkTarget):
        problems += _format(spark, pipeline.target)
    made = _analysed(spark, pipeline, problems)
    if made is not None:
        problems += _written(pipeline, made.schema)
        if dry_run and not are_fatal(problems) and not isinstance(pipeline.target, Publish):
            problems += _dry(spark, pipeline)
    return problems


def _servers(pipeline: Pipeline) -> Iterator[Problem]:
    servers: dict[str, tuple[str, Server]] = {}
    if pipeline.source.streams:
        servers[pipeline.source.url] = ("source.url", pipeline.source)
    if isinstance(pipeline.target, Server):
        servers.setdefault(pipeline.target.url, ("target.url", pipeline.target))
    for where, server in servers.values():
        try:
            with client_of(server) as client:
                client.changes("**", wait=0)
        except (HeadwaterError, ValueError) as error:
            yield Problem(where, reason_of(error))
            if where == "source.url":
                return
    if pipeline.source.streams:
        yield from _streams(pipeline)


def _streams(pipeline: Pipeline) -> Iterator[Problem]:
    streams, globs = missing_streams(pipeline)
    for path in streams:
        what = f"there is no stream '{path}': create it with: headwater create {path}"
        yield Problem("source.stream", what)
    for glob in globs:
        what = f"no stream matches '{glob}' yet; those that appear are read"
        yield Problem("source.stream", what, is_warning=True)


def _table(source: Source) -> Iterator[Problem]:
    """Look for a table of this machine, which takes no Spark."""
    from headwater.spark.tables import holds_table  # noqa: PLC0415 - only tables need Delta

    if source.table is None or local_folder(source.table) is None:
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


def _schemas(spark: SparkSession, target: Materialize) -> Iterator[Problem]:
    for name, ddl in target.schemas.items():
        try:
            read_schema(f"schemas.{name}", spark.createDataFrame([], ddl).schema)
        except (BadOption, PySparkException, ValueError) as error:
            yield Problem(f"target.schemas.{name}", reason_of(error))


def source_schema(spark: SparkSession, source: Source) -> StructType:
    """Give the columns of a source; raises where they can't be read that way."""
    options = source_options(source.format_options())
    if source.schema is None:
        return default_schema(options)
    schema = spark.createDataFrame([], source.schema).schema
    Columns.of(options, schema)
    return schema


def _analysed(spark: SparkSession, pipeline: Pipeline, problems: list[Problem]) -> DataFrame | None:
    """Put no rows through the transforms, as far as that goes."""
    try:
        if pipeline.source.table:
            rows = rows_now(spark, pipeline.source)
        else:
            rows = spark.createDataFrame([], source_schema(spark, pipeline.source))
    except BadPipeline as error:
        problems.extend(problem for problem in error.problems if isinstance(problem, Problem))
        return None
    except (PySparkException, HeadwaterError, ValueError) as error:
        where = "source.table" if pipeline.source.table else "source.schema"
        problems.append(Problem(where, reason_of(error)))
        return None
    rows.createOrReplaceTempView(SOURCE_VIEW)
    views = view_names(pipeline.transform)
    for number, (step, view) in enumerate(zip(pipeline.transform, views, strict=True), 1):
        kind = "sql" if step.sql is not None else "python"
        try:
            rows = apply(spark, rows, step)
            rows.schema  # noqa: B018 - Connect analyses it when asked
        except Exception as error:  # noqa: BLE001 - a transform is the user's program
            problems.append(Problem(f"transform {number}.{kind}", named_reason_of(error)))
            return None
        rows.createOrReplaceTempView(view)
    return rows


def _written(pipeline: Pipeline, schema: StructType) -> Iterator[Problem]:
    """Have the target look at the columns that it gets."""
    if isinstance(pipeline.target, Publish):
        columns, value = pipeline.target.columns, pipeline.target.value
        places = {"key": "target.key", "value": "target.value" if value else "target.columns"}
        for argument, what in column_complaints(schema, pipeline.target.key, value or columns):
            yield Problem(places[argument], what)
    if isinstance(pipeline.target, StreamTarget):
        try:
            Encoder(sink_options(pipeline.target.format_options()), schema)
        except HeadwaterError as error:
            yield Problem("target", reason_of(error))
    if isinstance(pipeline.target, TableTarget):
        yield from unfit_columns(pipeline.target, schema)
    if isinstance(pipeline.target, SparkTarget):
        for name in pipeline.target.partition_by:
            yield from _column("target.partition_by", name, schema)


def _column(where: str, name: str, schema: StructType) -> Iterator[Problem]:
    if name not in schema.fieldNames():
        there = ", ".join(schema.fieldNames())
        yield Problem(where, f"there is no column '{name}'; there are {there}")


def _format(spark: SparkSession, target: SparkTarget) -> Iterator[Problem]:
    """Look whether the session has a format, by reading what is not there."""
    try:
        spark.read.format(target.format).load(_NOTHING).schema  # noqa: B018 - Connect looks when asked
    except Exception as error:  # noqa: BLE001 - Spark raises many kinds, and one of them says so
        if "DATA_SOURCE_NOT_" in str(error):
            what = (
                f"this Spark has no format '{target.format}': give it the package that holds it "
                "(jars or jars.packages under [spark])"
            )
            yield Problem("target.format", what)


def _dry(spark: SparkSession, pipeline: Pipeline) -> Iterator[Problem]:
    """Start the query over streams that are not there, into nothing, with its own checkpoint."""
    options = {  # offsets are of the streams that were named
        name: each
        for name, each in pipeline.source.options.items()
        if name.lower() != "startingoffsets"
    }
    nothing = replace(pipeline.source, stream=_NOTHING, options=options)
    output = getattr(pipeline.target, "output", "append")
    with tempfile.TemporaryDirectory(prefix="headwater-check-") as folder:
        try:
            rows = transformed(spark, streaming_rows(spark, nothing), pipeline.transform)
            writer = rows.writeStream.format("noop").outputMode(output)
            query = writer.trigger(availableNow=True).option("checkpointLocation", folder).start()
            if not query.awaitTermination(_DRY_SECONDS):
                query.stop()
        except Exception as error:  # noqa: BLE001 - a transform is the user's program
            yield Problem("query", named_reason_of(error))


def sorted_problems(problems: Sequence[Problem]) -> list[Problem]:
    """Put what stops the pipeline before what does not."""
    return sorted(dict.fromkeys(problems), key=lambda problem: problem.is_warning)
