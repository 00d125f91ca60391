"""The projection of one run, without I/O: which events it needs next, and what they make of it.

A watermark alone loses late events: once 6 is applied, a fetch behind 6 never gives 4. So there are
two marks: the highest *contiguous* number, below which nothing is missing, and the highest
*applied* one. While a gap is younger than a grace period, events are read again from the contiguous
mark; what arrived late is put in its place by starting over from the snapshot at that mark. A gap
that outlives the grace period is given up for good, and so is any gap of a store whose gaps are
final.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from msgspec import Struct

from headwater.runs.events import StoredEvent
from headwater.runs.reducer import Fold, InvalidTransition
from headwater.runs.store import Checkpoint
from headwater.runs.values import RunSnapshot


class Health(StrEnum):
    """How far a projection can be trusted; it says nothing of the run."""

    LIVE = "LIVE"
    STALE = "STALE"
    RESYNCING = "RESYNCING"


class Gap(Struct, frozen=True):
    """Numbers that are missing: from `first` to `last`, noticed at `since`."""

    first: int
    last: int
    since: datetime


class Progress(Struct, frozen=True):
    """What events did to a projection."""

    applied: int
    """How many were new."""
    opened: tuple[Gap, ...] = ()
    """Gaps that were not known before."""
    given_up: tuple[Gap, ...] = ()
    """Gaps that count as permanent now."""
    late: tuple[int, ...] = ()
    """Numbers that were found below the highest applied one."""
    invalid: tuple[InvalidTransition, ...] = ()


class Projection:
    """How far one run is projected."""

    def __init__(
        self,
        run_id: str,
        checkpoint: Checkpoint | None = None,
        *,
        gaps_are_final: bool,
        grace: timedelta,
        gaps: tuple[Gap, ...] = (),
    ) -> None:
        self.run_id = run_id
        self._gaps_are_final = gaps_are_final
        self._grace = grace
        self._gaps = gaps
        self._above: set[int] = set()
        """The numbers above the contiguous mark that were applied."""
        self.contiguous_seq = 0
        self._told_seq = 0 if checkpoint is None else checkpoint.last_event_seq
        """Up to here, whatever there was to report was reported before the last restart."""
        self.health = Health.LIVE
        base: RunSnapshot | None = None
        if checkpoint is not None:
            self.contiguous_seq = checkpoint.contiguous_seq
            whole = checkpoint.contiguous_seq >= checkpoint.last_event_seq
            base = checkpoint.snapshot if whole else checkpoint.base
            if checkpoint.stale:
                self.health = Health.STALE
        self._base = Fold(run_id, base)
        """The run at the contiguous mark: where a late event makes it start over."""
        self._fold = self._base if checkpoint is None else Fold(run_id, checkpoint.snapshot)
        if self.contiguous_seq >= self._fold.last_event_seq:
            self._fold = self._base

    @property
    def applied_seq(self) -> int:
        """The highest number applied."""
        return self._fold.last_event_seq

    @property
    def read_from(self) -> int:
        """Behind which number events are needed."""
        return self.contiguous_seq

    @property
    def has_gap(self) -> bool:
        return bool(self._gaps) or self.health is not Health.LIVE

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """The gaps that are waited for: whoever begins anew in between hands them over."""
        return self._gaps

    def snapshot(self) -> RunSnapshot:
        """Give the run as all events seen tell it."""
        return self._fold.snapshot()

    def checkpoint(self) -> Checkpoint:
        """Say how far it is, for after a crash."""
        whole = self._fold is self._base
        base = None if whole or not self.contiguous_seq else self._base.snapshot()
        return Checkpoint(self.snapshot(), self.contiguous_seq, base, stale=not whole)

    def take(self, events: Sequence[StoredEvent], now: datetime) -> Progress:
        """Take in every event behind `read_from`, in the order of their numbers.

        All that the store shows must be among them: a number that is not there counts as missing.
        """
        known = self._above
        fresh = [
            each
            for each in events
            if each.run_seq > self.contiguous_seq and each.run_seq not in known
        ]
        # Straight from a checkpoint nothing is known of what lies above the contiguous mark.
        highest = max(known, default=0)
        late = tuple(each.run_seq for each in fresh if each.run_seq < highest)
        gaps = self._find_gaps(events, now)
        given_up = tuple(gap for gap in gaps if self._is_final(gap, now))
        still_open = tuple(gap for gap in gaps if gap not in given_up)
        opened = tuple(gap for gap in gaps if gap.since == now and gap not in self._gaps)
        invalid = self._rebuild(events, still_open, known) if fresh or given_up else ()
        self._gaps = still_open
        # The contract's 4.2: STALE from the observation on, until the watermark has passed the gap.
        self.health = Health.STALE if still_open else Health.LIVE
        return Progress(len(fresh), opened, given_up, late, invalid)

    def _find_gaps(self, events: Iterable[StoredEvent], now: datetime) -> tuple[Gap, ...]:
        found = []
        expected = self.contiguous_seq + 1
        for event in events:
            if event.run_seq > expected:
                first, last = expected, event.run_seq - 1
                ages = [gap.since for gap in self._gaps if gap.first <= last and gap.last >= first]
                found.append(Gap(first, last, min(ages, default=now)))
            expected = max(expected, event.run_seq + 1)
        return tuple(found)

    def _is_final(self, gap: Gap, now: datetime) -> bool:
        return self._gaps_are_final or now - gap.since >= self._grace

    def _rebuild(
        self, events: Sequence[StoredEvent], gaps: Sequence[Gap], known: set[int]
    ) -> tuple[InvalidTransition, ...]:
        """Apply everything behind the contiguous mark anew, moving the mark up to the first gap."""
        fold = self._base
        bound = gaps[0].first if gaps else None
        reports = []
        above: set[int] = set()
        for event in events:
            if bound is not None and event.run_seq > bound and fold is self._base:
                fold = Fold(self.run_id, self._base.snapshot())
            invalid = fold.apply(event)
            is_told = event.run_seq in known or event.run_seq <= self._told_seq
            if invalid is not None and not is_told:
                reports.append(invalid)
            if fold is self._base:
                self.contiguous_seq = max(self.contiguous_seq, event.run_seq)
            else:
                above.add(event.run_seq)
        self._fold = fold
        self._above = above
        return tuple(reports)
