"""Messages of state streams into changes: read, checked and parted by type and bucket, in one pass.

The rules are those of `headwater.state`, by its own decoder. Changes go on packed (see
`headwater.spark.packing`), straight from the source: Spark never has a row for each. Controls, of
which there are few, go beside them as they are.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, Raw, Struct, UnsetType
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headwater.spark.arrays import ABSENT, array_of
from headwater.spark.columns import no_collection
from headwater.spark.gathering import gathered
from headwater.spark.packing import BUCKET, PACKED, PACKED_CHANGES
from headwater.spark.tables.packing import packed
from headwater.spark.transforms.controls import END, RESET, START, Control
from headwater.spark.transforms.times import moment, times
from headwater.spark.transforms.violations import Values, message_of
from headwater.state.decoding import WireEvent, decode_pieces

CHANGES: Final = "changes"
ASIDE: Final = "aside"
CONTROLS: Final = "controls"

_MANY: Final = 100_000
_LARGE: Final = 32 << 20
_FEW: Final = 5_000
"""Messages that are taken apart at a time: the objects of so many stay in the cache of a core."""
_SCHEMA: Final = to_arrow_schema(PACKED_CHANGES)
_MATTERS: Final = frozenset({RESET, START, END})


class _Control(Struct):
    headers: Raw


class _ControlHeaders(Struct):
    timestamp: Raw = ABSENT


_CONTROL: Final = msgspec.json.Decoder(_Control)
_HEADERS: Final = msgspec.json.Decoder(_ControlHeaders)


class Packing(Struct, frozen=True):
    """How changes are packed: what the job tells the source."""

    buckets: int
    schemas: dict[str, str] = {}
    """Of types, as Spark writes a schema in JSON."""

    @staticmethod
    def of(buckets: int, schemas: Mapping[str, StructType]) -> "Packing":
        """Say how, in a form that goes with the options of a source."""
        return Packing(buckets, {type_: schema.json() for type_, schema in schemas.items()})

    @staticmethod
    def parse(text: str) -> "Packing":
        """Read what `text` wrote."""
        return msgspec.json.decode(text, type=Packing)

    @property
    def text(self) -> str:
        return msgspec.json.encode(self).decode()

    def values(self) -> dict[str, Values]:
        """Give what reads the values of each type."""
        return {
            type_: Values(StructType.fromJson(json.loads(schema)))
            for type_, schema in self.schemas.items()
        }


def packed_changes(batches: Iterable[pa.RecordBatch], packing: Packing) -> Iterator[pa.RecordBatch]:
    """Read rows of `TO_PACK`: changes, controls, and what is kept aside."""
    values = packing.values()
    for rows in gathered(batches, most_bytes=_LARGE, most_rows=_MANY):
        with no_collection():
            read = read_messages(rows, values)
        counts = {"messages": rows.num_rows, "aside": len(read.aside)}
        found: list[dict[str, Any]] = [{"kind": CONTROLS, "controls": read.controls, **counts}]
        for type_, changes in read.changes.items():
            for bucket, data in packed(changes, "key", packing.buckets):
                found.append({"kind": CHANGES, "type": type_, BUCKET: bucket, PACKED: data})
        if read.aside:
            aside = pa.Table.from_pylist(read.aside)
            for bucket, data in packed(aside, "offset", packing.buckets):
                found.append({"kind": ASIDE, BUCKET: bucket, PACKED: data})
        yield pa.RecordBatch.from_pylist(found, _SCHEMA)


class Messages(Struct):
    """What messages say."""

    changes: dict[str, pa.Table] = {}
    """By type."""
    aside: list[dict[str, str]] = []
    controls: list[dict[str, str | None]] = []


def read_messages(rows: pa.Table, values: Mapping[str, Values]) -> Messages:
    """Read messages by the rules of state streams, and values by the schemas of their types."""
    read = Messages()
    tables: dict[str, list[pa.Table]] = {}
    for start in range(0, rows.num_rows, _FEW):
        some = _read_some(rows.slice(start, _FEW), values)
        read.aside += some.aside
        read.controls += some.controls
        for type_, changes in some.changes.items():
            tables.setdefault(type_, []).append(changes)
    read.changes = {type_: pa.concat_tables(parts) for type_, parts in tables.items()}
    return read


def _read_some(rows: pa.Table, values: Mapping[str, Values]) -> Messages:
    read = Messages()
    no_messages = rows.column("content_type").is_valid()
    if pc.any(no_messages).as_py():
        # Anybody who may create a stream could stop the query otherwise.
        read.aside += _of_no_messages(rows.filter(no_messages))
        rows = rows.filter(pc.invert(no_messages))
    texts = rows.column("value").to_pylist()
    events: list[WireEvent] = []
    broken: dict[int, str] = {}
    for part in decode_pieces(b"[" + b",\n".join(texts) + b"]"):
        broken |= {len(events) + at: str(told[0]) for at, told in part.violations.items()}
        events += part.events
    by_type: dict[str, list[int]] = {}
    types = set([event.type for event in events])  # noqa: C403 - faster than a set that grows
    only_changes = UNSET not in [event.headers.operation for event in events]
    if len(types) == 1 and only_changes:
        by_type[types.pop()] = list(range(len(events)))
    else:
        for at, event in enumerate(events):
            if event.headers.operation is not UNSET:
                by_type.setdefault(event.type, []).append(at)
            elif event.headers.control in _MATTERS:
                told = _control(texts[at], event)
                read.controls.append({**_place(rows, at), **told})
    for at, reason in broken.items():
        nothing = {"type": "", "key": "", "reason": reason, "message": texts[at].decode()}
        read.aside.append({**_place(rows, at), **nothing})
    for type_, places in by_type.items():
        whole = len(places) == len(events)
        mine = rows if whole else rows.take(pa.array(places, pa.int64()))
        theirs = events if whole else [events[at] for at in places]
        read.changes[type_] = _changes(mine, theirs, values.get(type_), read.aside)
    return read


def _changes(
    rows: pa.Table,
    events: Sequence[WireEvent],
    values: Values | None,
    aside: list[dict[str, str]],
) -> pa.Table:
    """Make the columns of changes of one type; those that don't fit go aside."""
    headers = [event.headers for event in events]
    stamps = _texts([each.timestamp for each in headers])
    columns = {
        "stream": rows.column("stream"),
        "key": array_of([event.key for event in events], pa.string()),
        "offset": rows.column("offset"),
        "operation": array_of([each.operation for each in headers], pa.string()),
        "timestamp": times(pa.chunked_array([stamps])),
        "txid": _texts([each.txid for each in headers]),
    }
    if values is None:
        texts = [
            None if event.headers.operation == "delete" else bytes(event.value)  # type: ignore[arg-type] # the rules saw to it
            for event in events
        ]
        columns["value"] = pa.array(texts, pa.binary()).view(pa.string())
        return pa.table(columns)
    read = values.read(events)
    table = pa.table(columns | read.columns)
    if not read.reasons:
        return table
    for at, reason in read.reasons.items():
        event = events[at]
        told = {"key": event.key, "reason": reason, "message": message_of(event)}
        aside.append({**_place(rows, at), "type": event.type, **told})
    return table.filter(pa.array([at not in read.reasons for at in range(len(events))]))


def _texts(values: list[str | UnsetType]) -> pa.StringArray:
    """Make an array of texts, null where there is none."""
    missing = values.count(UNSET)
    if missing == len(values):
        return pa.nulls(len(values), pa.string())
    return array_of(
        [None if each is UNSET else each for each in values] if missing else values, pa.string()
    )


def _of_no_messages(rows: pa.Table) -> list[dict[str, str]]:
    """Say where streams hold something else, but not what: it may be long, and no text."""
    nothing = {"type": "", "key": "", "message": ""}
    kinds = rows.column("content_type").to_pylist()
    return [
        {**_place(rows, at), **nothing, "reason": f"the stream holds {kind} and no messages"}
        for at, kind in enumerate(kinds)
    ]


def _place(rows: pa.Table, at: int) -> dict[str, str]:
    return {name: rows.column(name)[at].as_py() for name in ("stream", "offset")}


def _control(text: bytes, event: WireEvent) -> dict[str, str | None]:
    # A control's timestamp has no rule: it may be anything, and the decoder need not have kept it.
    stamp = _HEADERS.decode(_CONTROL.decode(text).headers).timestamp
    is_text = bytes(stamp).startswith(b'"')
    time = msgspec.json.decode(stamp, type=str) if is_text else None
    return {"kind": str(event.headers.control), "time": time}


def controls_in(told: Iterable[Any]) -> tuple[Control, ...]:
    """Read controls as packed changes have them beside them."""
    return tuple(
        Control(row["stream"], row["offset"], row["kind"], moment(row["time"])) for row in told
    )
