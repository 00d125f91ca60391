"""Which columns a table can't hold, told before a query has read anything for it."""

from collections.abc import Iterator
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    DayTimeIntervalType,
    MapType,
    StructType,
    TimeType,
    YearMonthIntervalType,
)

from headwater.spark.packing import BUCKET
from headwater.spark.pipelines.problems import Problem
from headwater.spark.pipelines.values import TableTarget

_UNKNOWN: Final = {
    "delta": (CalendarIntervalType, DayTimeIntervalType, TimeType, YearMonthIntervalType),
    "parquet": (CalendarIntervalType, TimeType, YearMonthIntervalType),
}
"""By the format of tables, the types that it does not have."""


def unfit_columns(target: TableTarget, schema: StructType) -> Iterator[Problem]:
    """Tell what is wrong with the columns that a table would get."""
    for field in schema:
        if "." in field.name:
            what = f"the column '{field.name}' has a dot in its name: rename it with AS"
            yield Problem("target", what)
        if target.format == "delta" and field.name.lower() == BUCKET:
            what = f"tables keep a column '{BUCKET}' for themselves: rename it with AS"
            yield Problem("target", what)
        unknown = (
            kind.simpleString()
            for kind in _parts(field.dataType)
            if isinstance(kind, _UNKNOWN[target.format])
        )
        for name in {*unknown}:
            what = (
                f"tables of the format {target.format} have no {name} as in the column "
                f"'{field.name}': cast it to a string, or give its seconds or months as a number"
            )
            yield Problem("target", what)
    for kind in _parts(schema):
        if isinstance(kind, StructType):
            yield from _same(kind)


def _same(schema: StructType) -> Iterator[Problem]:
    """Tell of names that differ in case alone, which Spark and Delta take for one."""
    seen: dict[str, str] = {}
    for name in schema.fieldNames():
        if name.lower() in seen:
            before = seen[name.lower()]
            what = f"'{before}' and '{name}' would be one column: rename one of them with AS"
            yield Problem("target", what)
        seen.setdefault(name.lower(), name)


def _parts(kind: DataType) -> Iterator[DataType]:
    """Give a type, and all within it."""
    yield kind
    if isinstance(kind, StructType):
        for field in kind:
            yield from _parts(field.dataType)
    elif isinstance(kind, ArrayType):
        yield from _parts(kind.elementType)
    elif isinstance(kind, MapType):
        yield from _parts(kind.keyType)
        yield from _parts(kind.valueType)
