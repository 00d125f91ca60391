"""What becomes of each batch of state streams on its way into tables.

A batch is read once, and kept packed while it is worked on. Its controls, of which there are few,
say which changes are visible, and what is cleared. A snapshot that is still open needs no memory of
its own: once it ends, its range is read again, since the stream is durable. Tables are written one
after another; a replay finds those that have the batch, and finishes the rest.
"""

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final
from uuid import uuid4

import msgspec
from msgspec import Struct, structs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from headwater.errors import BadOption, TableSchemaRefused, TableTaken
from headwater.spark.jobs.notes import Notes
from headwater.spark.options import source_options
from headwater.spark.packing import BUCKET, PACKED
from headwater.spark.planning import Planner
from headwater.spark.tables import Table, open_table
from headwater.spark.tables.table import BUCKETS
from headwater.spark.transforms.changes import ASIDE, CHANGES, controls_in
from headwater.spark.transforms.controls import Control, Course, courses
from headwater.spark.transforms.state import (
    CurrentState,
    History,
    current_schema,
    history_schema,
    value_columns,
)
from headwater.spark.transforms.violations import QUARANTINE, Quarantine

QUARANTINE_TABLE: Final = "_quarantine"
_HISTORY: Final = "_history"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]|^[_.]|_(?=history$)")
_LONGEST: Final = 150


def table_folder(type_: str) -> str:
    """Name the folder of a type's table: other than letters, digits, `_`, `-`, `.` are escaped.

    So is what would make a type's name that of a history, or of a table of the job's own.
    """
    name = _UNSAFE.sub(lambda found: "".join(f"~{byte:02X}" for byte in found[0].encode()), type_)
    if len(name) > _LONGEST:
        return f"{name[:_LONGEST]}~{sha256(type_.encode()).hexdigest()[:16]}"
    return name


class Noted(Struct, frozen=True):
    """What holds before a batch."""

    writer: str
    """The name of this query in the logs of its tables."""
    history: bool
    """Whether there are histories, which have everything from the start or are none."""
    types: tuple[str, ...] = ()
    opened: Mapping[str, str] = {}
    """By stream, where the snapshot began that has not ended."""


class Survey(Struct, frozen=True):
    """What there is in a batch."""

    types: frozenset[str]
    controls: tuple[Control, ...]
    aside: bool
    """Whether anything is to be kept aside."""


class Materializing:
    """What becomes of each batch. It is pickled where Spark runs elsewhere."""

    def __init__(
        self,
        *,
        source: Mapping[str, str],
        tables: str,
        notes: str,
        schemas: Mapping[str, StructType],
        history: bool,
        table_format: str,
    ) -> None:
        self._source = source
        self._tables = tables
        self._notes = Notes(notes, Noted)
        self._schemas = schemas
        self._history = history
        self._format = table_format
        self._compared: set[str] = set()
        """The tables that are known to fit their schemas."""

    def take(self, batch: DataFrame, number: int) -> None:
        """Bring all tables behind a batch; may be repeated."""
        noted = self._notes.before(number)
        if noted is None:
            # Written before anything else, so that a replay is known by its writer.
            noted = Noted(uuid4().hex, self._history)
            self._notes.write(number, noted)
        if self._history and not noted.history:
            raise BadOption("history", "this query has gone on without: begin another one")
        for type_ in noted.types:  # before values are measured by a schema that can't be theirs
            for name in self._names(type_):
                self._compared_table(name, type_, batch.sparkSession, noted, number)
        # Asked before the batch is read: of what is gone by now, nothing can come any more.
        opened = self._still_open(noted.opened)
        changes = batch.persist()
        try:
            survey = _surveyed(changes)
            known = courses(opened, survey.controls)
            self._write(changes, _Step(number, noted, known, survey))
        finally:
            changes.unpersist()
        behind = Noted(
            noted.writer,
            self._history,
            tuple(sorted({*noted.types, *survey.types})),
            {name: each.opened for name, each in known.items() if each.opened is not None},
        )
        if behind != noted:
            self._notes.write(number + 1, behind)

    def _write(self, changes: DataFrame, step: "_Step") -> None:
        """Bring the tables behind a batch, one after another."""
        aside = changes
        if step.earlier:
            changes = changes.unionByName(self._again(changes.sparkSession, step.earlier))
        for type_ in sorted(step.types):
            schema = self._schemas.get(type_)
            rows = changes.where((f.col("kind") == CHANGES) & (f.col("type") == type_))
            current, *histories = self._names(type_)
            merge = CurrentState(step.known)
            self._rewrite(current, type_, rows, merge, current_schema(schema), step)
            for name in histories:
                self._rewrite(name, type_, rows, History(step.known), history_schema(schema), step)
        quarantine = Quarantine(step.known)
        table = self._table(QUARANTINE_TABLE)
        if step.survey.aside or (quarantine.forgets and table.exists):
            table.rewrite(
                aside.where(f.col("kind") == ASIDE).select(BUCKET, PACKED),
                quarantine,
                key=None,
                schema=QUARANTINE,
                writer=step.noted.writer,
                batch=step.number,
                every_bucket=quarantine.forgets,
            )

    def _rewrite(
        self,
        name: str,
        type_: str,
        rows: DataFrame,
        merge: CurrentState | History,
        schema: StructType,
        step: "_Step",
    ) -> None:
        table = self._compared_table(name, type_, rows.sparkSession, step.noted, step.number)
        table.rewrite(
            rows.select(BUCKET, PACKED),
            merge,
            key=None,
            schema=schema,
            writer=step.noted.writer,
            batch=step.number,
            after=_after(type_, step.noted),
            every_bucket=step.clears,
            finish=merge.finish,
        )

    def _still_open(self, opened: Mapping[str, str]) -> Mapping[str, str]:
        """Forget snapshots of streams that were deleted since: a new one at the path begins anew.

        Epochs alone would not tell, since a fork has those of its source as well.
        """
        options = source_options(self._source)
        if not opened or options.fail_on_data_loss:  # it would have failed
            return opened
        planner = Planner(structs.replace(options, streams=tuple(opened)))
        try:
            planner.look_once()
            return {
                path: offset
                for path, offset in opened.items()
                if path in planner.tails and planner.is_of_this_incarnation(path, offset)
            }
        finally:
            planner.close()

    def _again(self, spark: SparkSession, ranges: Mapping[str, tuple[str, str]]) -> DataFrame:
        """Read snapshots that began in earlier batches, now that they have ended.

        What they hold that is to be kept aside was, when it came.
        """
        chosen = {"startingoffsets", "endingoffsets", "stream", "path"}
        options = {name: each for name, each in self._source.items() if name.lower() not in chosen}
        options["stream"] = _json(list(ranges))
        options["startingOffsets"] = _json({name: each[0] for name, each in ranges.items()})
        options["endingOffsets"] = _json({name: each[1] for name, each in ranges.items()})
        return spark.read.format("headwater").options(**options).load()

    def _table(self, name: str) -> Table:
        return open_table(f"{self._tables}/{name}", self._format, buckets=BUCKETS)

    def _names(self, type_: str) -> list[str]:
        """Name the tables of a type: the current state, and then the history if there is one."""
        name = table_folder(type_)
        return [name, f"{name}{_HISTORY}"] if self._history else [name]

    def _compared_table(
        self, name: str, type_: str, spark: SparkSession, noted: Noted, number: int
    ) -> Table:
        """Open a table; the first time, see that it is this query's and fits the schema."""
        table = self._table(name)
        if name not in self._compared:
            table.require(noted.writer, batch=number, after=_after(type_, noted))
            rows = table.read(spark)
            if rows is not None:
                if table.committed(noted.writer) < 0 and not rows.isEmpty():
                    raise TableTaken(table.folder)
                _compare(rows.schema, type_, self._schemas.get(type_))
            self._compared.add(name)
        return table


class _Step:
    """One batch, and what it means."""

    def __init__(
        self, number: int, noted: Noted, known: Mapping[str, Course], survey: Survey
    ) -> None:
        self.number = number
        self.noted = noted
        self.known = known
        self.survey = survey
        self.clears = any(each.clears for each in known.values())
        self.types = survey.types | {*noted.types} if self.clears else survey.types
        """The types whose tables change."""
        self.earlier = {
            name: each.earlier for name, each in known.items() if each.earlier is not None
        }


def _after(type_: str, noted: Noted) -> int:
    """Give the batch from which on a type's tables must hold one: it is noted behind its first."""
    return 0 if type_ in noted.types else -1


def _surveyed(changes: DataFrame) -> Survey:
    told = changes.agg(
        f.collect_set("type").alias("types"),
        f.flatten(f.collect_list("controls")).alias("controls"),
        f.count_if(f.col("kind") == ASIDE).alias("aside"),
    ).collect()[0]
    return Survey(frozenset(told.types), controls_in(told.controls), bool(told.aside))


def _compare(is_now: StructType, type_: str, schema: StructType | None) -> None:
    """Refuse a schema that the rows of a table can't have."""
    if ("value" in is_now.fieldNames()) != (schema is None):
        has, lacks = ("JSON", "columns") if schema is not None else ("columns", "JSON")
        raise TableSchemaRefused("value", f"{has} of the type '{type_}'", lacks)
    for field, column in zip(schema or (), value_columns(schema), strict=False):
        name, wanted = column.name, column.dataType.simpleString()
        if name not in is_now.fieldNames():
            if not field.nullable:
                raise TableSchemaRefused(name, "not there", "a column that is never null")
        elif is_now[name].dataType.simpleString() != wanted:
            raise TableSchemaRefused(name, is_now[name].dataType.simpleString(), wanted)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
