"""The jobs as targets of pipelines; what each does is tested with the job itself."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from headwater.runs import new_event, run_store
from headwater.runs.blocking import BlockingRunStore
from headwater.spark.pipelines import Meter, Outcome, Pipeline, running, status_of, with_spark
from headwater.spark.pipelines.metrics import MetricsFile
from headwater.spark.pipelines.progress import sized
from headwater.spark.pipelines.tasks_done import group_tasks, part_done
from headwater.spark.pipelines.values import Server
from headwater.spark.pipelines.watching import JobStopped, Watch
from headwater.spark.ranges import byte_of
from headwater.spark.tables import open_table
from headwater.state.events import change
from tests.spark.pipelines.conftest import Pipelines, wait_until


def feed_users(pipelines: Pipelines) -> None:
    changes = [
        change("insert", "user", "1", {"name": "Ada"}),
        change("insert", "user", "2", {"name": "Bob"}),
        change("update", "user", "1", {"name": "Ada L."}),
        change("delete", "user", "2"),
    ]
    pipelines.feed("one", b"[" + b",".join(each.encode() for each in changes) + b"]")


def rows(spark: SparkSession, folder: str, *columns: str) -> list[tuple[object, ...]]:
    table = open_table(folder).read(spark)
    assert table is not None, folder
    return sorted(tuple(row) for row in table.select(*columns).collect())


def test_state_streams_are_materialized_and_published(
    pipelines: Pipelines, spark: SparkSession
) -> None:
    feed_users(pipelines)
    target = {"kind": "materialize", "tables": "tables", "schemas": {"user": "name string"}}
    pipeline = pipelines.make(source={"schema": None}, target=target)
    assert with_spark(spark, pipeline, dry_run=True) == []
    outcome = pipelines.run_one(pipeline)
    assert outcome.figures.rows == 4
    assert status_of(pipeline).lag_bytes == 0
    folder = f"{pipelines.folder}/tables/user"
    assert rows(spark, folder, "key", "name") == [("1", "Ada L.")]
    assert len(rows(spark, f"{folder}_history", "key")) >= 3

    published = pipelines.make(
        source={"stream": [], "schema": None, "table": "tables/user"},
        transform=[{"sql": "SELECT key, upper(name) AS name FROM source"}],
        target={
            "kind": "publish",
            "stream": f"{pipelines.room}/loud",
            "type": "user",
            "key": "key",
            "url": pipelines.url,
        },
    )
    assert with_spark(spark, published, dry_run=True) == []
    first = pipelines.run_one(published)
    assert first.summary is not None
    assert [(each["key"], each["value"]["name"]) for each in pipelines.items("loud")] == [
        ("1", "ADA L.")
    ]
    pipelines.run_one(published)
    assert len(pipelines.items("loud")) == 1


def test_what_is_kept_aside_is_counted(pipelines: Pipelines, spark: SparkSession) -> None:
    feed_users(pipelines)
    pipelines.feed("two", b'[{"no": "event"},' + change("insert", "user", "3", 5).encode() + b"]")
    target = {"kind": "materialize", "tables": "tables", "schemas": {"user": "name string"}}
    pipeline = pipelines.make(source={"schema": None}, target=target)
    meter = Meter()
    figures = pipelines.run_one(pipeline, meter).figures
    assert (figures.rows, figures.aside) == (6, 2)
    assert len(rows(spark, f"{pipelines.folder}/tables/_quarantine", "reason")) == 2
    assert f'aside_total{{pipeline="{pipeline.name}"}} 2\n' in meter.text()
    pipelines.feed("two", change("insert", "user", "4", {"name": "Eve"}).encode())
    assert pipelines.run_one(pipeline).figures.aside == 0  # of each run what came in it


def test_a_table_that_others_have_made_is_published(
    pipelines: Pipelines, spark: SparkSession
) -> None:
    rows = pa.table({"key": ["1"], "name": ["Ada"]})
    write_deltalake(pipelines.folder / "theirs", rows)
    (pipelines.folder / "plain").mkdir()
    pq.write_table(rows, pipelines.folder / "plain" / "part.parquet")
    target = {"kind": "publish", "type": "user", "key": "key", "url": pipelines.url}
    for table, table_format in (("theirs", "delta"), ("plain", "parquet")):
        published = pipelines.make(
            source={"stream": [], "schema": None, "table": table, "format": table_format},
            target={**target, "stream": f"{pipelines.room}/{table}"},
            checkpoint=f"checkpoints/{table}",
        )
        assert with_spark(spark, published, dry_run=True) == []
        pipelines.run_one(published)
        (told,) = pipelines.items(table)
        assert told["value"] == {"key": "1", "name": "Ada"}


def test_a_table_or_a_key_that_is_not_there_is_told(
    pipelines: Pipelines, spark: SparkSession
) -> None:
    target = {"kind": "publish", "stream": "x", "type": "user", "key": "id", "url": pipelines.url}
    missing = pipelines.make(source={"stream": [], "schema": None, "table": "no"}, target=target)
    (problem,) = with_spark(spark, missing, dry_run=True)
    assert str(problem).startswith("error: source.table: there is no table at ")
    without = pipelines.make(target=target)
    (problem,) = with_spark(spark, without, dry_run=True)
    assert str(problem) == "error: target.key: there is no column 'id'; there are n, word"


def test_a_column_of_json_is_published_as_the_whole_value(
    pipelines: Pipelines, spark: SparkSession
) -> None:
    rows = pa.table({"key": ["1", "2"], "doc": ['[1,{"a":null}]', None], "at": [1, 2]})
    write_deltalake(pipelines.folder / "docs", rows)
    target = {"kind": "publish", "stream": f"{pipelines.room}/docs", "type": "doc", "key": "key"}

    def made(**more: object) -> Pipeline:
        return pipelines.make(
            source={"stream": [], "schema": None, "table": "docs"},
            transform=[{"sql": "SELECT *, named_struct('a', at) AS o FROM source"}],
            target={**target, "url": pipelines.url, **more},
        )

    good = made(value="doc")
    assert with_spark(spark, good, dry_run=True) == []
    pipelines.run_one(good)
    told = {each["key"]: each["value"] for each in pipelines.items("docs")}
    assert told == {"1": [1, {"a": None}], "2": None}
    (problem,) = with_spark(spark, made(value="dok"), dry_run=True)
    assert str(problem) == (
        "error: target.value: there is no column 'dok'; there are key, doc, at, o"
    )
    (problem,) = with_spark(spark, made(value="o"), dry_run=True)
    assert str(problem).startswith(
        "error: target.value: the column 'o' is struct<a:bigint>, and holds no JSON: make JSON"
    )
    (problem,) = with_spark(spark, made(columns=["doc", "dok"]), dry_run=True)
    assert str(problem).startswith("error: target.columns: there is no column 'dok'; there are")


def test_two_publications_at_once_read_their_own_source(pipelines: Pipelines) -> None:
    # The first reads its view `source` after the second has made one of that name.
    begun = pipelines.folder / "begun"
    (pipelines.folder / "steps.py").write_text(
        "import pathlib, time\n"
        f"begun = pathlib.Path('{begun}')\n"
        "def slow(rows):\n"
        "    while not begun.exists():\n        time.sleep(0.01)\n    return rows\n"
        "def quick(rows):\n    begun.touch()\n    return rows\n"
    )
    made = []
    for name in ("slow", "quick"):
        pipelines.feed(name, f'[{{"n":1,"word":"{name}"}}]'.encode())
        made.append(
            pipelines.make(
                source={"stream": f"{pipelines.room}/in/{name}"},
                transform=[
                    {"python": f"steps.py:{name}"},
                    {"sql": "SELECT n, word FROM source", "name": "last"},
                ],
                target={
                    "kind": "publish",
                    "stream": f"{pipelines.room}/{name}",
                    "type": "row",
                    "key": "n",
                    "url": pipelines.url,
                },
            )
        )
    outcomes = pipelines.run(*made)
    assert [outcome.how for outcome in outcomes] == ["done", "done"], outcomes
    for name in ("slow", "quick"):
        assert [each["value"]["word"] for each in pipelines.items(name)] == [name]


def test_runs_are_projected(pipelines: Pipelines, spark: SparkSession) -> None:
    root = f"{pipelines.room}/flows"
    with BlockingRunStore(run_store(f"streams+{pipelines.url}/{root}")) as store:
        event = new_event("run-1", "RunQueued", {}, plan_version="1")
        store.append_event(event)
    pipelines.client.stream(f"{root}/log/bad").create(data=b'[{"no": "event"}]')
    source = {"stream": f"{root}/log/*", "schema": None, "options": {"onCorrupt": "column"}}
    pipeline = pipelines.make(
        source=source,
        target={"kind": "project", "tables": "tables", "publish": f"{pipelines.room}/state"},
    )
    assert with_spark(spark, pipeline, dry_run=True) == []
    begun = time.monotonic()
    figures = pipelines.run_one(pipeline).figures
    assert figures.aside == 1
    assert figures.batch_lag_seconds is not None
    assert 0 < figures.batch_lag_seconds < time.monotonic() - begun + 60
    assert rows(spark, f"{pipelines.folder}/tables/runs", "run_id", "status") == [
        ("run-1", "PENDING")
    ]
    assert pipelines.items("state")


def test_an_archive_is_restored(pipelines: Pipelines) -> None:
    pipelines.feed("one", b'[{"n":1},{"n":2}]')
    archived = pipelines.make(
        source={"schema": None}, target={"kind": "archive", "folder": "archive"}
    )
    pipelines.run_one(archived)
    there = f"{pipelines.room}/in/one"
    restored = pipelines.make(
        source={"stream": [], "schema": None, "url": pipelines.url},
        target={
            "kind": "restore",
            "folder": "archive",
            "stream": {there: f"{pipelines.room}/again"},
            "url": pipelines.url,
        },
    )
    outcome = pipelines.run_one(restored)
    assert outcome.summary is not None
    assert pipelines.items("again") == [{"n": 1}, {"n": 2}]
    assert not (pipelines.folder / "checkpoints" / restored.name).exists()


def test_a_part_of_an_archive_is_restored(pipelines: Pipelines) -> None:
    pipelines.feed("one", b"[1,2]")
    there = f"{pipelines.room}/in/one"
    stream = pipelines.client.stream(there)
    archived = pipelines.make(
        source={"schema": None, "options": {"failOnDataLoss": False}},
        target={"kind": "archive", "folder": "archive"},
    )
    pipelines.run_one(archived)
    first = f"{stream.head().next_offset[:16]}_{3:016d}"
    stream.delete()
    pipelines.feed("one", b"[3]")
    pipelines.run_one(archived)
    target = {
        "kind": "restore",
        "folder": "archive",
        "stream": {there: f"{pipelines.room}/part"},
        "until": {there: first},
        "incarnation": 0,
        "verify": False,
        "url": pipelines.url,
    }
    pipelines.run_one(pipelines.make(source={"stream": [], "schema": None}, target=target))
    assert pipelines.items("part") == [1]


def test_a_snapshot_is_taken(pipelines: Pipelines) -> None:
    feed_users(pipelines)
    pipeline = pipelines.make(
        source={"stream": f"{pipelines.room}/in/one", "schema": None},
        target={"kind": "snapshot", "stream": f"{pipelines.room}/short"},
    )
    outcome = pipelines.run_one(pipeline)
    assert outcome.summary is not None
    controls = [each["headers"].get("control") for each in pipelines.items("short")]
    assert controls == ["snapshot-start", None, "snapshot-end"]


def test_a_snapshot_tells_what_it_is_at(pipelines: Pipelines) -> None:
    feed_users(pipelines)
    pipeline = job(pipelines, "snapshot")
    size = sized(byte_of(pipelines.client.stream(f"{pipelines.room}/in/one").head().next_offset))
    seen: list[str] = []
    with running(pipelines.spark, [pipeline], Meter()) as runner:
        while runner.look():
            seen.append(runner.outcomes()[0].doing)
            time.sleep(0.01)
    assert list(dict.fromkeys(filter(None, seen))) == [
        f"looking for controls in {size}",
        f"looking for the last changes in {size}",
    ]


def test_how_much_is_done_is_seen_by_the_tasks(spark: SparkSession, tmp_path: Path) -> None:
    def slow(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            while batch["id"][0].as_py() and not (tmp_path / "enough").exists():
                time.sleep(0.02)
            yield batch

    def work() -> None:
        group_tasks(spark, "slow-ones")
        spark.range(0, 2, 1, 2).mapInArrow(slow, "id long").collect()

    thread = Thread(target=work)
    thread.start()
    try:
        wait_until(lambda: part_done(spark, "slow-ones") == 0.5)
    finally:
        (tmp_path / "enough").touch()
        thread.join()
    assert part_done(spark, "slow-ones") is None
    assert part_done(spark, "none") is None


def test_a_job_that_fails_tells_why(pipelines: Pipelines) -> None:
    failing = pipelines.make(
        source={"stream": [], "schema": None, "url": pipelines.url},
        target={"kind": "restore", "folder": "none", "url": pipelines.url},
    )
    (outcome,) = pipelines.run(failing)
    assert outcome.how == "failed"
    assert outcome.reason is not None
    assert "is not an archive" in outcome.reason


@pytest.mark.parametrize("kind", ["materialize", "archive"])
def test_a_checkpoint_knows_where_its_job_writes(pipelines: Pipelines, kind: str) -> None:
    place = "tables" if kind == "materialize" else "folder"
    pipeline = pipelines.make(source={"schema": None}, target={"kind": kind, place: "there"})
    assert pipeline.target.place == f"{pipelines.folder}/there"


def job(pipelines: Pipelines, kind: str, *transforms: dict[str, str]) -> Pipeline:
    """Make a job that would write to the room's stream `out`."""
    there, out = f"{pipelines.room}/in/one", f"{pipelines.room}/out"
    if kind == "publish":
        target = {"kind": kind, "stream": out, "type": "row", "key": "n", "url": pipelines.url}
        return pipelines.make(source={"stream": there}, transform=transforms, target=target)
    if kind == "snapshot":
        source = {"stream": there, "schema": None}
        return pipelines.make(source=source, target={"kind": kind, "stream": out})
    archive = {"kind": "archive", "folder": "archive"}
    pipelines.run_one(pipelines.make(source={"schema": None}, target=archive))
    return pipelines.make(
        source={"stream": [], "schema": None, "url": pipelines.url},
        target={**archive, "kind": kind, "stream": {there: out}, "url": pipelines.url},
    )


def stopped(
    pipelines: Pipelines, pipeline: Pipeline, when: Callable[[], bool], asked: Path | None = None
) -> Outcome:
    """Run a job, and ask it once to stop when something is so; a file then says so."""
    with running(pipelines.spark, [pipeline], Meter()) as runner:
        wait_until(when)
        runner.ask_to_stop()
        if asked is not None:
            asked.touch()
        wait_until(lambda: not runner.look())
        return runner.outcomes()[0]


@pytest.mark.parametrize("kind", ["restore", "snapshot", "publish"])
def test_a_job_that_is_stopped_before_spark_runs_it_does_nothing(
    pipelines: Pipelines, kind: str
) -> None:
    feed_users(pipelines)
    outcome = stopped(pipelines, job(pipelines, kind), lambda: True)
    assert outcome.how == "stopped"
    assert list(pipelines.client.streams(f"{pipelines.room}/out")) == []


SLOW = """
import pathlib, time

from headwater.errors import BadOption


def slow(rows):
    pathlib.Path("{begun}").touch()
    while not pathlib.Path("{asked}").exists():
        time.sleep(0.01)
    return rows


def refuse(rows):
    raise BadOption("x", "it is none")
"""


@pytest.mark.parametrize(("then", "how"), [(None, "stopped"), ("refuse", "failed")])
def test_a_stop_between_what_spark_runs_is_heeded_and_hides_no_refusal(
    pipelines: Pipelines, then: str | None, how: str
) -> None:
    begun, asked = pipelines.folder / "begun", pipelines.folder / "asked"
    text = SLOW.replace("{begun}", str(begun)).replace("{asked}", str(asked))
    (pipelines.folder / "slow.py").write_text(text)
    pipelines.feed("one", b'[{"n":1,"word":"a"}]')
    steps = [{"python": f"slow.py:{name}"} for name in ("slow", then) if name]
    outcome = stopped(pipelines, job(pipelines, "publish", *steps), begun.exists, asked)
    assert outcome.how == how, outcome
    assert list(pipelines.client.streams(f"{pipelines.room}/out")) == []


def test_a_restore_tells_how_far_it_is(pipelines: Pipelines, tmp_path: Path) -> None:
    feed_users(pipelines)
    pipeline = job(pipelines, "restore")
    file = tmp_path / "figures.prom"
    outcome = pipelines.run_one(pipeline, Meter(MetricsFile(file)))
    size = byte_of(pipelines.client.stream(f"{pipelines.room}/out").head().next_offset)
    assert outcome.total_bytes == outcome.figures.bytes == size
    assert f'bytes_total{{pipeline="{pipeline.name}"}} {size}\n' in file.read_text()
    assert f'up{{pipeline="{pipeline.name}"}} 0\n' in file.read_text()


def test_a_publication_tells_how_far_it_is(pipelines: Pipelines) -> None:
    pipelines.feed("one", b'[{"n":1,"word":"a"},{"n":2,"word":"b"}]')
    meter = Meter()
    outcome = pipelines.run_one(job(pipelines, "publish"), meter)
    assert outcome.total_rows == outcome.figures.rows == 2
    assert f'rows_total{{pipeline="{outcome.name}"}} 2\n' in meter.text()


def test_what_tasks_have_placed_is_seen_at_the_server(pipelines: Pipelines) -> None:
    told: list[tuple[int, int]] = []
    watch = Watch(Server(url=pipelines.url), lambda rows, size: told.append((rows, size)))
    pipelines.feed("one", b"[1,2,3]")
    one, two = f"{pipelines.room}/in/one", f"{pipelines.room}/in/two"
    watch.filling({one: (2, 10), two: (0, 5)})
    assert watch.total_bytes == 13
    watch.look()
    pipelines.feed("two", b"[1234567]")
    watch.look()
    assert told == [(0, 7), (0, 12)]
    watch.ask_to_stop()
    with pytest.raises(JobStopped):
        watch.sent(1, 2)
