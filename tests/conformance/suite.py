"""Runs the public conformance suite of npm against a server and reads its verdict."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.node import NODE

ROOT = Path(__file__).parents[2]
VITEST = ROOT / "node_modules" / "vitest" / "vitest.mjs"
SUITE = "tests/conformance/server.test.ts"
LONG_POLL_SECONDS = 1.5
"""What the server under test has to be started with, so that waiting for a timeout is short."""

_HANG_SECONDS = 60
"""Of one test of the suite."""


@dataclass(frozen=True)
class Verdict:
    """How the suite ended."""

    passed: int
    skipped: int
    failures: tuple[str, ...]


def run_suite(url: str, report: Path, *, subscriptions: bool = False) -> Verdict:
    """Run the whole suite against a server that listens at `url`."""
    assert VITEST.exists(), "the conformance suite is not installed: run 'make test'"
    result = subprocess.run(
        [
            *(NODE, str(VITEST), "run", SUITE, "--reporter=json", f"--outputFile={report}"),
            f"--testTimeout={_HANG_SECONDS * 1000}",  # 5 s by default, too few on a busy machine
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "CONFORMANCE_URL": url,
            "CONFORMANCE_LONG_POLL_MS": str(int(LONG_POLL_SECONDS * 1000)),
            "CONFORMANCE_SUBSCRIPTIONS": "1" if subscriptions else "0",
        },
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert report.exists(), f"the suite did not run:\n{result.stdout}\n{result.stderr}"
    document = json.loads(report.read_text())
    tests = [test for file in document["testResults"] for test in file["assertionResults"]]
    return Verdict(
        passed=sum(test["status"] == "passed" for test in tests),
        skipped=sum(test["status"] in {"skipped", "pending", "todo"} for test in tests),
        failures=tuple(
            f"{test['fullName']}: {' '.join(test['failureMessages'])[:500]}"
            for test in tests
            if test["status"] == "failed"
        ),
    )
