"""The outcome of a comparison: targets, the table, and the same as JSON."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from bench.compare import Bench, Comparison, Samples

# How many times better than the peer ours must be, by (our store, the peer's mode). A latency
# target of 3 is "at most a third".
TARGETS: Mapping[tuple[str, str], Mapping[str, float]] = {
    ("memory", "memory"): {"A1": 4, "R1": 20, "R2": 5, "L1": 3},
    ("disk", "file"): {"A1": 30, "A3": 70, "A5": 13, "R1": 60, "L3": 3, "C1": 6},
    ("disk", "ours"): {"L1": 0.9},
}

# Above this the generator may be what limits the figure, so it is only a lower bound.
_SATURATED = 0.95

_HEADINGS = ("workload", "peer", "ours", "unit", "ratio", "target", "met")


def is_met(comparison: Comparison, target: float | None) -> bool | None:
    """Tell whether a target is met; one that could not be measured is not."""
    if target is None:
        return None
    ratio = comparison.ratio
    return ratio is not None and ratio >= target


def missed(comparisons: Sequence[Comparison], targets: Mapping[str, float]) -> list[str]:
    """Return the names of the workloads whose target is missed."""
    return [
        each.workload.name
        for each in comparisons
        if is_met(each, targets.get(each.workload.name)) is False
    ]


def failed(comparisons: Sequence[Comparison]) -> list[str]:
    """Return one sentence per workload and server that failed."""
    return [
        f"{each.workload.name} on {label}: {'; '.join(dict.fromkeys(samples.failures))}"
        for each in comparisons
        for label, samples in (("ours", each.ours), ("the peer", each.peer))
        if samples.failures
    ]


def noted(comparisons: Sequence[Comparison]) -> list[str]:
    """Return one sentence per workload and server whose figure needs an explanation."""
    return [
        f"{each.workload.name} on {label}: {samples.notes[0]}"
        for each in comparisons
        for label, samples in (("ours", each.ours), ("the peer", each.peer))
        if samples.notes
    ]


def table(comparisons: Sequence[Comparison], targets: Mapping[str, float]) -> str:
    """Return the comparison as a plain-text table."""
    rows = [_HEADINGS, *(_row(each, targets.get(each.workload.name)) for each in comparisons)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    # The title reads from the left, figures line up on the right, the unit follows its figure.
    left = {0, 3, 6}
    lines = [
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    if any("*" in row[1] or "*" in row[2] for row in rows):
        lines.append("* the load generator was saturated: the server can do at least this")
    return "\n".join(lines)


def _row(comparison: Comparison, target: float | None) -> tuple[str, ...]:
    workload, ratio = comparison.workload, comparison.ratio
    met = is_met(comparison, target)
    return (
        f"{workload.name} {workload.title}",
        _figure(comparison.peer),
        _figure(comparison.ours),
        workload.unit,
        "-" if ratio is None else f"{ratio:.2f} x",
        "-" if target is None else f"{target:g} x",
        {True: "yes", False: "NO", None: "-"}[met],
    )


def _figure(samples: Samples) -> str:
    if samples.failures:
        return "failed"
    median = samples.median
    if median is None:
        return "-"
    digits = 0 if median >= 100 else 2
    return f"{median:,.{digits}f}" + ("*" if samples.generator_cpu >= _SATURATED else "")


def as_json(
    bench: Bench, comparisons: Sequence[Comparison], targets: Mapping[str, float]
) -> dict[str, object]:
    """Return everything measured, every single run included, as values JSON can hold."""
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "ours": bench.ours.label if bench.ours else None,
        "peer": bench.peer.label if bench.peer else None,
        "seconds": bench.effort.seconds,
        "warmup": bench.effort.warmup,
        "subscribers": bench.effort.subscribers,
        "repeats": bench.repeats,
        "pinned": bench.cores.server is not None,
        "workloads": [_workload_json(each, targets) for each in comparisons],
    }


def _workload_json(comparison: Comparison, targets: Mapping[str, float]) -> dict[str, object]:
    workload = comparison.workload
    target = targets.get(workload.name)
    return {
        "name": workload.name,
        "title": workload.title,
        "unit": workload.unit,
        "better": workload.better,
        "ours": _samples_json(comparison.ours),
        "peer": _samples_json(comparison.peer),
        "ratio": comparison.ratio,
        "target": target,
        "met": is_met(comparison, target),
    }


def _samples_json(samples: Samples) -> dict[str, object]:
    return {
        "median": samples.median,
        "runs": [each.value for each in samples.measurements],
        "failures": samples.failures,
        "notes": samples.notes,
        "generator_cpu": round(samples.generator_cpu, 3),
    }
