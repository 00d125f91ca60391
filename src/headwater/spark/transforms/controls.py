"""What the controls of a batch mean for the changes around them. No I/O, nothing of Spark.

A change is visible from its own offset on, unless it lies within a snapshot: then from the offset
of the snapshot's end, or never. A reset and the end of a snapshot clear what was there before. That
is the rule of `headwater.state.fold`, said of offsets instead of one event after another.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from headwater.spark.transforms.marks import Marks
from headwater.spark.transforms.times import TIME

RESET: Final = "reset"
START: Final = "snapshot-start"
END: Final = "snapshot-end"


class Control(Struct, frozen=True):
    """A control event of a stream."""

    stream: str
    offset: str
    kind: str
    time: datetime | None = None


class Span(Struct, frozen=True):
    """The changes of a snapshot: those behind `after`, up to `until` or on and on."""

    after: str
    until: str | None
    visible: str | None
    """From where on they are to be seen; None: not yet, or never."""


class Clear(Struct, frozen=True):
    """Where a stream's state was emptied; what a snapshot brings is visible from there on."""

    offset: str
    time: datetime | None = None


class Part(Struct, frozen=True):
    """The part of a stream whose last writes are its state; it is always one range."""

    behind: str
    """Only what ends behind this offset counts."""
    until: str | None
    """And only up to here, where a snapshot begins that has not ended."""


class Course(Struct, frozen=True):
    """What the controls of one stream in one batch mean."""

    spans: tuple[Span, ...] = ()
    clears: tuple[Clear, ...] = ()
    reset: str | None = None
    """Where the last reset was: what was kept aside before it is forgotten."""
    opened: str | None = None
    """Where the snapshot began that is open behind the batch."""
    earlier: tuple[str, str] | None = None
    """From where to where a snapshot reaches that ended here and began in an earlier batch."""

    @property
    def cleared(self) -> str | None:
        """Where the state was emptied for the last time."""
        return self.clears[-1].offset if self.clears else None

    @property
    def part(self) -> Part:
        """Say which changes make up the state behind all controls."""
        since = self.cleared or ""
        # What a snapshot brought begins where it did; snapshots behind it follow one another.
        begun = [span.after for span in self.spans if since and span.visible == since]
        held = [span.after for span in self.spans if span.visible is None and span.after >= since]
        return Part(begun[0] if begun else since, min(held, default=None))


def course(opened: str | None, controls: Iterable[Control]) -> Course:
    """Follow the controls of one stream, from where its last batch left a snapshot open."""
    spans: list[Span] = []
    clears: list[Clear] = []
    reset: str | None = None
    earlier: tuple[str, str] | None = None
    begun = opened
    for control in sorted(controls, key=lambda each: each.offset):
        at = control.offset
        if control.kind == RESET:
            if begun is not None:
                spans.append(Span(begun, at, None))
            clears.append(Clear(at, control.time))
            begun, reset = None, at
        elif control.kind == START:
            if begun is not None:
                spans.append(Span(begun, at, None))
            begun = at
        elif control.kind == END and begun is not None:
            spans.append(Span(begun, at, at))
            clears.append(Clear(at, control.time))
            if begun == opened:
                earlier = (begun, at)
            begun = None
    if begun is not None:
        spans.append(Span(begun, None, None))
    return Course(tuple(spans), tuple(clears), reset, begun, earlier)


def course_of(controls: Iterable[tuple[str, str]]) -> Course:
    """Follow the controls of one stream from its start, each given by its offset and kind."""
    return course(None, (Control("", offset, kind) for offset, kind in controls))


def courses(opened: Mapping[str, str], controls: Iterable[Control]) -> dict[str, Course]:
    """Follow the controls of all streams of a batch; streams without any are left out."""
    by_stream: dict[str, list[Control]] = {stream: [] for stream in opened}
    for control in controls:
        by_stream.setdefault(control.stream, []).append(control)
    return {stream: course(opened.get(stream), each) for stream, each in by_stream.items()}


class Meaning:
    """What the controls of a batch mean for rows of any streams, all at once."""

    def __init__(self, known: Mapping[str, Course]) -> None:
        spans = [(stream, span) for stream, each in known.items() for span in each.spans]
        self._spans = Marks([(stream, span.after) for stream, span in spans])
        self._until = pa.array([span.until for _, span in spans], pa.string())
        self._visible = pa.array([span.visible for _, span in spans], pa.string())
        clears = [(stream, clear) for stream, each in known.items() for clear in each.clears]
        self._clears = Marks([(stream, clear.offset) for stream, clear in clears])
        self._cleared = pa.array([clear.offset for _, clear in clears], pa.string())
        self._times = pa.array([clear.time for _, clear in clears], TIME)
        self._streams = pa.array([stream for stream, _ in clears], pa.string())

    def visible(self, rows: pa.Table) -> pa.Table:
        """Keep the changes that are to be seen, and say in `valid_from` from which offset on."""
        offsets = rows.column("offset")
        if not len(self._spans):
            return rows.append_column("valid_from", offsets)
        span = self._spans.before(rows, "offset")
        is_within = pc.less_equal(offsets, self._until.take(span)).fill_null(True)
        is_within = pc.and_(is_within, span.is_valid())
        since = pc.if_else(is_within, self._visible.take(span), offsets)
        rows = rows.append_column("valid_from", since)
        return rows.filter(pc.is_valid(since)) if since.null_count else rows

    def without_cleared(self, rows: pa.Table) -> pa.Table:
        """Leave out what was cleared behind `valid_from`."""
        return rows.filter(pc.is_null(self._clears.behind(rows, "valid_from")))

    def without_cleared_streams(self, rows: pa.Table) -> pa.Table:
        """Leave out all rows of streams that were cleared."""
        return rows.filter(pc.invert(pc.is_in(rows.column("stream"), value_set=self._streams)))

    def first_clear(self, rows: pa.Table) -> tuple[pa.Array, pa.Array]:
        """Find where, and at what time, rows were first cleared behind `valid_from`."""
        clear = self._clears.behind(rows, "valid_from")
        return self._cleared.take(clear), self._times.take(clear)

    def clear_time(self, rows: pa.Table) -> pa.Array:
        """Give the time of the clear that rows are valid from, as those of a snapshot are."""
        return self._times.take(self._clears.at(rows, "valid_from"))
