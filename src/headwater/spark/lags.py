"""How far the tables of runs were behind, from what a query observes of its batches. Pure rules."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

OBSERVED: Final = "headwater_project"
"""The name under which a query's progress has the figures of its batches."""


class Lag(Struct, frozen=True):
    """How far the tables were behind, of a batch that has brought events."""

    events: int
    seconds: float
    """From when the oldest event of the batch was persisted to the end of the batch."""
    emitted_seconds: float
    """The same, from when the oldest was emitted."""


def batch_lag(figures: Mapping[str, Any], began: str, milliseconds: float) -> Lag | None:
    """Make the lag of a batch's figures, its begin and how long it took; None if nothing came."""
    # With Spark Connect, what is null is left out.
    persisted, emitted = figures.get("oldest_persisted"), figures.get("oldest_emitted")
    if persisted is None or emitted is None:
        return None
    ended = datetime.fromisoformat(began).timestamp() + milliseconds / 1000
    return Lag(
        figures["events"], max(0.0, ended - persisted / 1e6), max(0.0, ended - emitted / 1e6)
    )
