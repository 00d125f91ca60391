"""Pipeline files: what they may say, and how everything wrong with them is told at once."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec
import pytest

from headwater.errors import BadPipeline
from headwater.spark.options import source_options
from headwater.spark.pipelines import load, read_document, read_file, read_partly
from headwater.spark.pipelines.values import (
    Archive,
    Materialize,
    Pipeline,
    Project,
    Publish,
    Restore,
    Snapshot,
    Source,
    StreamTarget,
    TableTarget,
)
from tests.spark.patience import PATIENCE

WHOLE: Final = """
name = "large-orders"
trigger = "every 10 seconds"
checkpoint = "state/large"
master = "local[2]"
metrics_stream = "metrics/large"
metrics_file = "large.prom"

[source]
url = "http://shop:4437"
stream = ["shop/*", "old/orders"]
token = "$SHOP_TOKEN"
schema = "customer string, total double"
headers = { "x-tenant" = "${TENANT}" }
options = { maxBytesPerTrigger = "8m", failOnDataLoss = false, waitSeconds = 2 }

[[transform]]
name = "large"
sql = "SELECT customer, total FROM source WHERE total > 100 AND customer != '$NOBODY'"

[[transform]]
python = "steps/tidy.py:tidy"

[[transform]]
python = "shop.steps:tidy"

[target]
kind = "stream"
stream = "orders/large"

[spark]
sql.shuffle.partitions = 4
"spark.sql.session.timeZone" = "CET"
ui.enabled = false
"""

ENVIRONMENT: Final = {"SHOP_TOKEN": "secret", "TENANT": "north"}


def written(folder: Path, text: str, name: str = "shop.toml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def problems(folder: Path, text: str, name: str = "shop.toml") -> list[str]:
    return [str(problem) for problem in read_file(written(folder, text, name), {})[1]]


def test_a_toml_file_says_everything(tmp_path: Path) -> None:
    pipeline = load(written(tmp_path, WHOLE), ENVIRONMENT)
    assert pipeline.name == "large-orders"
    assert pipeline.checkpoint == f"{tmp_path}/state/large"
    assert pipeline.metrics_file == f"{tmp_path}/large.prom"
    assert pipeline.trigger == "every 10 seconds"
    assert pipeline.source.format_options() == {
        "url": "http://shop:4437",
        "stream": '["shop/*", "old/orders"]',
        "token": "secret",
        "headers": '{"x-tenant": "north"}',
        "maxBytesPerTrigger": "8m",
        "failOnDataLoss": "false",
        "waitSeconds": "2",
    }
    large, tidy, module = pipeline.transform
    assert large.sql is not None
    assert "'$NOBODY'" in large.sql
    assert tidy.python == f"{tmp_path}/steps/tidy.py:tidy"
    assert module.python == "shop.steps:tidy"
    assert pipeline.spark == {
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.session.timeZone": "CET",
        "spark.ui.enabled": "false",
    }
    assert isinstance(pipeline.target, StreamTarget)
    assert pipeline.target.url == "http://shop:4437"
    assert pipeline.target.token == "secret"


def test_little_is_needed(tmp_path: Path) -> None:
    text = "[source]\nstream = 'a/*'\n[target]\nkind = 'table'\nfolder = 'tables/a'\n"
    pipeline = load(written(tmp_path, text), {"HEADWATER_URL": "http://elsewhere:1"})
    assert pipeline.name == "shop"
    assert pipeline.checkpoint == f"{tmp_path}/checkpoints/shop"
    assert pipeline.source.url == "http://elsewhere:1"
    assert pipeline.trigger == "default"
    assert pipeline.target == TableTarget(folder=f"{tmp_path}/tables/a")


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        ({"kind": "stream", "stream": "b"}, StreamTarget),
        ({"kind": "table", "folder": "t", "format": "parquet"}, TableTarget),
        ({"kind": "materialize", "tables": "t", "schemas": {"user": "name string"}}, Materialize),
        ({"kind": "project", "tables": "t", "publish": "runs/state"}, Project),
        ({"kind": "archive", "folder": "f"}, Archive),
        ({"kind": "snapshot", "stream": "b"}, Snapshot),
        ({"kind": "publish", "stream": "b", "type": "user", "key": "id"}, Publish),
    ],
)
def test_every_kind_of_target_is_read(
    tmp_path: Path, target: dict[str, object], kind: type[msgspec.Struct]
) -> None:
    document = {"name": "x", "source": {"stream": "a"}, "target": target}
    pipeline, found = read_document(document, tmp_path, {})
    assert not found
    assert pipeline is not None
    assert isinstance(pipeline.target, kind)


def test_a_restore_needs_no_source(tmp_path: Path) -> None:
    document = {"name": "x", "target": {"kind": "restore", "folder": "f", "stream": {"a": "b"}}}
    pipeline, found = read_document(document, tmp_path, {})
    assert not found
    assert pipeline is not None
    assert isinstance(pipeline.target, Restore)
    assert pipeline.target.url == "http://127.0.0.1:4437"


def test_a_python_file_holds_functions(tmp_path: Path) -> None:
    text = """
def tidy(rows):
    return rows

def _more(rows):
    return rows

pipeline = {
    "source": {"stream": "a"},
    "transform": [tidy, {"python": _more, "name": "more"}, {"sql": "SELECT * FROM more"}],
    "target": {"kind": "stream", "stream": "b"},
}
"""
    file = written(tmp_path, text, "shop.py")
    pipeline = load(file, {})
    assert pipeline.name == "shop"
    assert [step.python for step in pipeline.transform] == [f"{file}:tidy", f"{file}:_more", None]


def test_a_python_file_holds_a_pipeline(tmp_path: Path) -> None:
    text = """
from headwater.spark.pipelines import Pipeline, Source
from headwater.spark.pipelines.values import TableTarget

pipeline = Pipeline(
    name="shop", source=Source(stream="a"), target=TableTarget(folder="t"), trigger="available-now"
)
"""
    pipeline = load(written(tmp_path, text, "shop.py"), {})
    assert pipeline.target == TableTarget(folder=f"{tmp_path}/t")
    assert pipeline.is_bounded


def test_all_problems_are_told_at_once_and_where(tmp_path: Path) -> None:
    text = """
trigger = "now and then"
chekpoint = "c"

[source]
strem = "a/*"
token = "$TOKEN_THAT_IS_NOT_SET"

[[transform]]
sql = 3

[[transform]]
sq = "SELECT 1"

[target]
kind = "stream"
stream = "b"
content = 1
"""
    assert problems(tmp_path, text) == [
        "error: source.token: the environment variable TOKEN_THAT_IS_NOT_SET is not set: set it",
        "error: chekpoint: there is no such field; did you mean 'checkpoint'?",
        "error: source.strem: there is no such field; did you mean 'stream'?",
        "error: transform 1.sql: expected `str | null`, got `int`",
        "error: transform 2.sq: there is no such field; did you mean 'sql'?",
        (
            "error: target.content: there is no such field; there are url, token, headers, stream, "
            "output, options, kind"
        ),
        "error: trigger: 'now and then' is none of default, available-now, 'every 10 seconds'",
    ]


def test_a_field_of_a_wrong_type_hides_no_other_problem(tmp_path: Path) -> None:
    text = "master = 1\nremote = 2\n[source]\nstream = 'a'\nschema = 'n long'\n"
    text += "[[transform]]\nname = 'x'\n[target]\nkind = 'archive'\nfolder = 'f'\n"
    told = problems(tmp_path, text)
    assert told[:2] == [
        "error: master: expected `str | null`, got `int`",
        "error: remote: expected `str | null`, got `int`",
    ]
    assert {one.partition(": ")[2].partition(":")[0] for one in told[2:]} == {
        "source.schema",
        "transform",
        "transform 1",
    }
    within = problems(tmp_path, text.replace("'a'", "1").replace("'n long'", "{ n = 1 }"))
    assert [one.partition(": ")[2].partition(":")[0] for one in within] == [
        "source.stream",
        "source.schema",
        "master",
        "remote",
        "transform",
        "transform 1",
    ]


WRONG: Final = {
    "a section": (
        (
            "source = 1\ntrigger = 'never'\n[[transform]]\nsql = ' '\n[target]\nkind = 'snapshot'\n"
            "stream = 'a/*'\n"
        ),
        ["source", "transform", "transform 1.sql", "target.stream", "trigger"],
    ),
    "the target": (
        (
            "[source]\nstream = 'a'\nschema = 'n int'\noptions = { waitSeconds=99, types='a' }\n"
            "[[transform]]\n[target]\nkind = 'strean'\n"
        ),
        ["target.kind", "source.options.waitSeconds", "transform 1"],
    ),
    "a field that is needed": (
        (
            "[source]\nstream = 'a'\nschema = 'n int'\n[[transform]]\nsql = 'SELECT 1'\n"
            "[target]\nkind = 'materialize'\ntables = 1\n"
        ),
        ["target.tables", "source.schema", "transform"],
    ),
    "one that is needed and not there": (
        "trigger = 'every 3 seconds'\n[source]\nstream = 'a/*'\n[target]\nkind = 'snapshot'\n",
        ["target", "source.stream", "trigger"],
    ),
    "a transform": (
        (
            "[source]\nstream = 'a'\n[[transform]]\nsql = 1\n[[transform]]\nname = 'a-b'\n"
            "sql = 'SELECT 1'\n[target]\nkind = 'stream'\nstream = 'a'\n"
        ),
        ["transform 1.sql", "transform 2.name", "target.stream"],
    ),
    "the list of transforms": (
        "transform = 1\n[source]\nstream = 'a'\n[target]\nkind = 'archive'\nfolder = ' '\n",
        ["transform", "target.folder"],
    ),
    "the source's table": (
        (
            "[source]\ntable = 1\nmode = 'raw'\n[target]\nkind = 'publish'\nstream = 'x'\n"
            "type = 'u'\nkey = ['a', '']\n"
        ),
        ["source.table", "target.key"],
    ),
    "a field beside others": (
        (
            "[source]\nschema = 1\nstream = 'a'\ntable = 't'\n[target]\nkind = 'spark'\n"
            "format = 'orc'\nfolder = 'f'\ntable = 't'\noutput = 1\n"
        ),
        ["source.schema", "target.output", "source", "source.table", "target"],
    ),
    "the server": (
        (
            "[source]\nurl = 1\nstream = 'a'\n[target]\nkind = 'stream'\nstream = 'b/*'\n"
            "output = 'once'\n"
        ),
        ["source.url", "target.output", "target.stream"],
    ),
    "a name that is a variable": (
        (
            "checkpoint = '$NOT_SET'\n[source]\nstream = '$NOT_SET'\nmode = 'runs'\n[target]\n"
            "kind = 'archive'\nfolder = 'f'\n"
        ),
        ["checkpoint", "source.stream", "source.mode"],
    ),
    "the name of a field": (
        (
            "metrics_strem = 'x'\n[source]\nstreams = 'a'\nschema = 'n int'\n[target]\n"
            "kind = 'archive'\nfoldr = 'f'\n"
        ),
        ["metrics_strem", "source.streams", "target.foldr", "target", "source.schema"],
    ),
    "the key of a field": (
        (
            "name = 'a b'\n[source]\nstream = 'a'\nheaders = 1\nmode = 'runs'\n[target]\n"
            "kind = 'table'\nfolder = ''\n"
        ),
        ["name", "source.headers", "target.folder"],
    ),
}


@pytest.mark.parametrize(("text", "places"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_in_one_place_hides_nothing_that_can_be_known_of_others(
    tmp_path: Path, text: str, places: list[str]
) -> None:
    told = problems(tmp_path, text)
    assert [one.partition(": ")[2].partition(":")[0] for one in told] == places, told


def test_keys_of_another_type_than_text_are_told(tmp_path: Path) -> None:
    text = "pipeline = {'source': {'stream': 'a', 'headers': {1: 'x'}}, 'spark': {'a': []}, "
    text += "'target': {'kind': 'archive', 'folder': ''}}"
    assert problems(tmp_path, text, "shop.py") == [
        "error: source.headers: expected `str`, got `int`",
        "error: spark[...]: expected `str`, got `array`",
        "error: target.folder: is empty: name a folder",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[source", "error: is no TOML: "),
        ("", "error: target: say where rows go: [target] with a kind of stream, table, "),
        ("[target]\nkind = 'strean'", "error: target.kind: 'strean' is none of stream, table, "),
        ("[target]\nkind = 'table'", "error: target: object missing required field `folder`"),
        ("transform = 1\n[target]\nkind = 'stream'", "error: transform: is a list: "),
        ("source = 1\n[target]\nkind = 'stream'", "error: source: expected `object`, got `int`"),
        ("name = 'a b'\n[target]\nkind = 'stream'", "error: name: is made of letters, "),
        ("[target]\nkind = 'materialize'\ntables = 1", "error: target.tables: expected `str`"),
        (
            "[source]\nmode = 'stat'\n[target]\nkind = 'stream'",
            "error: source.mode: 'stat' is none of raw, state, runs, json",
        ),
        (
            "[target]\nkind = 'table'\nfolder = 'f'\nformat = 'orc'",
            "error: target.format: 'orc' is none of delta, parquet",
        ),
    ],
)
def test_a_bad_file_is_told(tmp_path: Path, text: str, told: str) -> None:
    assert any(problem.startswith(told) for problem in problems(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1 / 0", "error: can't be run (ZeroDivisionError: division by zero)"),
        ("pipelin = {}", "error: has to set 'pipeline' to a dict with name, source, "),
        (
            "pipeline = {'transform': [lambda rows: rows]}",
            "error: transform: <lambda> has to be a function that the file defines by its name",
        ),
    ],
)
def test_a_bad_python_file_is_told(tmp_path: Path, text: str, told: str) -> None:
    (problem,) = problems(tmp_path, text, "shop.py")
    assert problem.startswith(told)


def test_a_python_file_that_needs_a_session_is_told(tmp_path: Path) -> None:
    text = "from pyspark.sql import functions as f\n@f.udf('string')\ndef loud(word): ...\n"
    written(tmp_path, text, "shop.py")
    program = (
        "import sys; from pathlib import Path\n"
        "from headwater.spark.pipelines import read_file\n"
        "print(*read_file(Path(sys.argv[1]), {})[1])\n"
    )
    # In a process of its own, since another test may have started a session here.
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "shop.py")],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    assert done.stdout == (
        "error: needs Spark when it is read: make UDFs within functions, or in another file\n"
    )


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    _, (problem,) = read_file(tmp_path / "none.toml")
    assert str(problem).startswith("error: can't be read (No such file or directory)")


def test_what_can_be_read_of_a_bad_file_is_there_with_what_is_not_known(tmp_path: Path) -> None:
    text = "[source]\nstrem = 'a'\nmode = 'stat'\n[target]\nkind = 'archive'\nfolder = 'f'\n"
    read = read_partly(written(tmp_path, text), {})
    assert read.pipeline is not None
    assert read.pipeline.target == Archive(folder=str(tmp_path / "f"))
    assert read.unknown == {"source.strem", "source.stream", "source.mode"}
    assert read.whole == (None, read.problems)


def test_loading_a_bad_file_raises_all_that_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(BadPipeline, match=r"can't run:\n  error: target: say where") as raised:
        load(written(tmp_path, "name = 'x'"), {})
    assert len(raised.value.problems) == 1


def test_a_pipeline_is_a_frozen_value() -> None:
    pipeline = Pipeline(name="x", target=TableTarget(folder="/t"))
    with pytest.raises(AttributeError, match="immutable"):
        pipeline.name = "y"  # type: ignore[misc] # that is the point


@pytest.mark.parametrize("streams", [("r/a,b",), ("[r]",), ("r/a", "r/b"), ("r/a",)])
def test_the_streams_of_a_source_stay_apart_whatever_they_are_called(
    streams: tuple[str, ...],
) -> None:
    options = Source(stream=streams).format_options() | {"url": "http://127.0.0.1:1"}
    assert source_options(options).streams == streams
