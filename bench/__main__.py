"""The command line: `python -m bench`."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.compare import Bench
from bench.measure import Effort
from bench.report import TARGETS, as_json, failed, missed, noted, table
from bench.servers import Cores, ServerError, ServerSpec, custom, headwater, peer, version
from bench.workloads import WORKLOADS, Workload

_PEER_FOR_STORE = {"memory": "memory", "disk": "file", "none": "memory"}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure headwater beside npm's @durable-streams/server, one core each.",
    )
    parser.add_argument(
        "--store",
        choices=("memory", "disk", "none"),
        default="memory",
        help="the engine of our server, or none to measure only the peer (default: memory)",
    )
    parser.add_argument(
        "--peer",
        choices=("memory", "file", "ours", "none"),
        help="the peer's mode (default: the one that fits --store), or ours: our memory engine",
    )
    parser.add_argument(
        "--ours-command",
        metavar="COMMAND",
        help="measure another server in our place; {port} and {data} are filled in",
    )
    parser.add_argument(
        "--python",
        default=sys.executable,
        metavar="PATH",
        help="the Python that runs our server, with headwater installed (default: this one)",
    )
    parser.add_argument(
        "--baseline",
        metavar="PYTHON",
        help="measure another build of our server in the peer's place, such as one before a change:"
        " the Python that has it installed",
    )
    parser.add_argument("--only", metavar="NAMES", help="workloads to run, as in A1,R1")
    parser.add_argument("--seconds", type=float, help="length of one measurement (default: 3)")
    parser.add_argument("--warmup", type=float, help="load before each measurement (default: 1)")
    parser.add_argument("--repeats", type=int, help="runs per workload and server (default: 3)")
    parser.add_argument(
        "--subscribers", type=int, default=500, help="SSE subscribers in L1, L2 (default: 500)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one run of one second each, for a first look"
    )
    parser.add_argument(
        "--data-root",
        type=Path,
        metavar="DIR",
        help="where data folders are made (default: the system's temporary folder)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 if a target is missed or a run failed"
    )
    parser.add_argument("--list", action="store_true", help="list the workloads and exit")
    return parser


def _chosen(only: str | None) -> list[Workload]:
    if only is None:
        return list(WORKLOADS)
    by_name = {workload.name: workload for workload in WORKLOADS}
    names = [name.strip().upper() for name in only.split(",") if name.strip()]
    unknown = [name for name in names if name not in by_name]
    if unknown or not names:
        raise ValueError(f"no workload {', '.join(unknown)}: there are {', '.join(by_name)}")
    return [by_name[name] for name in names]


def _ours(arguments: argparse.Namespace) -> ServerSpec | None:
    if arguments.ours_command is not None:
        return custom(arguments.ours_command)
    return None if arguments.store == "none" else headwater(arguments.store, arguments.python)


def _effort(arguments: argparse.Namespace) -> Effort:
    seconds, warmup = (1.0, 0.5) if arguments.quick else (3.0, 1.0)
    return Effort(
        seconds=seconds if arguments.seconds is None else arguments.seconds,
        warmup=warmup if arguments.warmup is None else arguments.warmup,
        subscribers=arguments.subscribers,
    )


def _peer(arguments: argparse.Namespace, mode: str) -> ServerSpec | None:
    if arguments.baseline is not None:
        return headwater(arguments.store, arguments.baseline)
    if mode == "none":
        return None
    return headwater("memory", arguments.python) if mode == "ours" else peer(mode)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return the exit code."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.list:
        for workload in WORKLOADS:
            print(f"{workload.name}  {workload.title} ({workload.unit})")
        return 0
    if arguments.baseline is not None and (arguments.peer or arguments.store == "none"):
        parser.error("--baseline takes the peer's place: leave out --peer, and choose a store")
    peer_mode = arguments.peer or _PEER_FOR_STORE[arguments.store]
    repeats = arguments.repeats or (1 if arguments.quick else 3)
    try:
        workloads = _chosen(arguments.only)
        bench = Bench(
            ours=_ours(arguments),
            peer=_peer(arguments, peer_mode),
            effort=_effort(arguments),
            repeats=repeats,
            cores=Cores.choose(),
            data_root=arguments.data_root,
        )
    except (ValueError, ServerError) as error:
        parser.error(str(error))
    # Ending by an exception stops the server under test; the default would leave it behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    targets = {} if arguments.baseline else TARGETS.get((arguments.store, peer_mode), {})
    comparisons = bench.compare(workloads)

    if bench.cores.server is None:
        print("Only one core is usable: servers and generator shared it, the figures are low.")
    if arguments.store != "none" and arguments.ours_command is None:
        print(f"Our server ran on {version(arguments.python)}.")
    print(table(comparisons, targets))
    if arguments.json is not None:
        report = as_json(bench, comparisons, targets)
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    for note in noted(comparisons):
        print(f"Note: {note}.")
    return _conclude(failed(comparisons), missed(comparisons, targets), targets, arguments)


def _conclude(
    failures: list[str],
    misses: list[str],
    targets: Mapping[str, float],
    arguments: argparse.Namespace,
) -> int:
    for failure in failures:
        print(f"Failed: {failure.rstrip('.')}.")
    if misses:
        print(f"Targets missed: {', '.join(misses)}.")
    elif failures:
        print("Some workloads failed; no target was missed.")
    elif targets:
        print("All workloads ran and every target among them was met.")
    else:
        print("All workloads ran; there are no targets for this pair of servers.")
    return 1 if arguments.strict and (misses or failures) else 0


if __name__ == "__main__":
    sys.exit(main())
