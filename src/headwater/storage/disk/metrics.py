"""Metrics of the engine, collected in memory."""

import json
from copy import deepcopy
from typing import Final

_BOUNDS: Final[tuple[float, ...]] = tuple(0.0001 * 2.0**power for power in range(20))


class Histogram:
    """A histogram of durations, with buckets that double from 0.1 ms on."""

    __slots__ = ("count", "counts", "largest", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS) + 1)
        self.count = 0
        self.total = 0.0
        self.largest = 0.0

    def add(self, seconds: float) -> None:
        index = 0
        while index < len(_BOUNDS) and seconds > _BOUNDS[index]:
            index += 1
        self.counts[index] += 1
        self.count += 1
        self.total += seconds
        self.largest = max(self.largest, seconds)

    def quantile(self, part: float) -> float:
        """Return an upper bound for a quantile of the durations."""
        wanted = part * self.count
        seen = 0
        for bound, count in zip((*_BOUNDS, self.largest), self.counts, strict=True):
            seen += count
            if seen >= wanted:
                return min(bound, self.largest)
        return self.largest

    def summary(self) -> dict[str, float]:
        return {
            "count": self.count,
            "mean": self.total / self.count if self.count else 0.0,
            "p50": self.quantile(0.5),
            "p99": self.quantile(0.99),
            "max": self.largest,
        }


class EngineMetrics:
    """Counters and histograms since the store was opened."""

    __slots__ = (
        "batch_operations",
        "batches",
        "checkpoint_seconds",
        "checkpoints",
        "compactions",
        "failed_batches",
        "journal_bytes",
        "recovered_records",
        "recovery_seconds",
        "segment_bytes",
        "sync_seconds",
    )

    def __init__(self) -> None:
        self.batches = 0
        self.batch_operations = 0
        self.failed_batches = 0
        self.journal_bytes = 0
        self.segment_bytes = 0
        self.checkpoints = 0
        self.compactions = 0
        self.recovered_records = 0
        self.recovery_seconds = 0.0
        self.sync_seconds = Histogram()
        self.checkpoint_seconds = Histogram()

    def snapshot(self) -> dict[str, object]:
        """Return all metrics as plain values."""
        values: dict[str, object] = {}
        for name in self.__slots__:
            value = getattr(self, name)
            values[name] = value.summary() if isinstance(value, Histogram) else value
        values["operations_per_batch"] = (
            self.batch_operations / self.batches if self.batches else 0.0
        )
        return values

    def with_checkpoint(self, segment_bytes: int, seconds: float) -> "EngineMetrics":
        """Return the metrics after the running checkpoint, which stores them, has succeeded."""
        later = deepcopy(self)
        later.segment_bytes += segment_bytes
        later.checkpoints += 1
        later.checkpoint_seconds.add(seconds)
        return later

    def dump(self) -> str:
        return json.dumps(self.snapshot())
