"""A table of either format, on a disk and on object storage.

`make test` has each format and each kind of storage once, `make test-long` all four pairs.
"""

from pathlib import Path
from typing import Final

import pytest

from headwater.spark.tables import Table, open_table
from tests.support.effort import EFFORT

VARIANTS: Final = [("delta", "disk"), ("parquet", "object storage")]
OTHERS: Final = [("delta", "object storage"), ("parquet", "disk")]


@pytest.fixture(params=[*VARIANTS, *(OTHERS if EFFORT > 1 else [])], ids=" on ".join)
def variant(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The format of a table, and where it is kept."""
    name: tuple[str, str] = request.param
    return name


@pytest.fixture
def kind(variant: tuple[str, str]) -> str:
    return variant[0]


@pytest.fixture
def folder(variant: tuple[str, str], request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if variant[1] == "disk":
        return str(tmp_path / "table")
    return f"{request.getfixturevalue('lake')}/table"


@pytest.fixture
def made(kind: str, folder: str) -> Table:
    return open_table(folder, kind, buckets=4)
