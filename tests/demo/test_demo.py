"""`make demo`, without its installation."""

import subprocess
import sys
from pathlib import Path
from random import Random

from deltalake import DeltaTable

from demo.feeding import RUNS, run_events, shop_changes

ROOT = Path(__file__).parents[2]


def test_the_story_has_everything_that_it_promises() -> None:

    operations = {(each.type, each.headers.operation) for each in shop_changes("x", Random(1))}
    assert operations == {
        *(("customer", "insert"), ("customer", "update"), ("customer", "delete")),
        *(("order", "insert"), ("order", "update"), ("order", "delete")),
    }
    ends = [list(run_events("r", number, Random(1)))[-1].event_type for number in range(RUNS)]
    assert set(ends) == {"RunCompleted", "RunFailed", "StepStarted"}


def test_the_demonstration_shows_tables_and_stops(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "demo", str(tmp_path / "demo")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "tables/shop/customer (" in done.stdout
    assert f"tables/workflows/runs ({RUNS} rows)" in done.stdout
    assert "stream alerts/large-orders (" in done.stdout
    assert f"Everything is in {tmp_path}/demo" in done.stdout
    customers = DeltaTable(tmp_path / "demo" / "tables" / "shop" / "customer").to_pyarrow_table()
    assert 0 < customers.num_rows < 240  # some have left
    log = (tmp_path / "demo" / "server.log").read_text()
    assert "Traceback" not in log
