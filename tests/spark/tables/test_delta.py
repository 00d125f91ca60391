"""Delta's log stays small while a table is rewritten for days."""

import time
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.spark.tables import delta
from headwater.spark.tables.delta import DeltaLog
from headwater.spark.tables.log import DataFile

COMMITS = 50
"""After so many a checkpoint is written."""
LATE = 5
"""Of them, made just now; the others, an hour ago."""


def test_files_that_left_long_ago_are_not_named_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = DeltaLog(str(tmp_path))
    log.create(pa.schema([("a", pa.int64())]), 1)
    ago = SimpleNamespace(time=lambda: time.time() - 3600)
    monkeypatch.setattr(delta, "time", ago)
    for number in range(COMMITS):
        if number == COMMITS - LATE:
            monkeypatch.undo()
        seen = log.snapshot("writer")
        assert seen is not None
        file = DataFile(f"bucket-00000/{uuid4().hex}.parquet", 10, 1, 0)
        log.commit(seen, [file], seen.files, writer="writer", batch=number)
    (checkpoint,) = (tmp_path / "_delta_log").glob("*.checkpoint.parquet")
    left = [row["remove"] for row in pq.read_table(checkpoint).to_pylist() if row["remove"]]
    assert 0 < len(left) <= LATE
