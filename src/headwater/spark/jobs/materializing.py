"""What becomes of each batch of state streams on its way into tables.

A batch is surveyed: its types, and its controls, of which there are few. They say which changes
are visible, and what is cleared. A snapshot that is still open needs no memory of its own: once it
ends, its range is read again, since the stream is durable. Tables are written one after another; a
replay finds those that have the batch, and finishes the rest.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import uuid4

import msgspec
from msgspec import Struct
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from headwater.errors import BadOption, TableSchemaRefused, TableTaken
from headwater.spark.jobs.notes import Notes
from headwater.spark.messages import CORRUPT
from headwater.spark.tables import Table, open_table
from headwater.spark.transforms.controls import END, RESET, START, Control, Course, courses
from headwater.spark.transforms.state import (
    KEY,
    CurrentState,
    History,
    current_schema,
    history_schema,
    value_columns,
)
from headwater.spark.transforms.times import moment
from headwater.spark.transforms.violations import (
    QUARANTINE,
    REASON,
    Quarantine,
    checked,
    fitting,
    has_resets,
    malformed,
    violating,
)

ROWS: Final = (
    "stream string, offset string, type string, key string, value string, operation string, "
    f"txid string, timestamp string, control string, {CORRUPT} string"
)
"""The columns of the source that are needed."""

QUARANTINE_TABLE: Final = "_quarantine"
_HISTORY: Final = "_history"
_FEW: Final = 4
_CHANGE: Final = ("stream", "key", "value", "offset", "operation", "timestamp", "txid")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]|^[_.]|_(?=history$)")
_LONGEST: Final = 200


def table_folder(type_: str) -> str:
    """Name the folder of a type's table: other than letters, digits, `_`, `-`, `.` are escaped.

    So is what would make a type's name that of a history, or of a table of the job's own.
    """
    name = _UNSAFE.sub(lambda found: "".join(f"~{byte:02X}" for byte in found[0].encode()), type_)
    if len(name) > _LONGEST:
        raise BadOption("type", f"'{type_[:40]}…' is too long for the name of a table")
    return name


class Noted(Struct, frozen=True):
    """What holds before a batch."""

    writer: str
    """The name of this query in the logs of its tables."""
    types: tuple[str, ...] = ()
    opened: Mapping[str, str] = {}
    """By stream, where the snapshot began that has not ended."""


class Survey(Struct, frozen=True):
    """What there is in a batch."""

    types: frozenset[str]
    controls: tuple[Control, ...]
    malformed: bool


class Step:
    """How far a batch is."""

    def __init__(self, number: int, writer: str) -> None:
        self.number = number
        self.writer = writer
        self.done: set[str] = set()
        """The types whose tables are written."""
        self.violating: set[str] = set()
        """The types that have values which don't fit, as far as it is known."""


class Unforeseen(Exception):
    """A batch holds controls, though nobody has looked for them."""


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
        """The types whose tables are known to fit their schemas."""

    def take(self, batch: DataFrame, number: int) -> None:
        """Bring all tables behind a batch; may be repeated."""
        noted = self._noted(number)
        step = Step(number, noted.writer)
        survey = self._in_one_pass(batch, step, noted)
        if survey is None or survey.malformed or survey.types - step.done or step.violating:
            batch = batch.persist()
            try:
                survey = survey or _surveyed(batch.agg(*_survey()).collect()[0].asDict())
                self._in_steps(batch, step, noted, survey)
            finally:
                batch.unpersist()
        known = courses(noted.opened, survey.controls)
        behind = Noted(
            noted.writer,
            tuple(sorted({*noted.types, *survey.types})),
            {name: each.opened for name, each in known.items() if each.opened is not None},
        )
        if behind != noted:
            self._notes.write(number + 1, behind)

    def _noted(self, number: int) -> Noted:
        noted = self._notes.before(number)
        if noted is None:
            # Written before anything else, so that a replay is known by its writer.
            noted = Noted(uuid4().hex)
            self._notes.write(number, noted)
        return noted

    def _in_one_pass(self, batch: DataFrame, step: Step, noted: Noted) -> Survey | None:
        """Survey a batch while its only table is written; None if that is not enough.

        Most batches have no controls. Files that were written as if there were none are not
        committed where there are.
        """
        types = {*noted.types, *self._schemas}
        if len(types) != 1 or self._history or noted.opened:
            return None
        (type_,) = types
        seen = Observation()
        surveys: list[Survey] = []

        def confirm() -> None:
            surveys.append(_surveyed(seen.get))
            if surveys[0].controls:
                raise Unforeseen

        try:
            self._into_current(batch.observe(seen, *_survey()), type_, step, {}, confirm)
        except Unforeseen:
            return None
        if not surveys:
            return None  # this is a replay, and the table has the batch already
        step.done.add(type_)
        return surveys[0]

    def _in_steps(self, batch: DataFrame, step: Step, noted: Noted, survey: Survey) -> None:
        """Write one table after another."""
        known = courses(noted.opened, survey.controls)
        earlier = {name: each.earlier for name, each in known.items() if each.earlier is not None}
        changes = batch
        if earlier:
            changes = batch.unionByName(self._again(batch.sparkSession, earlier))
        types = survey.types
        if any(each.clears for each in known.values()):
            types |= {*noted.types}
        for type_ in sorted(types - step.done):
            self._into_current(changes, type_, step, known)
            if self._history:
                self._into_history(changes, type_, step, known)
        self._into_quarantine(batch, step, known, survey)

    def _again(self, spark: SparkSession, ranges: Mapping[str, tuple[str, str]]) -> DataFrame:
        """Read snapshots that began in earlier batches, now that they have ended."""
        chosen = {"startingoffsets", "endingoffsets", "stream", "path"}
        options = {name: each for name, each in self._source.items() if name.lower() not in chosen}
        options["stream"] = _json(list(ranges))
        options["startingOffsets"] = _json({name: each[0] for name, each in ranges.items()})
        options["endingOffsets"] = _json({name: each[1] for name, each in ranges.items()})
        read = spark.read.format("headwater").options(**options, mode="state").schema(ROWS)
        # What they hold that is malformed was kept aside when it came.
        return read.load().where(f.col("operation").isNotNull())

    def _into_current(
        self,
        batch: DataFrame,
        type_: str,
        step: Step,
        known: Mapping[str, Course],
        confirm: Callable[[], None] | None = None,
    ) -> None:
        table = self._table(table_folder(type_), type_, batch.sparkSession, step)
        state = CurrentState(known)
        schema = self._schemas.get(type_)
        rows = _of_type(batch, type_)
        counted: Observation | None = None
        step.violating.add(type_)  # until the batch has been read, it may have any
        if schema is None:
            step.violating.discard(type_)
        else:
            counted = Observation()
            rows = fitting(checked(rows, type_, schema).observe(counted, f.count(REASON)))

        def confirm_all() -> None:
            if counted is not None and not any(counted.get.values()):
                step.violating.discard(type_)
            if confirm is not None:
                confirm()

        table.rewrite(
            rows,
            state,
            key=KEY,
            schema=current_schema(schema),
            writer=step.writer,
            batch=step.number,
            every_bucket=any(each.clears for each in known.values()),
            finish=state.finish,
            confirm=confirm_all,
        )

    def _into_history(
        self, batch: DataFrame, type_: str, step: Step, known: Mapping[str, Course]
    ) -> None:
        table = self._table(table_folder(type_) + _HISTORY, type_, batch.sparkSession, step)
        history = History(known)
        schema = self._schemas.get(type_)
        rows = _of_type(batch, type_)
        if schema is not None:
            rows = fitting(checked(rows, type_, schema))
        table.rewrite(
            rows,
            history,
            key=KEY,
            schema=history_schema(schema),
            writer=step.writer,
            batch=step.number,
            every_bucket=any(each.clears for each in known.values()),
            finish=history.finish,
        )

    def _into_quarantine(
        self, batch: DataFrame, step: Step, known: Mapping[str, Course], survey: Survey
    ) -> None:
        table = open_table(f"{self._tables}/{QUARANTINE_TABLE}", self._format, buckets=_FEW)
        forgets = has_resets(known.values()) and table.exists
        found = [malformed(batch)] if survey.malformed else []
        for type_ in sorted(step.violating):
            rows = checked(_of_type(batch, type_), type_, self._schemas[type_])
            found.append(violating(rows, type_))
        if not found and not forgets:
            return
        rows = found[0] if found else malformed(batch)
        for more in found[1:]:
            rows = rows.unionByName(more)
        table.rewrite(
            rows,
            Quarantine(known),
            key=("stream", "offset"),
            schema=QUARANTINE,
            writer=step.writer,
            batch=step.number,
            every_bucket=forgets,
        )

    def _table(self, name: str, type_: str, spark: SparkSession, step: Step) -> Table:
        """Open a table; the first time, see that it is this query's and fits the schema."""
        table = open_table(f"{self._tables}/{name}", self._format)
        if name in self._compared:
            return table
        rows = table.read(spark)
        if rows is not None:
            if table.committed(step.writer) < 0 and not rows.isEmpty():
                raise TableTaken(table.folder)
            _compare(rows.schema, type_, self._schemas.get(type_))
        self._compared.add(name)
        return table


def _survey() -> list[Column]:
    """Give the aggregates that tell what there is in a batch."""
    is_change = f.col("operation").isNotNull()
    control = f.struct("stream", "offset", "control", "timestamp")
    matters = f.col("control").isin(RESET, START, END)
    return [
        f.collect_set(f.when(is_change, f.col("type"))).alias("types"),
        f.collect_set(f.when(matters, control)).alias("controls"),
        f.count(CORRUPT).alias("malformed"),
    ]


def _surveyed(told: Mapping[str, Any]) -> Survey:
    controls = [
        Control(row.stream, row.offset, row.control, moment(row.timestamp))
        for row in told["controls"]
    ]
    return Survey(frozenset(told["types"]), tuple(controls), bool(told["malformed"]))


def _of_type(batch: DataFrame, type_: str) -> DataFrame:
    is_change = f.col("operation").isNotNull()
    return batch.where(is_change & (f.col("type") == type_)).select(*_CHANGE)


def _compare(is_now: StructType, type_: str, schema: StructType | None) -> None:
    """Refuse a schema that the rows of a table can't have."""
    wanted = value_columns(schema)
    for field, column in zip(schema or (), wanted, strict=schema is not None):
        if column.name not in is_now.fieldNames() and not field.nullable:
            raise TableSchemaRefused(column.name, "not there", "a column that is never null")
    if ("value" in is_now.fieldNames()) != (schema is None):
        has, lacks = ("JSON", "columns") if schema is not None else ("columns", "JSON")
        raise TableSchemaRefused("value", f"{has} of the type '{type_}'", lacks)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
