"""The walks of the page on architecture name files and functions that exist."""

import re
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

_PAGE: Final = Path(__file__).parents[2] / "docs" / "architecture.md"
_STEP: Final = re.compile(r"^\| \d+ \| `([\w/]+)\.py`, (`.+?`) \|", re.MULTILINE)
_STEPS: Final = [
    (file, name)
    for file, names in _STEP.findall(_PAGE.read_text())
    for name in re.findall(r"`([\w.]+)`", names)
]


def test_every_row_of_a_walk_is_checked() -> None:
    rows = [line for line in _PAGE.read_text().splitlines() if re.match(r"\| \d", line)]
    assert len(rows) == len({*_STEP.findall(_PAGE.read_text())}) > 30


@pytest.mark.parametrize(("file", "name"), _STEPS)
def test_a_step_of_a_walk_exists(file: str, name: str) -> None:
    module: object = import_module(f"headwater.{file.replace('/', '.')}")
    assert callable(reduce(getattr, name.split("."), module))
