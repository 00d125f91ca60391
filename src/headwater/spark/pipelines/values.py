"""A pipeline as values: where rows come from, what is done to them, where they go, and when.

Names are those of the file that describes it. Everything is checked when a file is read; what
contradicts each other is told by `headwater.spark.pipelines.rules`.
"""

import json
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

TableFormat: TypeAlias = Literal["delta", "parquet"]
Scalar: TypeAlias = str | bool | int | float

AVAILABLE_NOW: Final = "available-now"
DEFAULT: Final = "default"

SOURCE_VIEW: Final = "source"
"""The view of the source's rows; each transform adds one of its own name."""


class Server(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server, and what goes with every request to it."""

    url: str = ""
    token: str | None = None
    headers: dict[str, str] = {}

    def request_options(self) -> dict[str, str]:
        """Give what Spark's format is told about the server."""
        told = {"url": self.url}
        if self.token is not None:
            told["token"] = self.token
        if self.headers:
            told["headers"] = json.dumps(self.headers)
        return told


class Source(Server, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Streams of a server, or a table."""

    stream: str | tuple[str, ...] = ()
    """Paths and globs."""
    mode: Literal["raw", "state", "runs", "json"] | None = None
    schema: str | None = None
    """Columns as Spark's DDL writes them: the fields of JSON messages."""
    options: dict[str, Scalar] = {}
    """Any other option of the format."""
    table: str | None = None
    """A folder with a table, instead of streams."""
    format: TableFormat = "delta"

    @property
    def names(self) -> tuple[str, ...]:
        """Give the streams as they are written."""
        return tuple(self.stream.split(",")) if isinstance(self.stream, str) else self.stream

    @property
    def streams(self) -> tuple[str, ...]:
        paths = (name.strip().strip("/") for name in self.names)
        return tuple(path for path in paths if path)

    def format_options(self) -> dict[str, str]:
        """Give the options as `spark.readStream.format("headwater")` takes them."""
        told = self.request_options()
        if self.streams:
            first = self.streams[0]
            plain = len(self.streams) == 1 and "," not in first and not first.startswith("[")
            told["stream"] = first if plain else json.dumps(self.streams)
        if self.mode is not None:
            told["mode"] = self.mode
        return told | {name: as_text(value) for name, value in self.options.items()}


class Transform(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step: SQL over the views before it, or a Python function of the rows before it."""

    sql: str | None = None
    python: str | None = None
    """`module:function` or `file.py:function`, from a DataFrame to a DataFrame."""
    name: str = ""
    """The view of its rows; step1, step2 and so on where it is left out."""


class _Target(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """Where rows go; the field `kind` of a file says which of those below."""


class StreamTarget(Server, _Target, frozen=True, kw_only=True, tag="stream"):
    """Rows are appended to streams, exactly once."""

    stream: str | None = None
    """Where rows go that name no stream in a column `stream`."""
    output: Literal["append", "update"] = "append"
    """`update`: of an aggregation, the rows that a batch has changed."""
    options: dict[str, Scalar] = {}

    @property
    def place(self) -> str:
        return self.stream or "the streams that rows name"

    def format_options(self) -> dict[str, str]:
        """Give the options as `df.writeStream.format("headwater")` takes them."""
        told = self.request_options()
        if self.stream is not None:
            told["stream"] = self.stream
        return told | {name: as_text(value) for name, value in self.options.items()}


class TableTarget(_Target, frozen=True, kw_only=True, tag="table"):
    """Rows are added to a table, exactly once."""

    folder: str
    format: TableFormat = "delta"

    @property
    def place(self) -> str:
        return self.folder


class SparkTarget(_Target, frozen=True, kw_only=True, tag="spark"):
    """Rows go to a sink of the session: its own Delta or Iceberg, files, or what else it has."""

    format: str
    folder: str | None = None
    table: str | None = None
    """A table of the session's catalog, instead of a folder."""
    output: Literal["append", "update", "complete"] = "append"
    partition_by: tuple[str, ...] = ()
    options: dict[str, Scalar] = {}

    @property
    def place(self) -> str:
        return self.table or self.folder or self.format


class Materialize(_Target, frozen=True, kw_only=True, tag="materialize"):
    """State streams become tables: one per type, with history."""

    tables: str
    schemas: dict[str, str] = {}
    """Columns of a type's values, as Spark's DDL writes them."""
    history: bool = True
    format: TableFormat = "delta"

    @property
    def place(self) -> str:
        return self.tables


class Project(_Target, frozen=True, kw_only=True, tag="project"):
    """Events of runs become tables of runs and of steps."""

    tables: str
    publish: str | None = None
    """A state stream that gets the snapshots as well."""
    grace_seconds: float | None = None
    """How long an event that is missing is waited for; for good where it is left out."""
    format: TableFormat = "delta"

    @property
    def place(self) -> str:
        return self.tables


class Archive(_Target, frozen=True, kw_only=True, tag="archive"):
    """Streams are kept as Parquet files, with their offsets."""

    folder: str

    @property
    def place(self) -> str:
        return self.folder


class Restore(Server, _Target, frozen=True, kw_only=True, tag="restore"):
    """An archive becomes streams again; it needs no source."""

    folder: str
    stream: str | dict[str, str] | None = None
    """A path or a glob of the archive, or from its paths to new ones; all where it is left out."""
    until: dict[str, str] = {}
    """By archived path, the offset behind which nothing is restored."""
    incarnation: int = -1
    """Which one of a stream that was created again, counted from 0; the last where left out."""
    close: bool = True
    """Whether streams that were closed are closed again."""
    verify: bool = True
    """Whether everything is read back and compared."""
    missing_start: bool = False
    """Whether an archive may begin in the middle of a stream."""

    @property
    def place(self) -> str:
        return self.folder


class Snapshot(_Target, frozen=True, kw_only=True, tag="snapshot"):
    """A long state stream becomes a short one with the same state, at the same server."""

    stream: str

    @property
    def place(self) -> str:
        return self.stream


class Publish(Server, _Target, frozen=True, kw_only=True, tag="publish"):
    """A table becomes a stream of changes: what differs from what was published before."""

    stream: str
    type: str
    key: str | tuple[str, ...]
    """The column, or columns, that name an entity."""
    columns: tuple[str, ...] = ()
    """Those that become the fields of the value; all where it is left out."""
    value: str | None = None
    """Instead, a column that holds the whole value as JSON."""
    deletes: bool = True
    """Whether entities that have no row any more are deleted."""

    @property
    def place(self) -> str:
        return self.stream


Target: TypeAlias = (
    StreamTarget
    | TableTarget
    | SparkTarget
    | Materialize
    | Project
    | Archive
    | Restore
    | Snapshot
    | Publish
)

TARGETS: Final[Mapping[str, type[Struct]]] = {
    str(kind.__struct_config__.tag): kind
    for kind in (
        *(StreamTarget, TableTarget, SparkTarget, Materialize, Project),
        *(Archive, Restore, Snapshot, Publish),
    )
}
JOBS: Final = (Materialize, Project, Archive, Snapshot)
"""Those that read their streams themselves."""
BOUNDED: Final = (Restore, Snapshot, Publish)
"""Those that do what there is to do, and end."""


class Pipeline(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that is needed to run; paths are absolute, secrets are filled in."""

    name: str
    target: Target
    source: Source = Source()
    transform: tuple[Transform, ...] = ()
    trigger: str = DEFAULT
    """`default`, `available-now`, or `every 10 seconds`."""
    checkpoint: str = ""
    spark: dict[str, str] = {}
    """Settings of the Spark session."""
    master: str | None = None
    remote: str | None = None
    metrics_file: str | None = None
    metrics_stream: str | None = None

    @property
    def kind(self) -> str:
        """Name the target's kind."""
        return str(self.target.__struct_config__.tag)

    def placed(self, master: str | None, remote: str | None) -> "Pipeline":
        """Have flags say where its session is: they win over both fields of a file."""
        if master is None and remote is None:
            return self
        return replace(self, master=master, remote=remote)

    @property
    def has_checkpoint(self) -> bool:
        """Tell whether it remembers how far it is; the others find that in their streams."""
        return not isinstance(self.target, Restore | Snapshot)

    @property
    def is_bounded(self) -> bool:
        """Tell whether it ends by itself."""
        return isinstance(self.target, BOUNDED) or self.trigger == AVAILABLE_NOW


def as_text(value: Scalar) -> str:
    """Write a value as Spark reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
