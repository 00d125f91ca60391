"""What must not become state: values that don't fit their schema, and malformed messages.

Both are kept aside, with their reason, as `headwater.state` does with the policy `quarantine`: the
entity stays as it was, and other types go on.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from headwater.spark.messages import CORRUPT, Shape, shape_of_values
from headwater.spark.tables import Merged
from headwater.spark.transforms.controls import Course
from headwater.spark.transforms.state import fitted, value_columns
from headwater.state.checking import Violation, check

QUARANTINE: Final = StructType(
    [
        StructField(name, StringType())
        for name in ("stream", "offset", "type", "key", "reason", "message")
    ]
)
"""The columns of the table of what was kept aside."""

REASON: Final = "_reason"
MESSAGE: Final = "_message"
_CARRIED: Final = ("stream", "key", "offset", "operation", "timestamp", "txid")
_ERRORS: Final = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


# Values


def checked(rows: DataFrame, type_: str, schema: StructType) -> DataFrame:
    """Take apart the values of a type: their columns, or why they don't fit in `_reason`."""
    wanted = [StructField(name, StringType()) for name in (*_CARRIED, REASON, MESSAGE)]
    result = StructType([*wanted, *value_columns(schema)])
    function = partial(_checked, type_=type_, schema=schema)
    return rows.select(*_CARRIED, "value").mapInArrow(function, result)


def fitting(rows: DataFrame) -> DataFrame:
    """Give the changes whose values fit."""
    return rows.where(f.col(REASON).isNull()).drop(REASON, MESSAGE)


def violating(rows: DataFrame, type_: str) -> DataFrame:
    """Give what is to be kept aside of the values that were checked."""
    return rows.where(f.col(REASON).isNotNull()).select(
        "stream",
        "offset",
        f.lit(type_).alias("type"),
        "key",
        f.col(REASON).alias("reason"),
        f.col(MESSAGE).alias("message"),
    )


def _checked(
    batches: Iterator[pa.RecordBatch], *, type_: str, schema: StructType
) -> Iterator[pa.RecordBatch]:
    check_values = Values(type_, schema)
    for batch in batches:
        yield check_values(batch)


class Values:
    """Reads the values of one type by its schema."""

    def __init__(self, type_: str, schema: StructType) -> None:
        self._type = type_
        self._shape: Shape = shape_of_values(schema)
        self._fields = to_arrow_schema(schema, timezone="UTC")
        self._names = value_columns(schema).fieldNames()

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Replace the column `value` by its fields; a deletion has none."""
        sets = pc.not_equal(batch.column("operation"), "delete").to_pylist()
        values = batch.column("value").cast(pa.binary())
        texts = values.filter(pa.array(sets)).to_pylist() if not all(sets) else values.to_pylist()
        parsed, reasons = self._parsed(texts)
        if len(texts) < len(sets):
            places = [place for place, is_set in enumerate(sets) if is_set]
            reasons = {places[at]: reason for at, reason in reasons.items()}
            told = iter(parsed)
            parsed = [next(told) if is_set else None for is_set in sets]
        columns = {name: batch.column(name) for name in _CARRIED}
        columns[REASON] = _sparse(len(sets), reasons)
        columns[MESSAGE] = _sparse(
            len(sets), {at: self._message(batch.slice(at, 1)) for at in reasons}
        )
        fields = self._shape.columns(parsed, self._fields)
        for name, field in zip(self._names, self._fields, strict=True):
            columns[name] = fields[field.name]
        return pa.RecordBatch.from_pydict(columns)

    def _parsed(self, texts: list[bytes]) -> tuple[list[Any], dict[int, str]]:
        """Read values: all at once, and one by one where one does not fit."""
        reasons: dict[int, str] = {}
        parsed: list[Any]
        try:
            parsed = self._shape.parse_all(b"[" + b",".join(texts) + b"]")
        except _ERRORS:
            parsed = []
            for at, text in enumerate(texts):
                try:
                    parsed.append(self._shape.parse_one(text))
                except _ERRORS as error:
                    reasons[at] = str(error)
                    parsed.append(None)
        reasons |= self._shape.complaints(parsed, self._fields)
        for at in reasons:
            parsed[at] = None
        return parsed, reasons

    def _message(self, row: pa.RecordBatch) -> str:
        told = row.to_pylist()[0]
        names = ("operation", "txid", "timestamp")
        shown = {
            "type": self._type,
            "key": told["key"],
            "value": msgspec.Raw(told["value"].encode()),
            "headers": {name: told[name] for name in names if told[name] is not None},
        }
        return msgspec.json.encode(shown).decode()


def _sparse(count: int, texts: Mapping[int, str]) -> pa.Array:
    if not texts:
        return pa.nulls(count, pa.string())
    return pa.array([texts.get(at) for at in range(count)], pa.string())


# Messages


def malformed(rows: DataFrame) -> DataFrame:
    """Give what is to be kept aside of messages that are no events."""
    corrupt = rows.where(f.col(CORRUPT).isNotNull()).select("stream", "offset", CORRUPT)
    return corrupt.mapInArrow(_malformed, QUARANTINE)


def _malformed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        texts = batch.column(CORRUPT)
        empty = pa.array([""] * len(texts), pa.string())
        columns = {
            "stream": batch.column("stream"),
            "offset": batch.column("offset"),
            "type": empty,
            "key": empty,
            "reason": pa.array([_reason(text) for text in texts.to_pylist()], pa.string()),
            "message": texts,
        }
        yield pa.RecordBatch.from_pydict(columns)


def _reason(text: str) -> str:
    outcome = check(text.encode())
    return str(outcome) if isinstance(outcome, Violation) else "it could not be read"


# The table


class Quarantine:
    """Adds what is kept aside, and forgets what was before a reset."""

    def __init__(self, known: Mapping[str, Course]) -> None:
        self._resets = {
            stream: each.reset for stream, each in known.items() if each.reset is not None
        }

    def __call__(self, old: pa.Table, new: pa.Table) -> Merged:
        """Take new rows."""
        return Merged(pa.concat_tables([self._kept(old), fitted(self._kept(new), old.schema)]))

    def _kept(self, rows: pa.Table) -> pa.Table:
        for stream, reset in self._resets.items():
            here = pc.equal(rows.column("stream"), stream)
            rows = rows.filter(pc.invert(pc.and_(here, pc.less(rows.column("offset"), reset))))
        return rows


def has_resets(known: Iterable[Course]) -> bool:
    """Tell whether anything that was kept aside is forgotten."""
    return any(each.reset is not None for each in known)
