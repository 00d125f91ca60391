"""How far projections are behind: of each run while it is, and of the last events over all runs."""

from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

_ZERO: Final = timedelta(0)


class RunLag(Struct, frozen=True):
    """How far the projection of a run is behind its log."""

    seconds: float
    """Since the oldest event not yet applied was persisted; 0 when there is none."""
    events_behind: int


class Metrics(Struct, frozen=True):
    """How the projector is doing, over all runs."""

    lag_seconds: float
    """The greatest lag of any run, as far as it is known."""
    events_behind: int
    runs_behind: int
    stale_runs: int
    events_applied: int
    p50_seconds: float
    """Of the last `Options.measured_events`: from being persisted to being in a kept snapshot."""
    p99_seconds: float


class _Behind(Struct):
    """A run that has events which are not applied yet."""

    since: datetime
    """When the oldest of them was persisted, as far as we know."""
    last_seq: int


class Lags:
    """Which runs are behind, and how late events were."""

    def __init__(self, measured: int) -> None:
        self._behind: dict[str, _Behind] = {}
        self._applied = 0
        self._delays: deque[float] = deque(maxlen=measured)

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._behind))

    def heard(self, run_id: str, updated_at: datetime, last_seq: int) -> None:
        """Take note that a run has events up to a number, of which the newest is so old."""
        known = self._behind.get(run_id)
        since = updated_at if known is None else known.since
        self._behind[run_id] = _Behind(since, last_seq)

    def read(self, run_id: str, oldest: datetime, last_seq: int) -> None:
        """Take note of events that were read and are not applied yet."""
        known = self._behind.get(run_id)
        newest = last_seq if known is None else max(last_seq, known.last_seq)
        self._behind[run_id] = _Behind(oldest, newest)

    def kept(self, run_id: str, applied_seq: int, persisted: list[datetime], now: datetime) -> bool:
        """Take note that events are in a kept snapshot; says whether the run is behind no more."""
        self._applied += len(persisted)
        self._delays.extend((now - at).total_seconds() for at in persisted)
        behind = self._behind.get(run_id)
        if behind is not None and behind.last_seq > applied_seq:
            return False
        self._behind.pop(run_id, None)
        return True

    def forget(self, run_id: str) -> int:
        """Count a run no more; gives the highest number that was heard of it."""
        behind = self._behind.pop(run_id, None)
        return 0 if behind is None else behind.last_seq

    def seconds(self, run_id: str, now: datetime) -> float:
        """Say how long a run has been behind."""
        return max(_ZERO, now - self._behind[run_id].since).total_seconds()

    def metrics(self, now: datetime, applied_seq: Callable[[str], int], stale: int) -> Metrics:
        """Sum up."""
        delays = sorted(self._delays)
        return Metrics(
            max((self.seconds(run_id, now) for run_id in self._behind), default=0.0),
            sum(
                max(0, each.last_seq - applied_seq(run_id)) for run_id, each in self._behind.items()
            ),
            len(self._behind),
            stale,
            self._applied,
            _percentile(delays, 0.5),
            _percentile(delays, 0.99),
        )


def _percentile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0
