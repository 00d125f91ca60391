"""What must not become state: values that don't fit their schema, and malformed messages.

Both are kept aside, with their reason, as `headwater.state` does with the policy `quarantine`: the
entity stays as it was, and other types go on.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from headwater.spark.messages import Shape, shape_of_values
from headwater.spark.tables import Merged
from headwater.spark.tables.files import fitted
from headwater.spark.transforms.controls import Course
from headwater.spark.transforms.marks import Marks
from headwater.spark.transforms.state import value_columns
from headwater.state.decoding import WireEvent

QUARANTINE: Final = StructType(
    [
        StructField(name, StringType())
        for name in ("stream", "offset", "type", "key", "reason", "message")
    ]
)
"""The columns of the table of what was kept aside."""

_ERRORS: Final = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


class Read(NamedTuple):
    """Values that were read by a schema."""

    columns: dict[str, pa.Array]
    """Null where a value does not fit, or there is none."""
    reasons: Mapping[int, str]
    """Why values don't fit, by their place."""


class Values:
    """Reads the values of one type by its schema."""

    def __init__(self, schema: StructType) -> None:
        self._shape: Shape = shape_of_values(schema)
        columns = value_columns(schema)
        self._names = columns.fieldNames()
        kinds = to_arrow_schema(columns, timezone="UTC").types
        self._fields = pa.schema(list(zip(schema.fieldNames(), kinds, strict=True)))

    def read(self, events: Sequence[WireEvent]) -> Read:
        """Take values apart into columns; a deletion has none."""
        operations = [event.headers.operation for event in events]
        if "delete" not in operations:
            parsed, reasons = self._parsed([event.value for event in events])
        else:
            places = [at for at, each in enumerate(operations) if each != "delete"]
            some, told = self._parsed([events[at].value for at in places])
            reasons = {places[at]: reason for at, reason in told.items()}
            parsed = [None] * len(events)
            for at, value in zip(places, some, strict=True):
                parsed[at] = value
        fields = self._shape.columns(parsed, self._fields)
        names = zip(self._names, self._fields.names, strict=True)
        return Read({name: fields[field] for name, field in names}, reasons)

    def _parsed(self, texts: Sequence[Any]) -> tuple[list[Any], dict[int, str]]:
        """Read values: all at once, and one by one where one does not fit."""
        reasons: dict[int, str] = {}
        parsed: list[Any]
        try:
            parsed = self._shape.parse_all(b"[" + b",".join(texts) + b"]")
        except _ERRORS:
            parsed = []
            for at, text in enumerate(texts):
                try:
                    parsed.append(self._shape.parse_one(bytes(text)))
                except _ERRORS as error:
                    reasons[at] = str(error)
                    parsed.append(None)
        reasons |= self._shape.complaints(parsed, self._fields)
        for at in reasons:
            parsed[at] = None
        return parsed, reasons


def message_of(event: WireEvent) -> str:
    """Write an event again, as far as it was read."""
    headers = event.headers
    told = {"operation": headers.operation, "txid": headers.txid, "timestamp": headers.timestamp}
    shown = {
        "type": event.type,
        "key": event.key,
        "value": event.value,
        "headers": {name: text for name, text in told.items() if text is not UNSET},
    }
    return msgspec.json.encode(shown).decode()


class Quarantine:
    """Adds what is kept aside, and forgets what was before a reset."""

    def __init__(self, known: Mapping[str, Course]) -> None:
        self._resets = Marks(
            [(stream, each.reset) for stream, each in known.items() if each.reset is not None]
        )

    @property
    def forgets(self) -> bool:
        """Whether anything that was kept aside is to be forgotten."""
        return len(self._resets) > 0

    def __call__(self, old: pa.Table, new: pa.Table) -> Merged:
        """Take new rows."""
        rows = pa.concat_tables([old, fitted(new, old.schema)])
        if self.forgets:
            rows = rows.filter(pc.is_null(self._resets.behind(rows, "offset")))
        return Merged(rows)
