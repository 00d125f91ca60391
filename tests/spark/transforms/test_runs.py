"""Tables of runs and steps are what `headwater.runs` makes of the same events."""

from datetime import timedelta
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from headwater.runs import StoredEvent, project
from headwater.spark.transforms.run_changes import run_messages, step_key, step_messages
from headwater.spark.transforms.run_tables import RUNS_ARROW, STEPS_ARROW
from headwater.spark.transforms.runs import (
    FOR_GOOD,
    merge_runs,
    merge_steps,
    project_runs,
    project_steps,
    set_aside,
    steps_of,
)
from headwater.state import MaterializedState
from tests.spark.run_logs import logs, rows_of, snapshots
from tests.suites.run_steps import (
    as_stored,
    at,
    event,
    started,
    step_completed,
    step_failed,
    step_started,
)
from tests.support.effort import examples

LOG = as_stored(
    [
        started(),
        step_started("a"),
        step_failed("a"),
        step_started("a", 2),
        step_completed("a", 2),
        step_started("b"),
        step_completed("b"),
        event("RunCompleted", seconds=9),
    ]
)


class Tables:
    """Both tables, merged as a job does."""

    def __init__(self, grace: timedelta = FOR_GOOD) -> None:
        self.runs = RUNS_ARROW.empty_table()
        self.steps = STEPS_ARROW.empty_table()
        self.grace = grace
        self.batch = -1
        self.state = MaterializedState()
        self.messages = 0

    def take(self, events: list[StoredEvent], seconds: float = 0) -> None:
        self.batch += 1
        self.runs = merge_runs(
            self.runs, rows_of(events), batch=str(self.batch), now=at(seconds), grace=self.grace
        ).kept
        changed = self.changed(self.runs)
        steps = pa.Table.from_batches(steps_of(changed.to_batches()), STEPS_ARROW)
        # A merge may get the rows of a batch in several parts.
        self.steps = merge_steps(self.steps, steps.slice(0, 1)).kept
        self.steps = merge_steps(self.steps, steps.slice(1)).kept
        for written in (
            *run_messages(changed.to_batches()),
            *step_messages(self.changed(self.steps).to_batches()),
        ):
            values = written.column("value").to_pylist()
            self.messages += len(values)
            assert self.state.apply_json(f"[{','.join(values)}]".encode()) == []

    def changed(self, table: pa.Table) -> pa.Table:
        return table.filter(pa.compute.equal(table["_batch"], str(self.batch)))

    def row(self) -> dict[str, object]:
        (row,) = self.runs.to_pylist()
        return dict(row)


@settings(deadline=None)
@given(logs(), st.randoms(use_true_random=False))
def test_any_order_duplication_and_batching_gives_the_same_tables(
    told: dict[str, list[StoredEvent]], chance: Random
) -> None:
    events = [each for log in told.values() for each in log]
    delivered = events + chance.choices(events, k=len(events) // 2)
    chance.shuffle(delivered)
    tables = Tables()
    while delivered:
        size = chance.randint(1, len(delivered))
        tables.take(delivered[:size])
        delivered = delivered[size:]
    wanted = {run_id: project(run_id, log) for run_id, log in told.items()}
    assert snapshots(tables.runs, tables.steps) == wanted
    # What was written back makes the same state, an entity for each run and step.
    assert {key: value["lastEventSeq"] for key, value in tables.state.get_type("run").items()} == {
        run_id: run.last_event_seq for run_id, run in wanted.items()
    }
    assert {key: value["status"] for key, value in tables.state.get_type("step").items()} == {
        step_key(run_id, step.step_id): step.status
        for run_id, run in wanted.items()
        for step in run.steps
    }
    # And what was seen before changes nothing, and tells nothing.
    before, count = (tables.runs, tables.steps), tables.messages
    tables.take(events)
    assert (sorted_rows(before[0]), sorted_rows(before[1])) == (
        sorted_rows(tables.runs),
        sorted_rows(tables.steps),
    )
    assert tables.messages == count


def sorted_rows(table: pa.Table) -> list[dict[str, object]]:
    return sorted(table.to_pylist(), key=lambda row: (row["run_id"], row.get("step_id")))


def test_a_late_event_is_put_in_its_place() -> None:
    tables = Tables()
    tables.take([each for each in LOG if each.run_seq != 4])
    row = tables.row()
    assert (row["health"], row["contiguous_seq"], row["last_event_seq"]) == ("STALE", 3, 8)
    assert tables.steps.to_pylist()[0]["status"] == "FAILED"
    tables.take(LOG[3:4])
    row = tables.row()
    assert (row["health"], row["contiguous_seq"], row["last_event_seq"]) == ("LIVE", 8, 8)
    assert snapshots(tables.runs, tables.steps) == {"run-001": project("run-001", LOG)}
    # Nothing is held once there is no gap.
    assert '"held"' not in str(row["_state"])


def test_a_gap_is_waited_for_as_long_as_the_grace_says() -> None:
    tables = Tables(timedelta(seconds=5))
    tables.take([LOG[0], LOG[2]], seconds=0)
    tables.take([LOG[4]], seconds=4)
    assert tables.row()["contiguous_seq"] == 1
    tables.take([LOG[5]], seconds=5)
    row = tables.row()
    # 2 was missed at 0 s and is given up; 4 was missed at 4 s, and is still waited for.
    assert (row["health"], row["contiguous_seq"]) == ("STALE", 3)
    tables.take([LOG[1], LOG[3]], seconds=6)
    row = tables.row()
    assert (row["health"], row["contiguous_seq"], row["skipped_events"]) == ("LIVE", 6, 1)
    tables.take([LOG[1]], seconds=7)
    assert tables.row()["skipped_events"] == 1
    wanted = project("run-001", [each for each in LOG[:6] if each.run_seq != 2])
    assert snapshots(tables.runs, tables.steps) == {"run-001": wanted}


def test_what_no_column_has_room_for_is_null_and_goes_on_as_it_was_written() -> None:
    began, ended = "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"
    artifact = {"uri": "u", "kind": "k", "sizeBytes": 2**63, "expiresAt": ended}
    log = as_stored(
        [
            started(),
            event("StepStarted", {"startedAt": began}, step="a"),
            event("StepCompleted", {"completedAt": ended, "artifactRefs": [artifact]}, step="a"),
            event("RunCompleted", {"completedAt": ended}),
            event("Unknown"),
        ]
    )
    tables = Tables()
    tables.take(log[:4])
    tables.take(log[4:])
    run, (step,) = tables.row(), tables.steps.to_pylist()
    nothing = {"uri": "u", "kind": "k", "sha256": None, "size_bytes": None, "expires_at": None}
    assert (run["status"], run["last_event_seq"], run["completed_at"]) == ("COMPLETED", 5, None)
    assert (step["status"], step["started_at"], step["completed_at"]) == ("SUCCESS", None, None)
    assert run["artifacts"] == step["artifacts"] == [nothing]
    told = tables.state.get("run", "run-001")["artifacts"]
    assert [each["sizeBytes"] for each in told] == [2**63]


def test_only_what_has_changed_is_told() -> None:
    tables = Tables()
    tables.take(LOG[:3])
    assert tables.messages == 2
    tables.take(LOG[3:6])
    assert tables.messages == 5  # the run, a again, b
    tables.take(LOG[6:7])
    assert tables.messages == 7  # a is as it was
    tables.take(LOG)
    tables.take(LOG)
    assert tables.messages == 8  # RunCompleted, once


def test_rows_say_when_they_were_projected() -> None:
    tables = Tables()
    tables.take(LOG, seconds=30)
    row = tables.row()
    assert (row["persisted_at"], row["projected_at"]) == (at(9), at(30))


@settings(max_examples=examples(3, 20), deadline=None)
@given(logs(), st.randoms(use_true_random=False))
def test_spark_gives_what_plain_python_gives(
    spark: SparkSession, told: dict[str, list[StoredEvent]], chance: Random
) -> None:
    events = [each for log in told.values() for each in log]
    delivered = events + chance.choices(events, k=len(events) // 2)
    chance.shuffle(delivered)
    df = spark.createDataFrame(rows_of(delivered)).repartition(3)
    runs = project_runs(df, now=at(0)).cache()
    steps = project_steps(runs)
    wanted = {run_id: project(run_id, log) for run_id, log in told.items()}
    assert snapshots(runs.toArrow(), steps.toArrow()) == wanted


def test_what_has_no_number_is_refused_with_its_place(spark: SparkSession) -> None:
    table = rows_of(LOG)
    at_seq = table.schema.get_field_index("run_seq")
    seqs = pa.array([1, 2, None, 4, 5, 6, 7, 8], pa.int64())
    df = spark.createDataFrame(table.set_column(at_seq, table.schema.field(at_seq), seqs))
    with pytest.raises(PySparkException, match=r"00000002.*no runSeq"):
        project_runs(df, now=at(0)).collect()


def test_what_has_no_number_is_set_aside_where_there_is_a_column_for_it(
    spark: SparkSession,
) -> None:
    df = spark.createDataFrame(rows_of(LOG)).withColumn("_corrupt", f.lit(None).cast("string"))
    numbered = f.when(f.col("run_seq") != len(LOG), f.col("run_seq"))
    df = df.withColumn("run_seq", numbered)
    (run,) = project_runs(df, now=at(0)).collect()
    assert run["last_event_seq"] == len(LOG) - 1
    (aside,) = set_aside(df).collect()
    assert aside["offset"] == rows_of(LOG).column("offset")[-1].as_py()
    assert aside["reason"].startswith("it has no runSeq")


@pytest.mark.parametrize("name", ["emitted_at", "persisted_at"])
def test_what_has_no_date_is_refused_with_its_place(spark: SparkSession, name: str) -> None:
    df = spark.createDataFrame(rows_of(LOG))
    never = f.when(f.col("run_seq") == 3, f.timestamp_micros(f.lit(-(10**17)))).otherwise(
        f.col(name)
    )
    with pytest.raises(PySparkException, match=r"00000002.*not of the years 1 to 9999"):
        project_runs(df.withColumn(name, never), now=at(0)).collect()
