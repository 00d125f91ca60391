"""From events of runs to tables of runs and steps, by the projection of `headwater.runs`.

A run's row carries all that its projection needs to go on: a checkpoint, and the events above its
first gap. So events may come in any order, over any number of batches and streams, and more than
once: the row is as `project` makes it of the run's events in the order of `run_seq`. Nothing here
reads a clock or does I/O.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw, Struct
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from headwater.runs.events import StoredEvent, event_to_wire, stored_event_from_wire
from headwater.runs.projection import Gap, Projection
from headwater.runs.store import Checkpoint, checkpoint_from_json, checkpoint_to_json
from headwater.runs.values import RunSnapshot, StepSnapshot, snapshot_to_wire
from headwater.spark.messages import CORRUPT
from headwater.spark.tables import Merged
from headwater.spark.transforms.run_tables import (
    RUNS,
    RUNS_ARROW,
    STEPS,
    STEPS_ARROW,
)
from headwater.state.values import decode_value

EVENT_COLUMNS: Final = (
    "stream",
    "offset",
    "run_id",
    "run_seq",
    "event_type",
    "step_id",
    "logical_attempt_id",
    "engine_attempt_id",
    "emitted_at",
    "persisted_at",
    "caused_by_signal_id",
    "event_data",
)
"""What of mode `runs` the projection needs: the place of an event, and what the reducer reads."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIMES: Final = tuple(
    (end - _EPOCH) // timedelta(microseconds=1)
    for end in (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))
)
"""The first and the last moment that has a date, in microseconds."""

FOR_GOOD: Final = timedelta.max
"""A grace that no gap outlives."""


# One run


class Projected(Struct, frozen=True):
    """A run between two batches."""

    checkpoint: Checkpoint
    persisted_at: datetime
    """When the newest event applied was persisted."""
    held: tuple[StoredEvent, ...] = ()
    """The events above the first gap, in their order: a late one makes them be applied again."""
    gaps: tuple[Gap, ...] = ()
    given_up: tuple[tuple[int, int], ...] = ()
    """Numbers that were not waited for any more: from, to."""
    skipped: tuple[int, ...] = ()
    """Those of them that came after all, too late to be applied."""

    @property
    def snapshot(self) -> RunSnapshot:
        return self.checkpoint.snapshot


def advance(
    before: Projected | None,
    run_id: str,
    events: Iterable[StoredEvent],
    *,
    now: datetime,
    grace: timedelta = FOR_GOOD,
) -> Projected | None:
    """Take in events of a run in any order; the same object comes back where none was new."""
    at = 0 if before is None else before.checkpoint.contiguous_seq
    held = {} if before is None else {event.run_seq: event for event in before.held}
    fresh: dict[int, StoredEvent] = {}
    too_late: set[int] = set()
    for event in events:
        seq = event.run_seq
        if seq > at:
            if seq not in held:
                fresh.setdefault(seq, event)
        elif before is not None and any(first <= seq <= last for first, last in before.given_up):
            too_late.add(seq)
    if before is not None:
        too_late -= set(before.skipped)
    if not fresh:
        if before is None or not too_late:
            return before
        skipped = tuple(sorted({*before.skipped, *too_late}))
        return msgspec.structs.replace(before, skipped=skipped)
    projection = Projection(
        run_id,
        None if before is None else before.checkpoint,
        gaps_are_final=False,
        grace=grace,
        gaps=() if before is None else before.gaps,
    )
    ordered = sorted((held | fresh).values(), key=_run_seq)
    progress = projection.take(ordered, now)
    newest = [event.persisted_at for event in fresh.values()]
    given_up = tuple((gap.first, gap.last) for gap in progress.given_up)
    return Projected(
        projection.checkpoint(),
        max(newest if before is None else [*newest, before.persisted_at]),
        tuple(event for event in ordered if event.run_seq > projection.contiguous_seq),
        projection.gaps,
        given_up if before is None else before.given_up + given_up,
        tuple(sorted(too_late if before is None else {*before.skipped, *too_late})),
    )


def _run_seq(event: StoredEvent) -> int:
    return event.run_seq


class _State(Struct, frozen=True, omit_defaults=True):
    """How a row keeps a projection."""

    checkpoint: Raw
    persisted_at: datetime
    held: tuple[dict[str, Any], ...] = ()
    gaps: tuple[Gap, ...] = ()
    given_up: tuple[tuple[int, int], ...] = ()
    skipped: tuple[int, ...] = ()


def state_to_json(run: Projected) -> str:
    """Write what the next batch needs of a run."""
    state = _State(
        Raw(checkpoint_to_json(run.checkpoint)),
        run.persisted_at,
        tuple(event_to_wire(event) for event in run.held),
        run.gaps,
        run.given_up,
        run.skipped,
    )
    return msgspec.json.encode(state).decode()


def state_from_json(run_id: str, text: str) -> Projected:
    """Read what a batch has left of a run."""
    state = msgspec.json.decode(text, type=_State)
    return Projected(
        checkpoint_from_json(run_id, bytes(state.checkpoint)),
        state.persisted_at,
        tuple(stored_event_from_wire(wire) for wire in state.held),
        state.gaps,
        state.given_up,
        state.skipped,
    )


# Rows


def events_by_run(rows: pa.Table) -> dict[str, list[StoredEvent]]:
    """Read events from rows of mode `runs`, those of each run together.

    They come in the order of streams and offsets: of two that claim one number, which the contract
    forbids, whoever tries again takes the same.
    """
    ordered = rows.select(EVENT_COLUMNS).sort_by([("stream", "ascending"), ("offset", "ascending")])
    # Column by column, and times as numbers: making rows and zoned times would cost most of it all.
    columns = [
        (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
        for column in ordered.columns
    ]
    found: dict[str, list[StoredEvent]] = {}
    for row in zip(*columns, strict=True):
        event = _event(*row)
        found.setdefault(event.run_id, []).append(event)
    return found


def _event(  # noqa: PLR0917 - the columns, in their order
    _stream: str,
    _offset: str,
    run_id: str,
    run_seq: int,
    event_type: str,
    step_id: str | None,
    logical_attempt_id: int | None,
    engine_attempt_id: int | None,
    emitted: int,
    persisted: int | None,
    caused_by_signal_id: str | None,
    data: str | None,
) -> StoredEvent:
    """Make an event of its columns; what no rule reads is left out."""
    return StoredEvent(
        run_id=run_id,
        run_seq=run_seq,
        event_id="",
        event_type=event_type,
        idempotency_key="",
        emitted_at=_EPOCH + timedelta(microseconds=emitted),
        persisted_at=_EPOCH + timedelta(microseconds=emitted if persisted is None else persisted),
        step_id=step_id,
        logical_attempt_id=logical_attempt_id,
        engine_attempt_id=engine_attempt_id,
        caused_by_signal_id=caused_by_signal_id,
        event_data=None if data is None else decode_value(data.encode()),
    )


def merge_runs(
    old: pa.Table, new: pa.Table, *, batch: str, now: datetime, grace: timedelta = FOR_GOOD
) -> Merged:
    """Take the events of a batch into the rows of runs."""
    events = events_by_run(new)
    touched = pc.is_in(old["run_id"], pa.array(list(events), pa.string()))
    before = {row["run_id"]: row for row in old.filter(touched).to_pylist()}
    rows: list[Mapping[str, Any]] = []
    for run_id, told in events.items():
        row = before.get(run_id)
        was = None if row is None else state_from_json(run_id, row["_state"])
        is_now = advance(was, run_id, told, now=now, grace=grace)
        if is_now is None or is_now is was:
            rows += [] if row is None else [row]
            continue
        first = batch if row is None else row["_first_batch"]
        rows.append(_run_row(is_now, batch, first, now))
    kept = old.filter(pc.invert(touched)).select(RUNS_ARROW.names).cast(RUNS_ARROW)
    return Merged(pa.concat_tables([kept, pa.Table.from_pylist(rows, RUNS_ARROW)]))


def _run_row(run: Projected, batch: str, first_batch: str, now: datetime) -> dict[str, Any]:
    snapshot = run.snapshot
    engine = snapshot.engine_run_ref
    return {
        "run_id": snapshot.run_id,
        "status": str(snapshot.status),
        "last_event_seq": snapshot.last_event_seq,
        "contiguous_seq": run.checkpoint.contiguous_seq,
        "health": "STALE" if run.checkpoint.stale else "LIVE",
        "started_at": _fitting(snapshot.started_at),
        "completed_at": _fitting(snapshot.completed_at),
        "total_duration_ms": snapshot.total_duration_ms,
        "step_count": len(snapshot.steps),
        "failed_steps": snapshot.failed_steps,
        "artifacts": _fields(snapshot.artifacts),
        "error": _fields(snapshot.error),
        "signals": _fields(snapshot.signals),
        "engine_run_ref": None if engine is None else msgspec.json.encode(engine).decode(),
        "skipped_events": len(run.skipped),
        "persisted_at": run.persisted_at,
        "projected_at": now,
        "_batch": batch,
        "_first_batch": first_batch,
        "_state": state_to_json(run),
    }


def _fields(value: Any) -> Any:
    """Give the fields of values by their names here, which are those of the columns."""
    if isinstance(value, tuple):
        return [_fields(one) for one in value]
    if value is None:
        return None
    return {name: _fitting(each) for name, each in msgspec.structs.asdict(value).items()}


def _fitting(value: Any) -> Any:
    """Give null for what no column has room for; the projection goes on with what was written."""
    if isinstance(value, datetime):
        try:
            return value.astimezone(UTC)
        except OverflowError:  # it has a date only where it was written
            return None
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return None
    return value


def steps_of(runs: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give the steps of runs, from rows of runs."""
    for batch in runs:
        rows: list[dict[str, Any]] = []
        for row in batch.select(["run_id", "_batch", "_state"]).to_pylist():
            snapshot = state_from_json(row["run_id"], row["_state"]).snapshot
            wires = snapshot_to_wire(snapshot)["steps"]
            for position, (step, wire) in enumerate(zip(snapshot.steps, wires, strict=True)):
                value = msgspec.json.encode({"runId": snapshot.run_id, **wire}).decode()
                rows.append(_step_row(snapshot.run_id, position, step, value, row["_batch"]))
        yield from pa.Table.from_pylist(rows, STEPS_ARROW).to_batches()


def _step_row(
    run_id: str, position: int, step: StepSnapshot, value: str, batch: str
) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "step_id": step.step_id,
        "position": position,
        "status": str(step.status),
        "logical_attempt_id": step.logical_attempt_id,
        "engine_attempt_id": step.engine_attempt_id,
        "started_at": _fitting(step.started_at),
        "completed_at": _fitting(step.completed_at),
        "artifacts": _fields(step.artifacts),
        "error": _fields(step.error),
        "skipped": _fields(step.skipped),
        "_batch": batch,
        "_first_batch": batch,
        "_value": value,
    }


def merge_steps(old: pa.Table, new: pa.Table) -> Merged:
    """Put steps of runs that have changed in the place of what they were.

    A step that is as it was keeps the batch that has changed it last. None disappears: whatever
    comes late, an event that has made a step would make it again.
    """
    touched = pc.is_in(old["run_id"], pc.unique(new["run_id"].combine_chunks()))
    rows = {_step_name(row): row for row in old.filter(touched).to_pylist()}
    for row in new.to_pylist():
        was = rows.get(_step_name(row))
        if was is not None:
            row["_first_batch"] = was["_first_batch"]
            if was["_value"] == row["_value"]:
                row["_batch"] = was["_batch"]
        rows[_step_name(row)] = row
    kept = old.filter(pc.invert(touched)).select(STEPS_ARROW.names).cast(STEPS_ARROW)
    return Merged(pa.concat_tables([kept, pa.Table.from_pylist(list(rows.values()), STEPS_ARROW)]))


def _step_name(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["run_id"], row["step_id"]


# DataFrames


def complaint() -> Column:
    """Say why a row of mode `runs` is no event that can be put in its place; null if it can."""
    return (
        f.when(f.col("run_id").isNull(), "it is no event of a run")
        .when(f.col("run_seq").isNull(), "it has no runSeq: only what a store has taken has one")
        .when(f.col("run_seq") < 1, "its runSeq is below 1")
        .when(f.col("emitted_at").isNull(), "it has no emittedAt")
        .when(~_has_date("emitted_at"), "its emittedAt is not of the years 1 to 9999")
        .when(~_has_date("persisted_at"), "its persistedAt is not of the years 1 to 9999")
    )


def _has_date(name: str) -> Column:
    return f.unix_micros(name).between(*_TIMES)


def checked(events: DataFrame) -> DataFrame:
    """Take the columns that are needed, and fail at the first row that is no event of a run.

    With a column `_corrupt` such rows are left out: `set_aside` has them.
    """
    if CORRUPT in events.columns:
        return events.where(complaint().isNull()).select(*EVENT_COLUMNS)
    told = f.concat(
        f.lit("The message of '"),
        "stream",
        f.lit("' that ends at offset "),
        "offset",
        f.lit(" can't be projected: "),
        complaint(),
        f.lit(". Set the option onCorrupt of the source to column to have it put aside."),
    )
    usable = f.when(complaint().isNull(), f.lit(True)).otherwise(f.raise_error(told))
    return events.where(usable).select(*EVENT_COLUMNS)


def set_aside(events: DataFrame) -> DataFrame:
    """Give what is no event of a run as rows of a quarantine; it has a column `_corrupt`."""
    bad = events.where(complaint().isNotNull())
    fields = f.struct(*[name for name in bad.columns if name not in {"stream", "offset", CORRUPT}])
    reason = f.when(f.col(CORRUPT).isNotNull(), "it can't be read").otherwise(complaint())
    message = f.coalesce(f.col(CORRUPT), f.to_json(fields))
    return bad.select("stream", "offset", reason.alias("reason"), message.alias("message"))


def project_runs(events: DataFrame, *, now: datetime, batch: str = "") -> DataFrame:
    """Make the rows of all runs from all of their events."""

    def projected(rows: pa.Table) -> pa.Table:
        return merge_runs(RUNS_ARROW.empty_table(), rows, batch=batch, now=now).kept

    return checked(events).groupBy("run_id").applyInArrow(projected, RUNS)


def project_steps(runs: DataFrame) -> DataFrame:
    """Make the rows of the steps of runs."""
    return runs.mapInArrow(steps_of, STEPS)
