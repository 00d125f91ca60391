"""What `check` finds before a pipeline runs."""

import errno
import socket
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headwater.errors import BadPipeline
from headwater.spark.pipelines import Pipeline, before_spark, open_session, read_partly, with_spark
from headwater.spark.pipelines.checkpoints import held, own
from tests.spark.pipelines.conftest import Pipelines


def found(spark: SparkSession, pipeline: Pipeline, *, dry_run: bool = True) -> list[str]:
    return [str(problem) for problem in with_spark(spark, pipeline, dry_run=dry_run)]


def outside(pipeline: Pipeline) -> list[str]:
    return [str(problem) for problem in before_spark(pipeline)]


def test_a_good_pipeline_has_no_problem(pipelines: Pipelines, spark: SparkSession) -> None:
    pipelines.feed("one", b'[{"n":1}]')
    (pipelines.folder / "same.py").write_text("def same(rows):\n    return rows\n")
    pipeline = pipelines.make(
        transform=[{"python": "same.py:same"}, {"sql": "SELECT n FROM step1 WHERE n > 1"}]
    )
    assert outside(pipeline) == []
    assert found(spark, pipeline) == []
    assert not Path(pipeline.checkpoint).exists()
    assert [stream.path for stream in pipelines.client.streams(f"{pipelines.room}/out")] == []


def test_a_server_that_does_not_answer_is_told(pipelines: Pipelines) -> None:
    gone = pipelines.make(source={"url": "http://127.0.0.1:9"})
    (problem,) = outside(gone)
    assert problem.startswith("error: source.url: Can't reach http://127.0.0.1:9: Connection")
    elsewhere = {"kind": "stream", "stream": "x", "url": "http://127.0.0.1:9"}
    pipelines.feed("one", b'[{"n":1}]')
    (problem,) = outside(pipelines.make(target=elsewhere))
    assert problem.startswith("error: target.url: Can't reach http://127.0.0.1:9: Connection")


def test_what_is_not_known_is_not_looked_at(pipelines: Pipelines) -> None:
    pipeline = pipelines.make(
        source={"url": "http://127.0.0.1:9", "stream": "x"},
        target={"kind": "stream", "stream": "y", "url": "http://127.0.0.1:10"},
        transform=[{"python": "none.py:f"}],
    )
    for unknown, places in (
        ((), ["source.url", "target.url", "transform 1.python"]),
        (("source.token",), ["target.url", "transform 1.python"]),
        (("target",), ["source.url", "transform 1.python"]),
        (("source", "transform 1"), []),
    ):
        assert [one.where for one in before_spark(pipeline, unknown)] == places


def test_streams_that_are_not_there_are_told(pipelines: Pipelines) -> None:
    named = pipelines.make(source={"stream": [f"{pipelines.room}/no", f"{pipelines.room}/none/*"]})
    assert outside(named) == [
        (
            f"error: source.stream: there is no stream '{pipelines.room}/no': create it with: "
            f"headwater create {pipelines.room}/no"
        ),
        (
            f"warning: source.stream: no stream matches '{pipelines.room}/none/*' yet; those that "
            "appear are read"
        ),
    ]


def test_a_checkpoint_of_something_else_is_told(pipelines: Pipelines) -> None:
    pipelines.feed("one", b'[{"n":1}]')
    pipeline = pipelines.make(checkpoint="shared")
    folder = Path(pipeline.checkpoint)
    own(folder, pipelines.make(checkpoint="shared", target={"kind": "table", "folder": "t"}))
    (problem,) = outside(pipeline)
    assert problem.startswith("error: checkpoint: belongs to a pipeline with the target 'table'")
    (folder / "headwater-pipeline.json").unlink()
    (folder / "metadata").write_text('{"id":"1"}')
    (problem,) = outside(pipeline)
    assert problem.endswith("was written by another query: set another, or remove it")
    own(folder, pipeline)
    with held(folder):
        (problem,) = outside(pipeline)
    assert problem.startswith("warning: checkpoint: process ")


def test_a_checkpoint_elsewhere_is_not_looked_at(pipelines: Pipelines) -> None:
    pipelines.feed("one", b'[{"n":1}]')
    (problem,) = outside(pipelines.make(checkpoint="hdfs://name/c"))
    assert problem == (
        "warning: checkpoint: hdfs://name/c is on another machine and was not looked at"
    )


def test_a_connect_server_that_is_not_there_is_told(pipelines: Pipelines) -> None:
    pipelines.feed("one", b'[{"n":1}]')
    (problem,) = outside(pipelines.make(remote="sc://127.0.0.1:9"))
    assert problem.startswith(
        "error: remote: there is no Spark Connect server at sc://127.0.0.1:9 ([Errno"
    )


def test_a_master_that_refuses_is_told(pipelines: Pipelines) -> None:
    pipelines.feed("one", b'[{"n":1}]')
    nobody = "spark://127.0.0.1:9"
    (problem,) = outside(pipelines.make(master=f"{nobody},localhost:9"))
    assert problem.startswith(
        f"error: master: there is no Spark master at {nobody},localhost:9 "
        f"([Errno {errno.ECONNREFUSED}] "
    )
    assert problem.endswith("): start it, or name another")
    with socket.create_server(("127.0.0.1", 0)) as master:
        somebody = f"127.0.0.1:{master.getsockname()[1]}"
        assert outside(pipelines.make(master=f"{nobody},{somebody}")) == []


def test_a_master_that_is_chosen_wins_over_a_files_remote(pipelines: Pipelines) -> None:
    pipelines.feed("one", b'[{"n":1}]')
    pipeline = pipelines.make(remote="sc://127.0.0.1:9")
    assert outside(pipeline.placed("local[2]", None)) == []
    assert pipeline.placed(None, None) is pipeline
    (problem,) = outside(pipelines.make(master="local").placed(None, "sc://127.0.0.1:9"))
    assert problem.startswith("error: remote: there is no Spark Connect server")


def test_pipelines_that_run_together_are_on_one_spark(pipelines: Pipelines) -> None:
    here, there = pipelines.make(master="local"), pipelines.make(remote="sc://127.0.0.1:9")
    with pytest.raises(BadPipeline, match="remote: another pipeline has the master local"):
        open_session([here, there])
    with pytest.raises(BadPipeline, match=r"master: differs between .* together: local, yarn"):
        open_session([here, pipelines.make(master="yarn")])


def test_a_missing_module_is_told(pipelines: Pipelines) -> None:
    pipelines.feed("one", b'[{"n":1}]')
    steps = [{"python": "none.py:same"}, {"python": "no_such_module:same"}]
    problems = outside(pipelines.make(transform=steps))
    assert [problem.partition(" is no ")[0] for problem in problems] == [
        "error: transform 1.python: there",
        "error: transform 2.python: there",
    ]


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (
            {"source": {"schema": "n lung"}},
            'error: source.schema: Unsupported data type "LUNG"',
        ),
        (
            {"transform": [{"sql": "SELECT m FROM source"}]},
            "error: transform 1.sql: A column, variable, or function parameter with name `m`",
        ),
        (
            {"transform": [{"sql": "SELECT n FROM source"}, {"sql": "SELEC n FROM step1"}]},
            "error: transform 2.sql: Syntax error at or near 'SELEC'",
        ),
        (
            {"transform": [{"sql": "SELECT n FROM nowhere"}]},
            "error: transform 1.sql: The table or view `nowhere` cannot be found",
        ),
        (
            {"transform": [{"python": "bad.py:raises"}]},
            "error: transform 1.python: ZeroDivisionError: division by zero",
        ),
        (
            {"transform": [{"python": "bad.py:nothing"}]},
            "error: transform 1.python: TypeError: it gives NoneType, and has to give a DataFrame",
        ),
        (
            {"transform": [{"python": "bad.py:missing"}]},
            "error: transform 1.python: ImportError: ",
        ),
        (
            {"transform": [{"sql": "SELECT n, count(*) AS c FROM source GROUP BY n"}]},
            "error: query: Invalid streaming output mode: append.",
        ),
        (
            {"transform": [{"sql": "SELECT n FROM source ORDER BY n"}]},
            "error: query: ",
        ),
        (
            {"target": {"kind": "spark", "format": "icebreg", "table": "lake.t"}},
            "error: target.format: this Spark has no format 'icebreg': give it the package",
        ),
        (
            {"target": {"kind": "spark", "format": "parquet", "partition_by": ["m"]}},
            "error: target.partition_by: there is no column 'm'; there are n, word",
        ),
        (
            {
                "transform": [{"sql": "SELECT n AS `a.b` FROM source"}],
                "target": {"kind": "table", "folder": "t", "format": "parquet"},
            },
            "error: target: the column 'a.b' has a dot in its name: rename it with AS",
        ),
        (
            {
                "transform": [{"sql": "SELECT n AS a, n AS A FROM source"}],
                "target": {"kind": "table", "folder": "t", "format": "parquet"},
            },
            "error: target: 'a' and 'A' would be one column: rename one of them with AS",
        ),
        (
            {
                "transform": [{"sql": "SELECT array(named_struct('a', n, 'A', n)) s FROM source"}],
                "target": {"kind": "table", "folder": "t"},
            },
            "error: target: 'a' and 'A' would be one column: rename one of them with AS",
        ),
        (
            {
                "transform": [{"sql": "SELECT n AS _Bucket FROM source"}],
                "target": {"kind": "table", "folder": "t"},
            },
            "error: target: tables keep a column '_bucket' for themselves: rename it with AS",
        ),
        (
            {
                "transform": [{"sql": "SELECT map(n, INTERVAL '1' DAY) AS i FROM source"}],
                "target": {"kind": "table", "folder": "t"},
            },
            "error: target: tables of the format delta have no interval day as in the column 'i': ",
        ),
        (
            {
                "transform": [{"sql": "SELECT INTERVAL '1' YEAR AS i FROM source"}],
                "target": {"kind": "table", "folder": "t", "format": "parquet"},
            },
            "error: target: tables of the format parquet have no interval year as in the column",
        ),
        (
            {
                "transform": [{"sql": "SELECT array(TIME'10:00:00') AS i FROM source"}],
                "target": {"kind": "table", "folder": "t"},
            },
            "error: target: tables of the format delta have no time(6) as in the column 'i': ",
        ),
        (
            {"target": {"kind": "stream"}},
            "error: target: option 'stream' can't be used: name a stream, or have a column",
        ),
        (
            {
                "source": {"schema": None},
                "target": {
                    "kind": "materialize",
                    "tables": "t",
                    "schemas": {"user": "name string", "order": "id lung"},
                },
            },
            'error: target.schemas.order: Unsupported data type "LUNG"',
        ),
        (
            {
                "source": {"schema": None},
                "target": {
                    "kind": "materialize",
                    "tables": "t",
                    "schemas": {"user": "since interval day"},
                },
            },
            "error: target.schemas.user: ",
        ),
        (
            {
                "source": {"schema": None},
                "target": {
                    "kind": "materialize",
                    "tables": "t",
                    "schemas": {"user": "name string, Name string"},
                },
            },
            "error: target.schemas.user: option 'schemas.user' can't be used: its fields 'name' ",
        ),
    ],
)
def test_what_spark_finds_is_told(
    pipelines: Pipelines, spark: SparkSession, document: dict[str, Any], problem: str
) -> None:
    (pipelines.folder / "bad.py").write_text(
        "def raises(rows):\n    1 / 0\ndef nothing(rows):\n    pass\n"
    )
    problems = found(spark, pipelines.make(**document))
    assert len(problems) == 1
    assert problems[0].startswith(problem)
    assert "\n" not in problems[0]


@pytest.mark.parametrize(
    ("document", "wrong", "problems"),
    [
        (
            {"source": {"schema": "n lung", "mode": None}},
            {"source.mode"},
            ['error: source.schema: Unsupported data type "LUNG"'],
        ),
        (
            {"transform": [{"sql": "SELECT m FROM source"}]},
            {"source.mode", "target"},
            ["error: transform 1.sql: A column, variable, or function parameter with name `m`"],
        ),
        (
            {
                "source": {"schema": None},
                "transform": [{"sql": "SELECT m FROM source"}],
            },
            {"source.mode"},  # so nobody knows the columns
            [],
        ),
        (
            {"transform": [{"python": "none.py:f"}, {"sql": "SELECT m FROM step1"}]},
            {"transform 1.python"},
            [],
        ),
        ({"transform": [], "target": {"kind": "stream"}}, {"target.options.x"}, []),
    ],
)
def test_what_builds_on_nothing_wrong_is_told(
    pipelines: Pipelines,
    spark: SparkSession,
    document: dict[str, Any],
    wrong: set[str],
    problems: list[str],
) -> None:
    told = with_spark(spark, pipelines.make(**document), dry_run=False, wrong=wrong)
    assert len(told) == len(problems)
    assert all(str(one).startswith(two) for one, two in zip(told, problems, strict=True))


def test_an_option_that_rules_have_told_of_is_not_told_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "p.toml").write_text(
        "[source]\nstream = 'a'\nschema = 'n lung'\noptions = { maxBytesPerTriger = 1 }\n"
        "[target]\nkind = 'stream'\nstream = 'b'\n"
    )
    read = read_partly(tmp_path / "p.toml", {})
    assert read.pipeline is not None
    wrong = {one.where for one in read.problems}
    assert wrong == {"source.options.maxBytesPerTriger"}
    (problem,) = with_spark(spark, read.pipeline, dry_run=False, wrong=wrong)
    assert problem.where == "source.schema"
    assert "LUNG" in problem.what


def test_a_transform_is_analysed_over_a_stream(pipelines: Pipelines, spark: SparkSession) -> None:
    (pipelines.folder / "counting.py").write_text(
        "def streamed(rows):\n"
        "    assert rows.isStreaming\n"
        "    return rows\n"
        "def counted(rows):\n"
        "    return rows.limit(rows.count())\n"
    )
    assert found(spark, pipelines.make(transform=[{"python": "counting.py:streamed"}])) == []
    (problem,) = found(spark, pipelines.make(transform=[{"python": "counting.py:counted"}]))
    assert problem.startswith("error: transform 1.python: Queries with streaming sources must be")


def test_transforms_are_analysed_without_a_server(
    pipelines: Pipelines, spark: SparkSession
) -> None:
    source = {"url": "http://127.0.0.1:9", "stream": "x"}
    pipeline = pipelines.make(source=source, transform=[{"sql": "SELECT m FROM source"}])
    (problem,) = found(spark, pipeline, dry_run=False)
    assert problem.startswith("error: transform 1.sql: ")


def test_offsets_to_start_from_are_no_problem(pipelines: Pipelines, spark: SparkSession) -> None:
    pipelines.feed("one", b'[{"n":1}]')
    starting = f'{{"{pipelines.room}/in/one": "latest"}}'
    pipeline = pipelines.make(source={"options": {"startingOffsets": starting}})
    assert found(spark, pipeline) == []


def test_a_table_gets_whatever_its_format_holds(pipelines: Pipelines, spark: SparkSession) -> None:
    pipelines.feed("one", b'[{"n":1}]')
    sql = "SELECT n AS _bucket, INTERVAL '1' DAY AS i, named_struct('a.b', n) AS `s t` FROM source"
    target = {"kind": "table", "folder": "t", "format": "parquet"}
    pipeline = pipelines.make(transform=[{"sql": sql}], target=target)
    assert found(spark, pipeline) == []
    assert pipelines.run_one(pipeline).figures.rows == 1
