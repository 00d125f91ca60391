"""`make demo`, without its installation."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
from deltalake import DeltaTable

from demo.feeding import RUNS, run_events, shop_changes
from tests.spark.patience import PATIENCE

pytestmark = pytest.mark.starts_spark

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


def test_who_ends_the_demonstration_ends_all_of_it(tmp_path: Path) -> None:
    told = tmp_path / "told.txt"
    with told.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "demo", str(tmp_path / "demo")],
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        until = time.monotonic() + 90
        while b"Starting Spark" not in told.read_bytes():
            assert process.poll() is None, told.read_text()
            assert time.monotonic() < until
            time.sleep(0.05)
        assert b"3. Spark runs" in told.read_bytes()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(children) == 2  # the server and the pipelines
        process.terminate()
        assert process.wait(PATIENCE) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait()
    assert [pid for pid in children if Path(f"/proc/{pid}").exists()] == []
