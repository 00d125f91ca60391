"""The Python of the page on runs does what the page says."""

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.test_pages import blocks


def test_the_program_of_the_page_runs(tmp_path: Path) -> None:
    (code,) = [text for language, text in blocks("docs/runs.md") if language == "python"]
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ.copy(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "PENDING 1\n"
    assert (tmp_path / "runs.db").exists()
