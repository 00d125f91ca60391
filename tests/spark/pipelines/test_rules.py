"""What contradicts each other in a pipeline is told before anything runs."""

from pathlib import Path
from typing import Any

import pytest

from headwater.spark.pipelines import read_document

STREAM = {"kind": "stream", "stream": "out"}


def told(**document: Any) -> list[str]:
    whole = {"name": "x", "source": {"stream": "in/*"}, "target": STREAM, **document}
    return [str(problem) for problem in read_document(whole, Path("/work"), {})[1]]


def test_a_good_pipeline_has_no_problem() -> None:
    assert told() == []


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (
            {"target": {"kind": "spark", "format": "delta", "folder": "a", "table": "b"}},
            "error: target: name a folder or a table, not both",
        ),
        (
            {"target": {"kind": "spark", "format": "headwater"}},
            "error: target.format: streams are a kind of target",
        ),
        (
            {"target": {"kind": "spark", "format": "delta", "folder": "checkpoints/x"}},
            "error: target.folder: is the checkpoint's folder",
        ),
        ({"source": {}}, "error: source.stream: name a stream, a list of them, or a glob"),
        ({"source": {"stream": "in", "table": "t"}}, "error: source: name streams or a table"),
        ({"source": {"table": "t"}}, "error: source.table: a table can be published, but not"),
        (
            {"source": {"stream": "in", "options": {"waitSeconds": 99}}},
            "error: source.options.waitSeconds: '99' is not a number of seconds from 0 to 20",
        ),
        (
            {"source": {"stream": "in", "options": {"maxBytes": 9}}},
            "error: source.options.maxBytes: there is none of that name; did you mean ",
        ),
        (
            {"source": {"stream": "in", "options": {"token": "x"}}},
            "error: source.options.token: set it as source.token",
        ),
        ({"source": {"stream": "in", "url": "shop"}}, "error: source.url: set it to the server's"),
        (
            {"source": {"stream": "in", "mode": "state", "schema": "a int"}},
            "error: source.mode: 'state' has its own columns: remove the schema",
        ),
        ({"transform": [{}]}, "error: transform 1: has to have either sql or python"),
        (
            {"transform": [{"sql": "SELECT 1", "python": "a:b"}]},
            "error: transform 1: has to have either sql or python",
        ),
        ({"transform": [{"sql": "  "}]}, "error: transform 1.sql: is empty: write a SELECT"),
        (
            {"transform": [{"python": "tidy"}]},
            "error: transform 1.python: 'tidy' has to be module:function or file.py:function",
        ),
        (
            {"transform": [{"sql": "SELECT 1", "name": "a-b"}]},
            "error: transform 1.name: 'a-b' can't name a view",
        ),
        (
            {"transform": [{"sql": "SELECT 1", "name": "Source"}]},
            "error: transform 1.name: 'Source' names another view already",
        ),
        (
            {"target": {"kind": "stream", "stream": "in/new"}},
            "error: target.stream: 'in/new' is one of the streams that are read",
        ),
        (
            {"metrics_stream": "in/metrics"},
            "error: metrics_stream: 'in/metrics' is one of the streams that are read",
        ),
        (
            {"target": {"kind": "stream", "stream": "out/*"}},
            "error: target.stream: a glob can't be written to",
        ),
        (
            {"target": {**STREAM, "options": {"writeID": "x"}}},
            "error: target.options: a pipeline numbers its batches itself",
        ),
        (
            {"target": {"kind": "table", "folder": "c"}, "checkpoint": "c"},
            "error: target.folder: is the checkpoint's folder",
        ),
        (
            {"target": {"kind": "materialize", "tables": "t"}, "transform": [{"sql": "SELECT 1"}]},
            "error: transform: 'materialize' reads its source as it is",
        ),
        (
            {
                "source": {"stream": "in", "mode": "raw"},
                "target": {"kind": "project", "tables": "t"},
            },
            "error: source.mode: 'project' reads in its own mode: remove it",
        ),
        (
            {
                "source": {"stream": "in", "mode": "state", "options": {"Types": "user"}},
                "target": {"kind": "materialize", "tables": "t"},
            },
            "error: source.options.types: 'materialize' takes changes of all types: remove it",
        ),
        (
            {
                "source": {"stream": "in", "schema": "a int"},
                "target": {"kind": "archive", "folder": "t"},
            },
            "error: source.schema: 'archive' knows its columns: remove it",
        ),
        (
            {"target": {"kind": "project", "tables": "t", "publish": "in/state"}},
            "error: target.publish: 'in/state' is one of the streams that are read",
        ),
        (
            {"target": {"kind": "snapshot", "stream": "short"}},
            "error: source.stream: a snapshot is taken of one stream",
        ),
        (
            {"target": {"kind": "restore", "folder": "f"}},
            "error: source: 'restore' reads its archive alone",
        ),
        (
            {"target": {"kind": "restore", "folder": "f", "until": {"a": "5"}}},
            "error: target.until: '5' is no offset",
        ),
        ({"target": {"kind": "archive", "folder": ""}}, "error: target.folder: is empty"),
        ({"trigger": "every day"}, "error: trigger: 'every day' is none of default, "),
        (
            {
                "source": {"table": "t"},
                "target": {"kind": "publish", "stream": "b", "type": "u", "key": "k"},
                "trigger": "every 3 seconds",
            },
            "error: trigger: 'publish' runs once and ends",
        ),
        (
            {
                "source": {"table": "t"},
                "target": {
                    "kind": "publish",
                    "stream": "b",
                    "type": "u",
                    "key": "k",
                    "columns": ["a"],
                    "value": "b",
                },
            },
            "error: target: name the columns of the value or the one that holds it, not both",
        ),
        ({"master": "local", "remote": "sc://h"}, "error: remote: a session is on a master or"),
        ({"remote": "host:15002"}, "error: remote: 'host:15002' is no Spark Connect URL"),
        ({"metrics_stream": ""}, "error: metrics_stream: is empty"),
        ({"metrics_stream": "m/*"}, "error: metrics_stream: a glob can't be written to"),
        (
            {"target": {"kind": "project", "tables": "t", "publish": "http://x/y"}},
            "error: target.publish: 'http://x/y' is no path of a stream",
        ),
        (
            {"target": {"kind": "snapshot", "stream": "__ds/x"}},
            "error: target.stream: '__ds/x' is no path of a stream",
        ),
        (
            {"target": {"kind": "restore", "folder": "f", "stream": {"a": "b/*"}}},
            "error: target.stream: a glob can't be written to",
        ),
    ],
)
def test_a_contradiction_is_told(document: dict[str, Any], problem: str) -> None:
    found = told(**document)
    assert any(each.startswith(problem) for each in found), found


PUBLISH = {"kind": "publish", "stream": "b", "type": "u", "key": "k"}
RESTORE = {"kind": "restore", "folder": "f"}


@pytest.mark.parametrize("blank", ["", " ", "\t"])
@pytest.mark.parametrize(
    ("place", "document"),
    [
        ("source.stream", {"source": {"stream": "{}"}}),
        ("source.stream", {"source": {"stream": ["in", "{}"]}}),
        ("source.stream", {"source": {"stream": "in,{}"}}),
        ("source.stream", {"source": {"stream": ["/{}/"]}}),
        ("source.schema", {"source": {"stream": "in", "schema": "{}"}}),
        ("source.table", {"source": {"table": "{}"}, "target": PUBLISH}),
        ("target.stream", {"target": {"kind": "stream", "stream": "{}"}}),
        ("target.stream", {"target": {"kind": "stream", "stream": "/{}"}}),
        ("target.folder", {"target": {"kind": "table", "folder": "{}"}}),
        ("target.folder", {"target": {"kind": "spark", "format": "orc", "folder": "{}"}}),
        ("target.table", {"target": {"kind": "spark", "format": "orc", "table": "{}"}}),
        ("target.format", {"target": {"kind": "spark", "format": "{}", "folder": "f"}}),
        ("target.tables", {"target": {"kind": "materialize", "tables": "{}"}}),
        (
            "target.schemas.user",
            {"target": {"kind": "materialize", "tables": "t", "schemas": {"user": "{}"}}},
        ),
        ("target.tables", {"target": {"kind": "project", "tables": "{}"}}),
        ("target.publish", {"target": {"kind": "project", "tables": "t", "publish": "{}"}}),
        ("target.folder", {"target": {"kind": "archive", "folder": "{}"}}),
        ("target.folder", {"source": {}, "target": {**RESTORE, "folder": "{}"}}),
        ("target.stream", {"source": {}, "target": {**RESTORE, "stream": "{}"}}),
        ("target.stream", {"source": {}, "target": {**RESTORE, "stream": {"a": "{}"}}}),
        (
            "target.stream",
            {"source": {"stream": "in"}, "target": {"kind": "snapshot", "stream": "{}"}},
        ),
        ("target.stream", {"target": {**PUBLISH, "stream": "{}"}}),
        ("metrics_file", {"metrics_file": "{}"}),
        ("metrics_stream", {"metrics_stream": "{}"}),
    ],
)
def test_a_blank_name_is_told_once_and_in_its_place(
    place: str, document: dict[str, Any], blank: str
) -> None:
    (problem,) = told(**filled(document, blank))
    assert problem.startswith(f"error: {place}: "), problem
    assert "name " in problem or "write " in problem


@pytest.mark.parametrize(
    ("place", "document"),
    [
        ("target.type", {"target": {**PUBLISH, "type": "{}"}}),
        ("target.key", {"target": {**PUBLISH, "key": "{}"}}),
        ("target.key", {"target": {**PUBLISH, "key": ["a", "{}"]}}),
        ("target.columns", {"target": {**PUBLISH, "columns": ["{}"]}}),
        ("target.value", {"target": {**PUBLISH, "value": "{}"}}),
        (
            "target.partition_by",
            {"target": {"kind": "spark", "format": "orc", "folder": "f", "partition_by": ["{}"]}},
        ),
        (
            "target.schemas",
            {"target": {"kind": "materialize", "tables": "t", "schemas": {"{}": "n int"}}},
        ),
    ],
)
def test_types_and_columns_may_have_any_name_but_none(place: str, document: dict[str, Any]) -> None:
    (problem,) = told(**filled(document, ""))
    assert problem.startswith(f"error: {place}: "), problem
    assert told(**filled(document, " ")) == []


def test_a_key_without_columns_is_told() -> None:
    (problem,) = told(target={**PUBLISH, "key": []})
    assert problem.startswith("error: target.key: is empty: name the column")


def filled(value: Any, blank: str) -> Any:
    if isinstance(value, dict):
        return {name.replace("{}", blank): filled(one, blank) for name, one in value.items()}
    if isinstance(value, list):
        return [filled(one, blank) for one in value]
    return value.replace("{}", blank)


def test_a_checkpoint_that_is_left_out_is_beside_the_file_and_one_of_spaces_is_told() -> None:
    assert told(checkpoint="") == []
    assert told(checkpoint=" ") == ["error: checkpoint: is empty: name a folder, or remove it"]


def test_types_for_a_job_of_all_types_are_told_with_nothing_that_contradicts_it() -> None:
    source = {"stream": "in", "options": {"types": "user", "waitSeconds": "x"}}
    found = told(source=source, target={"kind": "materialize", "tables": "t"})
    assert [each.partition(": ")[2].partition(":")[0] for each in found] == [
        "source.options.types",
        "source.options.waitSeconds",
    ]


def test_another_server_makes_no_loop() -> None:
    assert told(target={"kind": "stream", "stream": "in/new", "url": "http://other:1"}) == []
