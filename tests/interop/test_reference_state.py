"""The reference state package reads what we write, and we read what it writes."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.client import Client
from headwater.state import (
    StateEvent,
    StreamDB,
    change,
    collection,
    control,
    define_stream_state,
    encode_events,
)
from tests.support.node import NODE
from tests.support.server import ServerProcess

pytestmark = pytest.mark.starts_engine

USERS = collection(dict, type="user", key="id")
STATE = define_stream_state({"users": USERS})


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with ServerProcess() as server, Client(server.url) as client:
        yield client


def node(script: str, *arguments: str) -> Any:
    result = subprocess.run(
        [NODE, str(Path(__file__).with_name(script)), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def user(key: str, name: str = "Al") -> StateEvent:
    return USERS.insert({"id": key, "name": name})


def test_each_reads_what_the_other_writes(client: Client) -> None:
    stream = client.stream("ours")
    events = [
        user("1"),
        user("2"),
        USERS.update({"id": "1", "name": "Bo"}, txid="t"),
        USERS.delete("2"),
    ]
    stream.create(data=encode_events(events))
    assert node("state_reference.mjs", client.base_url) == {"1": {"id": "1", "name": "Bo"}}
    with StreamDB(client.stream("theirs"), STATE) as db:
        db.preload()
        assert db.users.all() == {"1": {"id": "1", "name": "Cy"}}
        db.await_txid("t1")
        assert db.quarantined() == []


@pytest.mark.parametrize(
    ("name", "events", "ours"),
    [
        ("reset", [control("reset"), user("2")], ["2"]),
        (
            "snapshot",
            [user("1"), control("snapshot-start"), user("2"), control("snapshot-end")],
            ["2"],
        ),
        ("invalid", [user("1"), change("insert", "user", "3", "no object"), user("2")], ["1", "2"]),
    ],
)
def test_where_the_reference_crashes_or_goes_stale_ours_is_right(
    client: Client, name: str, events: list[StateEvent], ours: list[str]
) -> None:
    stream = client.stream(f"cases/{name}")
    stream.create(data=encode_events(events))
    theirs = node("state_consumer.mjs", stream.url)
    assert theirs.get("keys") != ours, "the reference does it too: this case can go"
    with StreamDB(stream, STATE) as db:
        assert list(db.preload().users) == ours
