"""The examples of the state page run, and the published JSON Schema is the one of the types."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from headwater.client import Client
from headwater.state.json_schema import json_schema
from tests.support.server import ServerProcess

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = re.findall(
    r"^## (.*?)\n\n```python\n(.*?)^```$", (DOCS / "state.md").read_text(), re.MULTILINE | re.DOTALL
)


@pytest.mark.parametrize(("title", "code"), EXAMPLES, ids=[title for title, _ in EXAMPLES])
def test_a_use_case_of_section_8_runs(title: str, code: str) -> None:
    with ServerProcess() as server, Client(server.url) as client:
        stream = client.stream("app/1")
        stream.create()
        scope: dict[str, Any] = {"__name__": "example", "stream": stream}
        exec(compile(code, f"{title}.py", "exec"), scope)


def test_there_are_four_use_cases() -> None:
    assert len(EXAMPLES) == 4


def test_the_published_schema_is_up_to_date() -> None:
    assert json.loads((DOCS / "state-events.schema.json").read_text()) == json_schema()


def test_the_schema_accepts_events_and_refuses_others() -> None:
    check = jsonschema.Draft202012Validator(json_schema()).is_valid
    change: dict[str, Any] = {
        "type": "t",
        "key": "k",
        "value": None,
        "headers": {"operation": "insert"},
    }
    assert check(change)
    assert check({**change, "headers": {"operation": "upsert", "txid": "x", "from": 1}})
    assert check({"headers": {"control": "reset", "offset": "1"}})
    assert check({"type": "t", "key": "k", "headers": {"operation": "delete"}})
    assert not check({"type": "t", "key": "k", "headers": {"operation": "insert"}})
    assert not check({**change, "key": ""})
    assert not check({**change, "headers": {"operation": "insert", "txid": ""}})
    assert not check({**change, "headers": {"operation": "insert", "control": "reset"}})
    assert not check({"headers": {"control": "truncate"}})
