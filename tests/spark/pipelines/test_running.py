"""Pipelines on a real Spark, over a real server."""

import json
import urllib.request
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headwater.client import Client
from headwater.errors import BadPipeline, CheckpointTaken
from headwater.spark.pipelines import Meter, running, status_of
from headwater.spark.pipelines.checkpoints import held
from headwater.spark.pipelines.metrics import MetricsFile
from headwater.spark.pipelines.metrics_server import serving
from headwater.spark.pipelines.metrics_stream import appending
from headwater.spark.tables import open_table
from tests.spark.pipelines.conftest import Pipelines, wait_until

ROWS = b'[{"n":1,"word":"a"},{"n":2,"word":"b"},{"n":3,"word":"c"}]'
SELDOM = "every 5 minutes"
"""Longer than anything is waited for."""


def test_sql_and_python_come_one_after_another(pipelines: Pipelines) -> None:
    (pipelines.folder / "shouting.py").write_text(
        "from pyspark.sql import functions as f\n"
        "@f.udf('string')\n"
        "def loud(word):\n    return word.upper() + suffix()\n"
        "def suffix():\n    return '!'\n"
        "def shout(rows):\n    return rows.withColumn('word', loud('word'))\n"
    )
    pipelines.feed("one", ROWS)
    pipeline = pipelines.make(
        transform=[
            {"sql": "SELECT n * 10 AS n, word FROM source WHERE n > 1", "name": "tens"},
            {"python": "shouting.py:shout"},
            {"sql": "SELECT step2.n, step2.word FROM step2 WHERE step2.n < 30"},
        ]
    )
    outcome = pipelines.run_one(pipeline)
    assert pipelines.items() == [{"n": 20, "word": "B!"}]
    assert (outcome.figures.rows, outcome.figures.batches) == (3, 1)
    assert outcome.figures.bytes == outcome.total_bytes == 60


def test_a_pipeline_goes_on_where_it_was(pipelines: Pipelines) -> None:
    pipelines.feed("one", ROWS)
    pipeline = pipelines.make(transform=[{"sql": "SELECT n FROM source"}])
    pipelines.run_one(pipeline)
    before = status_of(pipeline)
    assert (before.lag_bytes, before.runs_in) == (0, None)
    assert before.committed is not None
    pipelines.feed("one", b'[{"n":4}]')
    pipelines.feed("two", b'[{"n":5}]')
    behind = status_of(pipeline)
    assert {lag.path.rpartition("/")[2]: lag.bytes for lag in behind.streams} == {
        "one": 9,
        "two": 9,
    }
    outcome = pipelines.run_one(pipeline)
    assert outcome.figures.rows == 2
    assert outcome.total_bytes == outcome.figures.bytes == behind.lag_bytes
    assert sorted(item["n"] for item in pipelines.items()) == [1, 2, 3, 4, 5]
    after = status_of(pipeline)
    assert after.lag_bytes == 0
    assert after.committed is not None
    assert after.committed.batch > before.committed.batch
    pipelines.client.stream(f"{pipelines.room}/in/two").delete()
    assert status_of(pipeline).gone == (f"{pipelines.room}/in/two",)
    pipelines.feed("two", b'[{"n":6},{"n":7}]')  # longer than the one that was read
    again = status_of(pipeline)
    assert (again.gone, again.lag_bytes) == ((), 18)


def test_an_aggregation_updates_a_stream(pipelines: Pipelines) -> None:
    pipelines.feed("one", b'[{"n":1,"word":"a"},{"n":2,"word":"a"}]')
    target = {"kind": "stream", "stream": f"{pipelines.room}/out", "output": "update"}
    sql = "SELECT word, sum(n) AS total FROM source GROUP BY word"
    pipeline = pipelines.make(transform=[{"sql": sql}], target=target)
    pipelines.run_one(pipeline)
    pipelines.feed("one", b'[{"n":4,"word":"a"}]')
    pipelines.run_one(pipeline)
    assert pipelines.items() == [{"word": "a", "total": 3}, {"word": "a", "total": 7}]


@pytest.mark.parametrize("table_format", ["delta", "parquet"])
def test_rows_are_added_to_a_table_once(
    pipelines: Pipelines, spark: SparkSession, table_format: str
) -> None:
    pipelines.feed("one", ROWS)
    target = {"kind": "table", "folder": "tables/words", "format": table_format}
    pipeline = pipelines.make(target=target)
    pipelines.run_one(pipeline)
    # As a crash right behind the commit of the table leaves it: Spark does the batch again.
    (Path(pipeline.checkpoint) / "commits" / "0").unlink()
    pipelines.feed("one", b'[{"n":4,"word":"d"}]')
    pipelines.run_one(pipeline)
    rows = open_table(f"{pipelines.folder}/tables/words", table_format).read(spark)
    assert rows is not None
    assert sorted(row.word for row in rows.collect()) == ["a", "b", "c", "d"]


def test_a_table_that_is_gone_is_not_begun_anew(pipelines: Pipelines, spark: SparkSession) -> None:
    pipelines.feed("one", ROWS)
    pipeline = pipelines.make(target={"kind": "table", "folder": "tables/words"})
    pipelines.run_one(pipeline)
    table, aside = pipelines.folder / "tables" / "words", pipelines.folder / "aside"
    table.rename(aside)
    pipelines.feed("one", b'[{"n":4,"word":"d"}]')
    (outcome,) = pipelines.run(pipeline)
    assert outcome.how == "failed"
    assert "does not hold" in str(outcome.reason)
    assert not table.exists()
    aside.rename(table)
    pipelines.run_one(pipeline)
    rows = open_table(str(table)).read(spark)
    assert rows is not None
    assert sorted(row.word for row in rows.collect()) == ["a", "b", "c", "d"]


def test_pipelines_run_side_by_side_until_they_are_stopped(pipelines: Pipelines) -> None:
    pipelines.feed("one", ROWS)
    first = pipelines.make(trigger="default", transform=[{"sql": "SELECT n FROM source"}])
    second = pipelines.make(
        trigger="every 0.1 seconds",
        transform=[{"sql": "SELECT word FROM source"}],
        target={"kind": "stream", "stream": f"{pipelines.room}/words"},
    )
    meter = Meter()
    with (
        serving(0, meter.text) as url,
        running(pipelines.spark, [first, second], meter) as runner,
    ):
        wait_until(lambda: all(it.figures.rows == 3 for it in runner.outcomes()))
        assert status_of(first).runs_in is not None
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read().decode()
        assert f'headwater_pipeline_up{{pipeline="{first.name}"}} 1\n' in text
        assert f'headwater_pipeline_rows_total{{pipeline="{second.name}"}} 3\n' in text
        runner.ask_to_stop()
        wait_until(lambda: not runner.look())
        assert [it.how for it in runner.outcomes()] == ["stopped", "stopped"]
        assert f'headwater_pipeline_up{{pipeline="{first.name}"}} 0\n' in meter.text()
    assert [item["word"] for item in pipelines.items("words")] == ["a", "b", "c"]


def test_where_one_fails_the_others_are_stopped_and_it_is_told_why(pipelines: Pipelines) -> None:
    pipelines.feed("one", b'[{"n":"no number"}]')
    failing = pipelines.make()
    good = pipelines.make(
        trigger="default",
        source={"schema": "word string"},
        target={"kind": "stream", "stream": f"{pipelines.room}/words"},
    )
    failed, stopped = pipelines.run(failing, good)
    assert (failed.how, stopped.how) == ("failed", "stopped")
    assert failed.reason is not None
    assert failed.reason.startswith(f"The message of '{pipelines.room}/in/one' that ends at offset")
    assert "\n" not in failed.reason


def test_a_stop_between_two_triggers_does_not_wait_for_the_next(pipelines: Pipelines) -> None:
    pipelines.feed("one", ROWS)
    seldom = pipelines.make(trigger=SELDOM)
    with running(pipelines.spark, [seldom], Meter()) as runner:
        wait_until(lambda: runner.outcomes()[0].figures.rows == 3)
        runner.ask_to_stop()
        wait_until(lambda: not runner.look())
        (outcome,) = runner.outcomes()
    assert (outcome.how, outcome.figures.batches) == ("stopped", 1)


def test_a_failure_stops_those_that_are_between_two_triggers(pipelines: Pipelines) -> None:
    pipelines.feed("one", ROWS)
    pipelines.feed("two", ROWS)
    seldom = pipelines.make(trigger=SELDOM, source={"stream": f"{pipelines.room}/in/one"})
    failing = pipelines.make(
        trigger="default",
        source={"stream": f"{pipelines.room}/in/two"},
        target={"kind": "stream", "stream": f"{pipelines.room}/words"},
    )
    with running(pipelines.spark, [seldom, failing], Meter()) as runner:
        wait_until(lambda: all(it.figures.rows == 3 for it in runner.outcomes()))
        pipelines.feed("two", b'[{"n":"no number"}]')
        wait_until(lambda: not runner.look())
        stopped, failed = runner.outcomes()
    assert (stopped.how, failed.how) == ("stopped", "failed")
    assert "in/two' that ends at offset" in str(failed.reason)


def test_a_worker_that_dies_is_told(pipelines: Pipelines) -> None:
    (pipelines.folder / "dying.py").write_text(
        "import os\nfrom pyspark.sql import functions as f\n"
        "@f.udf('long')\ndef die(n):\n    os._exit(9)\n"
        "def dying(rows):\n    return rows.withColumn('n', die('n'))\n"
    )
    pipelines.feed("one", ROWS)
    target = {"kind": "table", "folder": "tables/words"}
    pipeline = pipelines.make(transform=[{"python": "dying.py:dying"}], target=target)
    (outcome,) = pipelines.run(pipeline)
    assert outcome.how == "failed"
    assert str(outcome.reason).startswith("Python worker exited unexpectedly (crashed).")


def test_what_spark_refuses_at_the_start_is_one_line(pipelines: Pipelines) -> None:
    pipelines.feed("one", ROWS)
    wrong = pipelines.make(transform=[{"sql": "SELECT m FROM source"}])
    with pytest.raises(BadPipeline, match=r"(?s)can't run:.*query: .*`m` cannot be resolved"):
        pipelines.run(wrong)


def test_a_transform_that_raises_at_the_start_is_one_line(pipelines: Pipelines) -> None:
    (pipelines.folder / "wrong.py").write_text("def wrong(rows):\n    return {}['total']\n")
    pipelines.feed("one", ROWS)
    wrong = pipelines.make(transform=[{"python": "wrong.py:wrong"}])
    with pytest.raises(BadPipeline, match=r"(?s)can't run:.*query: KeyError: 'total'\.$"):
        pipelines.run(wrong)


def test_two_processes_never_run_on_one_checkpoint(pipelines: Pipelines) -> None:
    pipeline = pipelines.make()
    with held(Path(pipeline.checkpoint)), pytest.raises(CheckpointTaken):
        pipelines.run(pipeline)


def test_figures_go_to_a_file_and_a_stream(pipelines: Pipelines, client: Client) -> None:
    pipelines.feed("one", ROWS)
    pipeline = pipelines.make(source={"options": {"maxBytesPerTrigger": 1}})
    file = pipelines.folder / "deep" / "figures.prom"
    with appending(client, f"{pipelines.room}/metrics") as metrics:
        meter = Meter(MetricsFile(file), metrics)
        outcome = pipelines.run_one(pipeline, meter)
    assert outcome.figures.batches == 3
    told = pipelines.items("metrics")
    assert [(one["batch"], one["rows"], one["running"]) for one in told] == [
        (0, 1, True),
        (1, 1, True),
        (2, 1, True),
        (2, 1, False),
    ]
    assert [one["lagBytes"] for one in told[:3]] == [40, 20, 0]
    assert metrics.lost == 0
    assert f'rows_total{{pipeline="{pipeline.name}"}} 3\n' in file.read_text()
    assert json.dumps(told[0]["phases"]).count("addBatch") == 1


def test_the_lag_grows_while_a_batch_runs(pipelines: Pipelines) -> None:
    begun, seen = pipelines.folder / "begun", pipelines.folder / "seen"
    (pipelines.folder / "slow.py").write_text(
        "import pathlib, time\nfrom pyspark.sql import functions as f\n"
        "@f.udf('long')\n"
        f"def slow(n):\n    pathlib.Path('{begun}').touch()\n"
        f"    while not pathlib.Path('{seen}').exists():\n        time.sleep(0.01)\n    return n\n"
        "def slowly(rows):\n    return rows.withColumn('n', slow('n'))\n"
    )
    pipelines.feed("one", b'[{"n":1}]')
    pipeline = pipelines.make(transform=[{"python": "slow.py:slowly"}])
    with running(pipelines.spark, [pipeline], Meter()) as runner:
        wait_until(begun.exists)
        pipelines.feed("one", ROWS)
        wait_until(lambda: runner.outcomes()[0].figures.lag_bytes == 9 + 60)
        seen.touch()
        wait_until(lambda: not runner.look())
        (outcome,) = runner.outcomes()
    assert (outcome.how, outcome.figures.rows) == ("done", 1)
    assert outcome.figures.lag_bytes == 60


def test_figures_that_a_server_does_not_take_are_counted(pipelines: Pipelines) -> None:
    pipelines.feed("one", ROWS)
    closed = pipelines.client.stream(f"{pipelines.room}/metrics")
    closed.create("application/json")
    closed.close()
    with appending(pipelines.client, f"{pipelines.room}/metrics") as metrics:
        pipelines.run_one(pipelines.make(), Meter(metrics))
    assert metrics.lost == 2


def test_rows_go_to_files_that_spark_writes_itself(pipelines: Pipelines) -> None:
    pipelines.feed("one", ROWS)
    target = {"kind": "spark", "format": "parquet", "folder": "files", "partition_by": ["word"]}
    pipeline = pipelines.make(target=target)
    assert pipelines.run_one(pipeline).figures.rows == 3
    pipelines.feed("one", b'[{"n":4,"word":"a"}]')
    assert pipelines.run_one(pipeline).figures.rows == 1
    files = pipelines.folder / "files"
    assert {path.name for path in files.glob("word=*")} == {"word=a", "word=b", "word=c"}
    rows = pipelines.spark.read.parquet(str(files)).collect()
    assert sorted((row.n, row.word) for row in rows) == [(1, "a"), (2, "b"), (3, "c"), (4, "a")]


def test_rows_go_to_a_table_of_the_catalog(pipelines: Pipelines) -> None:
    pipelines.feed("one", ROWS)
    options = {"path": str(pipelines.folder / "warehouse")}
    target = {"kind": "spark", "format": "parquet", "table": "kept_rows", "options": options}
    pipeline = pipelines.make(target=target)
    try:
        pipelines.run_one(pipeline)
        pipelines.feed("two", b'[{"n":4,"word":"d"}]')
        pipelines.run_one(pipeline)
        found = pipelines.spark.table("kept_rows").selectExpr("sum(n)", "count(*)").first()
        assert found == (10, 4)
    finally:
        pipelines.spark.sql("DROP TABLE IF EXISTS kept_rows")
