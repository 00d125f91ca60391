"""The state layer beside npm's `@durable-streams/state`: `python -m bench.state`.

Both read the same batches from a file, from bytes to state, in turns; each run is a process of its
own, and its memory is the most that the process has held. Reopening measures an SQLite file.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from headwater.state import MaterializedState, SqliteBackend
from headwater.state.backend import Saved, Work

ROOT = Path(__file__).parents[1]
BATCH = 500
TARGETS = {"rate": 1.5, "memory": 0.5, "reopen": 200.0}


def write_events(file: Path, count: int, keys: int) -> None:
    """Write batches as a Headwater server sends them."""
    chance = random.Random(1)
    lengths = []
    with file.open("wb") as out:
        for batch in range(count // BATCH):
            data = b"[" + b",\n".join(_event(chance, keys, batch) for _ in range(BATCH)) + b"]"
            lengths.append(out.write(data))
    Path(f"{file}.lengths").write_text(json.dumps(lengths))


def _event(chance: random.Random, keys: int, batch: int) -> bytes:
    number = chance.randrange(keys)
    kind = ("user", "message", "reaction")[number % 3]
    operation = chance.choices(("insert", "update", "delete"), (50, 45, 5))[0]
    event: dict[str, Any] = {"type": kind, "key": f"{kind}:{number}"}
    if operation != "delete":
        event["value"] = {
            "id": f"{kind}:{number}",
            "name": f"Name {number}",
            "email": f"user{number}@example.com",
            "n": batch,
            "active": number % 2 == 0,
            "tags": ["a", "b"],
        }
    stamp = f"2025-01-15T10:{batch // 60 % 60:02d}:{batch % 60:02d}Z"
    event["headers"] = {"operation": operation, "timestamp": stamp, "txid": f"tx-{batch}"}
    return json.dumps(event, separators=(",", ":")).encode()


def ours(file: Path) -> dict[str, float]:
    """Materialise the batches of a file in this process."""
    state = MaterializedState()
    seconds = 0.0
    events = 0
    with file.open("rb", buffering=0) as source:
        for length in json.loads(Path(f"{file}.lengths").read_text()):
            data = source.read(length)
            before = time.perf_counter()
            violations = state.apply_json(data)
            seconds += time.perf_counter() - before
            assert not violations
            events += BATCH
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"rate": events / seconds, "rss": most, "rows": len(state)}


def reopen(folder: Path, rows: int) -> float:
    """Measure the milliseconds from opening a database of so many rows to its first answers."""
    file = folder / "state.db"
    backend = SqliteBackend(file)
    backend.create_index("user", "name")
    for start in range(0, rows, 50_000):
        values: dict[str, bytes | None] = {
            f"user:{n}": b'{"id":"user:%d","name":"Name %d","n":%d}' % (n, n, n)
            for n in range(start, min(start + 50_000, rows))
        }
        saved = Saved(offset=str(start), complete=True)
        backend.commit(Work("keep", {"user": values}, "keep", {}, False, [], saved))
    backend.close()
    code = (
        "import sys,time;from headwater.client import Client;from headwater.state import StreamDB;"
        "s=Client().stream('state');t=time.perf_counter();db=StreamDB(s,backend=sys.argv[1]);"
        "assert db['user'].get('user:77');assert db['user'].where(name='Name 99');"
        "print((time.perf_counter()-t)*1000);db.close()"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True
    )
    return float(run.stdout)


def main() -> int:
    """Run the comparison and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.state", description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=400_000, help="how many entities there are")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the file to reopen")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--ours", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ours is not None:
        print(json.dumps(ours(arguments.ours)))
        return 0
    modules = os.environ.get("HEADWATER_BENCH_NODE_MODULES", str(ROOT / "node_modules"))
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "events"
        write_events(file, arguments.events, arguments.keys)
        commands = {
            "ours": [sys.executable, "-m", "bench.state", "--ours", str(file)],
            "peer": [
                "node",
                str(ROOT / "bench" / "state.mjs"),
                str(file),
                str(Path(modules).parent),
            ],
        }
        runs: dict[str, list[dict[str, float]]] = {"ours": [], "peer": []}
        for _ in range(arguments.repeats):
            for who, command in commands.items():
                done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
                runs[who].append(json.loads(done.stdout))
        milliseconds = reopen(Path(name), arguments.rows)
    assert len({run["rows"] for each in runs.values() for run in each}) == 1, "states differ"
    rate = {who: statistics.median(run["rate"] for run in each) for who, each in runs.items()}
    memory = {who: statistics.median(run["rss"] for run in each) for who, each in runs.items()}
    ratios = rate["ours"] / rate["peer"], memory["ours"] / memory["peer"]
    print(
        f"from bytes: {rate['ours']:,.0f} events/s, peer {rate['peer']:,.0f}: {ratios[0]:.2f} x "
        f"(target {TARGETS['rate']} x)"
    )
    print(
        f"memory: {memory['ours'] / 1e6:,.0f} MB, peer {memory['peer'] / 1e6:,.0f} MB: "
        f"{ratios[1]:.2f} x (target {TARGETS['memory']} x)"
    )
    print(
        f"reopen {arguments.rows:,} rows to first query: {milliseconds:.1f} ms "
        f"(target {TARGETS['reopen']:.0f} ms)"
    )
    met = (
        ratios[0] >= TARGETS["rate"]
        and ratios[1] <= TARGETS["memory"]
        and milliseconds < TARGETS["reopen"]
    )
    print("Every target was met." if met else "A target was missed.")
    return 0 if met or not arguments.strict else 1


if __name__ == "__main__":
    sys.exit(main())
