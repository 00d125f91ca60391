"""How far a pipeline is, from what Spark tells of its batches. Pure rules over values."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from headwater.client import START
from headwater.spark import lags
from headwater.spark.packing import OBSERVED
from headwater.spark.ranges import byte_of

_UNITS: Final = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB"))
_TIMES: Final = ((86400, "days"), (3600, "h"), (60, "min"))
_BAR: Final = 24


class Figures(Struct, frozen=True):
    """What a pipeline has done since it was started."""

    batches: int = 0
    rows: int = 0
    bytes: int = 0
    lag_bytes: int = 0
    """What is in the streams behind the last batch."""
    aside: int = 0
    """Messages that were kept aside."""
    streams: int = 0
    batch: int | None = None
    """The number of the last batch, which goes on counting from run to run."""
    batch_rows: int = 0
    batch_seconds: float = 0.0
    batch_lag_seconds: float | None = None
    """How far tables of runs were behind the oldest event of the last batch that had any."""
    phases: Mapping[str, float] = {}
    """Seconds of the last batch, by what Spark did."""
    told_at: str = ""
    """When the last batch began, as Spark writes it."""
    ends: Mapping[str, str] = {}
    """Where each stream goes on."""
    tails: Mapping[str, str] = {}
    """Where each stream ends, as far as that was asked for."""


def after(before: Figures, told: Mapping[str, Any]) -> Figures:
    """Add one progress of Spark's; `before.ends` is where streams stood."""
    ran = "addBatch" in told.get("durationMs", {})
    done = 0
    ends: dict[str, str] = {}
    tails: dict[str, str] = {}
    for source in told.get("sources", ()):
        end = offsets_of(source.get("endOffset"))
        done += distance(offsets_of(source.get("startOffset")) or before.ends, end)
        ends |= end
        tails |= end | offsets_of(source.get("latestOffset"))
    ends = ends or dict(before.ends)  # streams that are gone from the offsets are forgotten
    if ran:
        # A batch tells where streams ended when it was planned, or even before.
        tails = {path: max(tail, before.tails.get(path, tail)) for path, tail in tails.items()}
    durations = told.get("durationMs", {})
    observed = told.get("observedMetrics") or {}
    packed, projected = observed.get(OBSERVED) or {}, observed.get(lags.OBSERVED) or {}
    rows = int(packed.get("rows") or told.get("numInputRows") or 0)
    batch = int(told["batchId"])
    figures = replace(
        before,
        rows=before.rows + rows,
        aside=before.aside + int((packed or projected).get("aside") or 0),
        bytes=before.bytes + (done if ran else 0),
        lag_bytes=distance(ends, tails),
        streams=len(tails),
        told_at=str(told.get("timestamp", "")),
        ends=ends,
        tails=tails,
    )
    if not ran:  # nothing was there to do: Spark tells that it lives
        return figures
    spent = durations.get("triggerExecution", 0)
    lag = lags.batch_lag(projected, figures.told_at, spent)
    return replace(
        figures,
        batches=before.batches + 1,
        batch=batch,
        batch_rows=rows,
        batch_seconds=spent / 1000,
        batch_lag_seconds=before.batch_lag_seconds if lag is None else lag.seconds,
        phases={phase: each / 1000 for phase, each in durations.items()},
    )


def measured(before: Figures, tails: Mapping[str, str]) -> Figures:
    """Take where the server says that streams end now."""
    return replace(before, tails=tails, lag_bytes=distance(before.ends, tails), streams=len(tails))


def offsets_of(value: Any) -> dict[str, str]:
    """Take the offsets of a progress; there may be none yet."""
    return value if isinstance(value, dict) else {}


def distance(start: Mapping[str, str], end: Mapping[str, str]) -> int:
    """Count the bytes from some offsets to others."""
    return sum(max(0, byte_of(at) - byte_of(start.get(path, START))) for path, at in end.items())


def sized(count: float) -> str:
    """Write a number of bytes for people."""
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{round(count)} B"


def lasting(seconds: float) -> str:
    """Write how long something took for people."""
    for unit, name in _TIMES:
        if seconds >= unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds:.1f} s"


def told(
    figures: Figures, seconds: float, total: int | None = None, total_rows: int | None = None
) -> str:
    """Write how far it is on one line; with a bar where it is known how much there is to do."""
    speed = f" ({sized(figures.bytes / seconds)}/s)" if seconds > 0 and figures.bytes else ""
    if total_rows:
        text = f"{figures.rows:,} of {total_rows:,} changes"
        return f"{_bar(figures.rows / total_rows)}  {text}"
    rows = f"{figures.rows:,} rows, " if figures.rows or figures.batches else ""
    if total:
        part = _bar(figures.bytes / total)
        return f"{part}  {rows}{sized(figures.bytes)} of {sized(total)}{speed}"
    text = f"{rows}{sized(figures.bytes)}{speed}"
    if figures.batch is None:
        return text
    lag = sized(figures.lag_bytes)
    if figures.batch_lag_seconds is not None:
        lag += f", {lasting(figures.batch_lag_seconds)}"
    return f"batch {figures.batch}  {text}, lag {lag}"


def reached(doing: str, part: float | None, seconds: float) -> str:
    """Write what a job is at, and how much of that is done where it is known."""
    bar = "" if part is None else f"{_bar(part)}  "
    return f"{bar}{doing}, {lasting(seconds)}"


def _bar(part: float) -> str:
    full = round(min(1.0, part) * _BAR)
    return f"[{'#' * full}{'.' * (_BAR - full)}] {min(1.0, part):4.0%}"
