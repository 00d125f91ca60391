"""Checkpoint folders: how far, whose, and one process at a time."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from msgspec import structs

from headwater.errors import CheckpointTaken, CheckpointUnreadable
from headwater.spark.pipelines.checkpoints import (
    Owner,
    held,
    holder,
    last_committed,
    mismatches,
    own,
    owner,
)
from headwater.spark.pipelines.values import (
    Materialize,
    Pipeline,
    Source,
    StreamTarget,
    TableFormat,
    Transform,
)

PIPELINE: Final = Pipeline(
    name="x",
    source=Source(url="http://one", stream="in", token="secret"),
    transform=(Transform(sql="SELECT 1"),),
    target=StreamTarget(url="http://one", stream="out", token="secret"),
)
BEFORE: Final = Owner.of(PIPELINE)


def log(folder: Path, batch: int, offsets: str, *, committed: bool) -> None:
    for name in ("offsets", "commits"):
        (folder / name).mkdir(exist_ok=True)
    text = f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":{batch + 1}500}}\n{offsets}'
    (folder / "offsets" / str(batch)).write_text(text)
    (folder / "offsets" / f".{batch}.crc").write_bytes(b"\0")
    if committed:
        (folder / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def test_the_last_committed_batch_says_where_streams_go_on(tmp_path: Path) -> None:
    assert last_committed(tmp_path) is None
    for batch in (8, 9, 10):
        log(tmp_path, batch, f'{{"a":"0_{batch}"}}\n-\n{{"b":"1_{batch}"}}', committed=batch < 10)
    found = last_committed(tmp_path)
    assert found is not None
    assert (found.batch, found.began) == (9, 10.5)
    assert found.offsets == {"a": "0_9", "b": "1_9"}
    assert found.is_next_begun


@pytest.mark.parametrize("text", ["", "v1", "v1\nno json\n{}", 'x\n{}\n{"a":"1"}', "v1\n{}\n[1]"])
def test_a_damaged_checkpoint_is_told(tmp_path: Path, text: str) -> None:
    log(tmp_path, 0, "{}", committed=True)
    (tmp_path / "offsets" / "0").write_text(text)
    with pytest.raises(CheckpointUnreadable, match=r"offsets/0' can't be read as part of"):
        last_committed(tmp_path)


def test_a_commit_without_its_offsets_is_told(tmp_path: Path) -> None:
    log(tmp_path, 0, "{}", committed=True)
    (tmp_path / "offsets" / "0").unlink()
    with pytest.raises(CheckpointUnreadable, match="No such file"):
        last_committed(tmp_path)


def test_a_checkpoint_knows_its_pipeline_but_no_secret(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "c"
    assert owner(folder) is None
    own(folder, PIPELINE)
    assert owner(folder) == BEFORE
    assert "secret" not in (folder / "headwater-pipeline.json").read_text()
    assert mismatches(BEFORE, BEFORE) == []


def test_a_checkpoint_knows_what_is_read_from_where_on(tmp_path: Path) -> None:
    options = {"STARTINGOFFSETS": "latest", "waitSeconds": 2}
    source = structs.replace(PIPELINE.source, stream=("a/*", "b"), options=options)
    own(tmp_path, structs.replace(PIPELINE, source=source))
    found = owner(tmp_path)
    assert found is not None
    assert found.source.streams == ("a/*", "b")
    assert found.source.options == {"startingOffsets": "latest"}
    assert mismatches(BEFORE, found) == []


@pytest.mark.parametrize(
    ("now", "told", "is_warning"),
    [
        (Owner("x", "table", "out", "http://one", BEFORE.steps), "belongs to a pipeline", False),
        (Owner("x", "stream", "to", "http://one", BEFORE.steps), "was written for out", False),
        (Owner("x", "stream", "out", "http://two", BEFORE.steps), "was written with the", True),
        (Owner("x", "stream", "out", "http://one", []), "the transforms have changed", True),
        (Owner("y", "stream", "out", "http://one", BEFORE.steps), "", None),
    ],
)
def test_what_has_changed_under_a_checkpoint_is_told(
    now: Owner, told: str, is_warning: bool | None
) -> None:
    found = mismatches(BEFORE, now)
    assert [problem.is_warning for problem in found] == ([] if is_warning is None else [is_warning])
    assert all(problem.what.startswith(told) for problem in found)


def test_another_stream_is_published_to_with_another_state() -> None:
    before = Owner("x", "publish", "out", "http://one")
    (problem,) = mismatches(before, Owner("x", "publish", "to", "http://one"))
    # It would miss nothing: what was published before is read from the stream itself.
    assert problem.what == (
        "keeps what was read of the stream out, not of to: set another checkpoint (--state of the "
        "command) for that one, or set the target back"
    )
    assert not problem.is_warning


def tables(table_format: TableFormat) -> Pipeline:
    target = Materialize(tables="/tables", format=table_format)
    return Pipeline(name="x", source=PIPELINE.source, target=target)


def test_another_format_under_a_checkpoint_is_refused(tmp_path: Path) -> None:
    own(tmp_path, tables("delta"))
    before = owner(tmp_path)
    assert before is not None
    (problem,) = mismatches(before, Owner.of(tables("parquet")))
    assert problem.what.startswith("was written for tables of the format delta, not parquet")
    assert not problem.is_warning
    assert mismatches(before, Owner.of(tables("delta"))) == []


def test_a_checkpoint_that_says_no_format_goes_on_and_says_none(tmp_path: Path) -> None:
    older = Owner("x", "materialize", "/tables", "http://one")
    (tmp_path / "headwater-pipeline.json").write_text(
        '{"name":"x","kind":"materialize","place":"/tables","url":"http://one","steps":[]}'
    )
    for table_format in ("parquet", "delta"):
        pipeline = tables(table_format)
        assert mismatches(older, Owner.of(pipeline)) == []
        own(tmp_path, pipeline)  # which of them is right is known by the tables alone
        assert owner(tmp_path) == structs.replace(older, streams=["in"])


def test_one_process_at_a_time_runs_on_a_checkpoint(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path\n"
        "from headwater.spark.pipelines.checkpoints import held\n"
        "with held(Path(sys.argv[1])):\n  print('held', flush=True); time.sleep(60)\n"
    )
    assert holder(tmp_path) is None
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        assert holder(tmp_path) == str(other.pid)
        with pytest.raises(CheckpointTaken, match=f"in use by process {other.pid}"):
            held(tmp_path).__enter__()
        other.kill()
    assert holder(tmp_path) is None
    with held(tmp_path):
        assert holder(tmp_path) is not None
