"""Raw messages of a state stream as rows: its controls, and its changes.

They are read by the state's own decoder, so that a job takes for the state what every reader does:
what breaks a rule is passed over. The rows given are of mode `raw`, with values as bytes.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET

from headwater.state.decoding import WireEvent, decode_batch

CONTROLS: Final = "offset string, control string"
CHANGES: Final = "offset string, type string, key string, value binary"


def controls_of(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give the controls among raw messages, and where they are."""
    for batch in rows:
        values = batch.column("value")
        # A quick look first; a name may be written with escapes.
        named = pc.or_(pc.match_substring(values, '"control"'), pc.match_substring(values, "\\u"))
        some = batch.filter(named)
        found = [
            (offset, event.headers.control)
            for offset, event in zip(
                some.column("offset").to_pylist(), _events(some.column("value")), strict=True
            )
            if event.headers.control is not UNSET
        ]
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([offset for offset, _ in found], pa.string()),
                pa.array([control for _, control in found], pa.string()),
            ],
            ["offset", "control"],
        )


def changes_of(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give the changes among raw messages; the value of one that deletes is null."""
    for batch in rows:
        events = _events(batch.column("value"))
        kept = [at for at, event in enumerate(events) if event.headers.operation is not UNSET]
        chosen = [events[at] for at in kept]
        yield pa.RecordBatch.from_arrays(
            [
                batch.column("offset").take(pa.array(kept, pa.int64())),
                pa.array([event.type for event in chosen], pa.string()),
                pa.array([event.key for event in chosen], pa.string()),
                pa.array(
                    [
                        None if event.headers.operation == "delete" else bytes(event.value)  # type: ignore[arg-type] # the rules saw to it
                        for event in chosen
                    ],
                    pa.binary(),
                ),
            ],
            ["offset", "type", "key", "value"],
        )


def _events(values: pa.Array) -> list[WireEvent]:
    """Read messages by the state's own rules; what breaks one has neither operation nor control."""
    return decode_batch(b"[" + b",\n".join(values.to_pylist()) + b"]").events
