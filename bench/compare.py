"""Running the chosen workloads on both servers in turns, each time on a fresh one."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.measure import Effort, Measurement
from bench.servers import Cores, ServerError, ServerSpec, running
from bench.wire import WireError
from bench.workloads import Workload


@dataclass(slots=True)
class Samples:
    """All measurements of one workload on one server."""

    measurements: list[Measurement] = field(default_factory=list)

    @property
    def failures(self) -> list[str]:
        """Everything that went wrong in any of the runs."""
        return [failure for each in self.measurements for failure in each.failures]

    @property
    def notes(self) -> list[str]:
        """What a reader must know about the figures."""
        return [each.note for each in self.measurements if each.note]

    @property
    def median(self) -> float | None:
        """The median figure, or None if one of the runs failed: half a result is none."""
        if self.failures or not self.measurements:
            return None
        return statistics.median(each.value for each in self.measurements)

    @property
    def generator_cpu(self) -> float:
        """How busy the generator was, in the busiest run."""
        return max((each.generator_cpu for each in self.measurements), default=0.0)


@dataclass(slots=True)
class Comparison:
    """One workload on both servers."""

    workload: Workload
    ours: Samples = field(default_factory=Samples)
    peer: Samples = field(default_factory=Samples)

    @property
    def ratio(self) -> float | None:
        """How many times better ours is: above one is good for latencies as well."""
        ours, peer = self.ours.median, self.peer.median
        if not ours or not peer:
            return None
        return ours / peer if self.workload.better == "higher" else peer / ours


@dataclass(frozen=True, slots=True)
class Bench:
    """The two servers (either may be absent) and the conditions they are measured under."""

    ours: ServerSpec | None
    peer: ServerSpec | None
    effort: Effort
    repeats: int
    cores: Cores
    data_root: Path | None

    def compare(self, workloads: Sequence[Workload]) -> list[Comparison]:
        """Measure every workload, the servers taking turns so that both meet the same weather."""
        self.cores.pin_generator()
        comparisons = [Comparison(workload) for workload in workloads]
        for comparison in comparisons:
            for repeat in range(1, self.repeats + 1):
                for spec, samples in ((self.ours, comparison.ours), (self.peer, comparison.peer)):
                    if spec is not None:
                        step = f"{comparison.workload.name} {repeat}/{self.repeats} {spec.label}"
                        samples.measurements.append(self._measure(step, comparison.workload, spec))
        return comparisons

    def _measure(self, step: str, workload: Workload, spec: ServerSpec) -> Measurement:
        print(f"{step}: {workload.title} ...", end=" ", file=sys.stderr, flush=True)
        try:
            with running(spec, self.cores, self.data_root) as port:
                workload.setup(port)
                measurement = workload.run(port, self.effort)
        except (OSError, ServerError, WireError, ValueError) as error:
            measurement = Measurement(0.0, (f"{type(error).__name__}: {error}",))
        if measurement.failures:
            print(f"failed: {'; '.join(measurement.failures)}", file=sys.stderr, flush=True)
        else:
            print(
                f"{measurement.value:,.2f} {workload.unit}"
                f" (generator {measurement.generator_cpu:.0%} busy)",
                file=sys.stderr,
                flush=True,
            )
        return measurement
