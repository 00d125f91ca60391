"""A table: read as a DataFrame, changed by batches, each of which is in it once.

Executors write Parquet files that nobody knows of; the driver commits those of a whole batch, with
the writer and the number of the batch, in one entry of the log. A batch that is replayed after a
crash is found there and changes nothing; files that no commit names are rubbish.

A keyed table is cut into buckets by its key. A rewrite reads the buckets that a batch touches,
merges, and replaces them: its cost grows with the size of those buckets. See docs/decisions/0035.
"""

import logging
import re
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from headwater.errors import (
    BadOption,
    TableAhead,
    TableChanged,
    TableLost,
    TableSchemaRefused,
)
from headwater.spark.packing import BUCKET
from headwater.spark.tables.delta import DeltaLog
from headwater.spark.tables.files import file_system, folder_uri, is_object_storage
from headwater.spark.tables.log import DataFile, Log, Snapshot
from headwater.spark.tables.manifest import ManifestLog
from headwater.spark.tables.merging import Finish, Merge
from headwater.spark.tables.schemas import nullable, nullable_type
from headwater.spark.tables.tasks import FILE, MARK, merge_buckets, read_listed, write_loose

log: Final = logging.getLogger("headwater.spark")

FORMATS: Final = {"delta": DeltaLog, "parquet": ManifestLog}
BUCKETS: Final = 16
KEEP_SECONDS: Final = 600.0
_ATTEMPTS: Final = 3
_TIDY_COMMITS: Final = 200
_GLOB: Final = re.compile(r"[*?{}\[\]\\]")


class _Upkeep:
    """What a process remembers of a table that it commits to; others find it in the log."""

    def __init__(self) -> None:
        self.commits = 0
        self.left: deque[tuple[float, str]] = deque()
        """When files left it."""


_upkeep: Final[dict[str, _Upkeep]] = {}


def open_table(
    folder: str,
    table_format: str = "delta",
    *,
    buckets: int = BUCKETS,
    keep_seconds: float = KEEP_SECONDS,
) -> "Table":
    """Open the table in a folder, whether or not it is there yet.

    A new table gets so many `buckets`. Files stay for `keep_seconds` after they have left the
    table, for readers that are at them.
    """
    log_type = FORMATS.get(table_format)
    if log_type is None:
        raise BadOption("format", f"{table_format!r} is none of {', '.join(FORMATS)}")
    return Table(folder_uri(folder), log_type(folder), buckets, keep_seconds)


class Table:
    """A folder of Parquet files and their log."""

    def __init__(self, folder: str, table_log: Log, buckets: int, keep_seconds: float) -> None:
        self.folder = folder
        self._log = table_log
        self._new_buckets = buckets
        self._keep_seconds = keep_seconds

    @property
    def exists(self) -> bool:
        return self._log.snapshot() is not None

    def committed(self, writer: str) -> int:
        """Give the last batch of a writer that is in the table; -1 if none is."""
        seen = self._log.snapshot(writer)
        return -1 if seen is None else seen.committed

    def require(self, writer: str, *, batch: int, after: int) -> None:
        """Refuse a batch that comes after another one, which the table does not hold."""
        _require(self._log.snapshot(writer), self.folder, batch, after)

    def read(self, spark: SparkSession) -> DataFrame | None:
        """Read the table as it is now; None where there is none."""
        seen = self._log.snapshot()
        if seen is None:
            return None
        schema = from_arrow_schema(seen.schema)
        paths = [file.path for file in seen.files]
        if not paths:
            return spark.createDataFrame([], schema)
        system, _ = file_system(self.folder)
        if not is_object_storage(system):
            # Spark takes every path for a glob.
            names = (_GLOB.sub(r"\\\g<0>", f"{self.folder}/{path}") for path in paths)
            return spark.read.schema(schema).parquet(*names)
        given = to_arrow_schema(schema, timezone="UTC")
        listed = spark.createDataFrame([(path,) for path in paths], "path string")
        read = partial(read_listed, folder=self.folder, schema=given)
        return listed.repartition(len(paths)).mapInArrow(read, schema)

    def append(self, rows: DataFrame, *, writer: str, batch: int, after: int = -1) -> int:
        """Add rows, and say how many; a batch that is in the table already adds none.

        It is read all the same: a query with state fails where a batch was not.
        `after` is a batch of the writer from before: a table that does not hold it, or a later
        one, is not the one that it was written to, and raises `TableLost`.
        """
        wanted = to_arrow_schema(rows.schema, timezone="UTC")
        seen = self._prepared(wanted, writer, batch, after)
        if self._holds(seen, batch):
            rows.write.format("noop").mode("append").save()
            return 0
        write = partial(write_loose, folder=self.folder, schema=seen.schema)
        added = _collected(rows.mapInArrow(write, FILE))
        self._commit(seen, added, [], writer, batch)
        return sum(file.rows for file in added)

    def rewrite(
        self,
        rows: DataFrame,
        merge: Merge,
        *,
        key: Sequence[str] | None,
        schema: StructType,
        writer: str,
        batch: int,
        after: int = -1,
        follows: int | None = None,
        every_bucket: bool = False,
        finish: Finish | None = None,
    ) -> int:
        """Merge rows into the buckets of their keys, and say how many rows these hold then.

        With `every_bucket` those that get no rows are merged as well. `schema` is the table's; it
        may have more columns than the table has so far. Without a `key` the rows are packed, see
        `headwater.spark.tables.packing`; a table has packed rows always, or never. `after` is as
        for `append`.

        `follows` is for a batch that begins where `committed` said that the table was: if another
        process that goes by the same name has come further since, the batch is done. Without it,
        a table that holds later batches of the writer refuses this one.
        """
        wanted = to_arrow_schema(schema, timezone="UTC")
        for attempt in range(_ATTEMPTS):
            seen = self._prepared(wanted, writer, batch, after)
            if self._holds(seen, batch, follows):
                return 0
            added, touched = self._merged(rows, merge, finish, key, seen, every_bucket=every_bucket)
            removed = [file for file in seen.files if file.bucket in touched]
            try:
                self._commit(seen, added, removed, writer, batch)
            except TableChanged:
                # Whoever optimised the table meanwhile is done: we read again what it made.
                if attempt == _ATTEMPTS - 1:
                    raise
                log.warning("table changed meanwhile folder=%s batch=%d", self.folder, batch)
                continue
            return sum(file.rows for file in added)
        raise AssertionError

    def _merged(
        self,
        rows: DataFrame,
        merge: Merge,
        finish: Finish | None,
        key: Sequence[str] | None,
        seen: Snapshot,
        *,
        every_bucket: bool,
    ) -> tuple[list[DataFile], set[int]]:
        spark = rows.sparkSession
        bucketed = rows.withColumn(MARK, f.lit(False))
        if key is not None:
            bucket = f.pmod(f.xxhash64(*key), f.lit(seen.buckets)).cast("int")
            bucketed = bucketed.withColumn(BUCKET, bucket)
        old: dict[int, list[str]] = {}
        for file in seen.files:
            if file.bucket is not None:
                old.setdefault(file.bucket, []).append(file.path)
        if every_bucket and old:
            marks = spark.createDataFrame([(bucket, True) for bucket in old], [BUCKET, MARK])
            marks = marks.withColumn(BUCKET, f.col(BUCKET).cast("int"))
            bucketed = bucketed.unionByName(marks, allowMissingColumns=True)
        # As many tasks as Spark likes to have, each with whole buckets: no sort, no second shuffle.
        tasks = min(seen.buckets, int(spark.conf.get("spark.sql.shuffle.partitions") or 1))
        merging = partial(
            merge_buckets,
            folder=self.folder,
            schema=seen.schema,
            old=old,
            merge=merge,
            finish=finish,
        )
        placed = bucketed.repartitionById(tasks, f.col(BUCKET) % tasks)
        found = _collected(placed.mapInArrow(merging, FILE))
        touched = {file.bucket for file in found if file.path == "" and file.bucket is not None}
        return [file for file in found if file.path], touched

    def _holds(self, seen: Snapshot, batch: int, follows: int | None = None) -> bool:
        """Tell whether a batch is in the table already; raises `TableAhead` where it can't be.

        A query replays its last batch alone. An earlier number is of an older checkpoint: what it
        stands for there was never written. Only a batch that says what it follows can have been
        overtaken.
        """
        known = seen.committed if follows is None else follows
        if known > batch:
            raise TableAhead(self.folder, known, batch)
        return seen.committed >= batch

    def _prepared(self, wanted: pa.Schema, writer: str, batch: int, after: int) -> Snapshot:
        """Make the table, or add the columns that it lacks, and look at it."""
        wanted = nullable(wanted)
        seen = self._log.snapshot(writer)
        _require(seen, self.folder, batch, after)
        if seen is None:
            self._refuse_another_format()
            self._log.create(wanted, self._new_buckets)
            seen = self._seen(writer)
        for field in wanted:
            at = seen.schema.get_field_index(field.name)
            # A table from before may have parts that are never null.
            if at >= 0 and nullable_type(seen.schema.field(at).type) != field.type:
                raise TableSchemaRefused(
                    field.name, str(seen.schema.field(at).type), str(field.type)
                )
        missing = [field for field in wanted if field.name not in seen.schema.names]
        spelled = {name.lower(): name for name in seen.schema.names}
        for field in missing:  # Spark and Delta would take both for one column
            if field.name.lower() in spelled:
                raise TableSchemaRefused(
                    field.name, f"spelled '{spelled[field.name.lower()]}'", "another column"
                )
        if missing:
            self._log.add_columns(missing)
            seen = self._seen(writer)
        return seen

    def _refuse_another_format(self) -> None:
        """See that no other log knows the folder: each would take the other's files for rubbish."""
        for name, log_type in FORMATS.items():
            if not isinstance(self._log, log_type) and log_type(self.folder).snapshot() is not None:
                what = f"{self.folder} holds a table of the format {name}: choose another folder"
                raise BadOption("format", what)

    def _seen(self, writer: str) -> Snapshot:
        seen = self._log.snapshot(writer)
        if seen is None:
            raise TableChanged(self.folder)
        return seen

    def _commit(
        self,
        seen: Snapshot,
        added: Sequence[DataFile],
        removed: Sequence[DataFile],
        writer: str,
        batch: int,
    ) -> None:
        self._log.commit(seen, added, removed, writer=writer, batch=batch)
        upkeep = _upkeep.setdefault(self.folder, _Upkeep())
        gone = [file.path for file in removed]
        # The first time too, for processes before that have ended; a new table had none.
        if upkeep.commits % _TIDY_COMMITS == 0 and seen.version > 0:
            gone += self._log.tidy(self._keep_seconds)
        self._forget(gone, upkeep.left)
        upkeep.commits += 1

    def _forget(self, gone: Sequence[str], left: deque[tuple[float, str]]) -> None:
        """Delete files some time after they left the table: readers may be at them still."""
        now = time.monotonic()
        left.extend((now, path) for path in gone)
        system, root = file_system(self.folder)
        while left and left[0][0] < now - self._keep_seconds:
            try:
                system.delete_file(f"{root}/{left.popleft()[1]}")
            except FileNotFoundError:
                continue  # someone else has tidied up


def _require(seen: Snapshot | None, folder: str, batch: int, after: int) -> None:
    if (-1 if seen is None else seen.committed) < after:
        raise TableLost(folder, batch)


def _collected(files: DataFrame) -> list[DataFile]:
    return [DataFile(row.path, row.size, row.rows, row.bucket) for row in files.collect()]
