"""A table of either format, on a disk and on object storage."""

from pathlib import Path

import pytest

from headwater.spark.tables import Table, open_table


@pytest.fixture(params=["delta", "parquet"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["disk", "object storage"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "disk":
        return str(tmp_path / "table")
    return f"{request.getfixturevalue('lake')}/table"


@pytest.fixture
def made(kind: str, folder: str) -> Table:
    return open_table(folder, kind, buckets=4)
