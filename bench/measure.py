"""What a workload is given (an effort) and what it hands back (a measurement)."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Effort:
    """How long and how large one measurement may be."""

    seconds: float
    warmup: float
    subscribers: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """One figure, what went wrong on the way, how busy the generator was, what else to know."""

    value: float
    failures: tuple[str, ...] = ()
    generator_cpu: float = 0.0
    note: str = ""


class Stopwatch:
    """Wall time and this process's CPU time since the watch was started."""

    __slots__ = ("_cpu", "_wall")

    def __init__(self) -> None:
        self._wall = time.perf_counter()
        self._cpu = time.process_time()

    def elapsed(self) -> float:
        """Return the seconds since the start, never zero."""
        return max(time.perf_counter() - self._wall, 1e-9)

    def generator_cpu(self) -> float:
        """Return the share of one core this process used since the start."""
        return (time.process_time() - self._cpu) / self.elapsed()


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile, `share` being between 0 and 1."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Keep collector pauses of the generator out of the server's figures."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
