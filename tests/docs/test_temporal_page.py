"""The programs of the Temporal page do what the page says."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "temporal.md").read_text()
RECORD = ROOT / "tests" / "runs" / "conductor_records" / "completed.json"
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
OUTPUTS = re.findall(r"^```output\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_a_run_with_temporal_goes_from_start_to_snapshot(
    temporal_address: str, tmp_path: Path
) -> None:
    program = tmp_path / "nightly.py"
    assert "localhost:7233" in PROGRAMS[0]
    program.write_text(PROGRAMS[0].replace("localhost:7233", temporal_address))
    done = subprocess.run(
        [sys.executable, program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, last = OUTPUTS[:2]
    assert done.stdout.startswith(first)
    assert done.stdout.endswith(last)
    middle = sorted(done.stdout.removeprefix(first).removesuffix(last).split("\n"))
    assert [line for line in middle if line] == [
        "RunCompleted (run)",
        "StepCompleted extract",
        "StepCompleted load",
        "StepStarted extract",
        "StepStarted load",
    ]


def test_a_record_of_conductor_is_read_twice_and_counts_once(tmp_path: Path) -> None:
    program = tmp_path / "poll.py"
    program.write_text(
        f"{PROGRAMS[1]}\nimport pathlib, sys\n"
        "asyncio.run(main(pathlib.Path(sys.argv[1]).read_bytes()))\n"
    )
    done = subprocess.run(
        [sys.executable, program, RECORD],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == OUTPUTS[2]
