"""The Makefile's own environment, with a Python that can't make it."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HALF = """#!/bin/sh
[ "$1" = -c ] && exit 0
mkdir -p .venv/bin && touch .venv/bin/python
exit 1
"""


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("#!/bin/sh\nexit 1\n", "needs Python 3.11 or newer, which ./python is not."),
        (HALF, "-m venv"),
    ],
)
def test_an_environment_that_can_not_be_made_is_told_and_not_left(
    tmp_path: Path, python: str, words: str
) -> None:
    shutil.copyfile(ROOT / "Makefile", tmp_path / "Makefile")
    (tmp_path / "python").write_text(python)
    (tmp_path / "python").chmod(0o755)
    done = subprocess.run(
        ["make", ".venv/bin/python", "PYTHON=./python"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert words in done.stdout
    assert not (tmp_path / ".venv").exists()
