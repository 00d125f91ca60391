"""`headwater state` over a real server."""

import csv
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet
import pytest

from headwater.client import Client
from headwater.state import change, encode_events
from headwater.state.snapshots import end_event, start_event
from tests.support.server import ServerProcess


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess() as server:
        with Client(server.url) as client:
            stream = client.stream("chat/1")
            stream.create()
            events = [
                change("insert", "user", "u1", {"name": "Al", "age": 3}),
                change("insert", "user", "u2", {"name": "\x1b[31mBo", "tags": ["x"]}),
                change("insert", "user", "u3", {"name": "gone"}),
                change("delete", "user", "u3"),
                change("insert", "flag", "dark", True),
            ]
            stream.append(encode_events(events))
            stream.append(b'{"no":"event"}')
            good = client.stream("good")
            good.create(data=encode_events(events))
            client.stream("empty").create()
        yield server


def run(server: ServerProcess, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        [sys.executable, "-m", "headwater", "state", *arguments, "--url", server.url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == code, result.stderr
    return result


def test_show_prints_a_table_for_each_type(server: ServerProcess) -> None:
    result = run(server, "show", "chat/1")
    assert "flag (1)\nkey   value\n----  -----\ndark  true" in result.stdout
    assert "u1   Al" in result.stdout
    assert "gone" not in result.stdout
    assert "\x1b" not in result.stdout
    assert "3 entities; chat/1 was read up to offset" in result.stderr
    assert "1 message quarantined" in result.stderr


def test_show_chooses_a_type_and_a_key(server: ServerProcess) -> None:
    result = run(server, "show", "chat/1", "--type", "user", "--key", "u1", "--json")
    assert json.loads(result.stdout) == {
        "type": "user",
        "key": "u1",
        "value": {"name": "Al", "age": 3},
    }


def test_show_follows_until_the_stream_is_closed(server: ServerProcess) -> None:
    with Client(server.url) as client:
        stream = client.stream("followed")
        stream.create(data=encode_events([change("insert", "n", "a", 1)]))
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "headwater", "state", "show", "followed", "-f", "--json"),
                *("--url", server.url),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["value"] == 1
        stream.close(encode_events([change("update", "n", "a", 2)]))
        out, err = process.communicate(timeout=60)
    assert json.loads(out.splitlines()[-1])["value"] == 2
    assert "followed is closed and ends at offset" in err


def test_show_starts_from_a_snapshot(server: ServerProcess) -> None:
    with Client(server.url) as client:
        good = client.stream("good").head().next_offset
        begin = client.stream("good.snapshot").create().next_offset
        events = [
            start_event("good", good),
            change("insert", "user", "only", {"in": "the snapshot"}).encode(),
            end_event("good", good, begin),
        ]
        client.stream("good.snapshot").append_many(events)
    result = run(server, "show", "good", "--snapshot", "good.snapshot", "--json")
    assert [json.loads(line)["key"] for line in result.stdout.splitlines()] == ["only"]
    result = run(server, "show", "chat/1", "--snapshot", "good.snapshot", code=1)
    assert "holds snapshots of 'good'" in result.stderr


def test_validate_lists_violations_with_positions(server: ServerProcess, tmp_path: Path) -> None:
    assert "is valid" in run(server, "validate", "good").stderr
    assert (
        "a message at -1,5: headers: is missing" in run(server, "validate", "chat/1", code=1).stdout
    )
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"user": {"required": ["age"]}, "flag": {"type": "boolean"}}))
    result = run(server, "validate", "good", "--schema", str(schema), code=1)
    assert "user 'u2' at -1,1: 'age' is a required property" in result.stdout
    assert "2 invalid messages in good." in result.stderr
    schema.write_text("[]")
    assert (
        "must hold a JSON Schema"
        in run(server, "validate", "good", "--schema", str(schema), code=1).stderr
    )


def test_a_position_that_validate_prints_is_accepted_as_an_offset(server: ServerProcess) -> None:
    printed = run(server, "validate", "chat/1", code=1).stdout
    position = printed.split(" at ")[1].split(": ")[0]
    read = subprocess.run(
        [sys.executable, "-m", "headwater", "read", "chat/1", "--offset", position],
        capture_output=True,
        env={**os.environ, "HEADWATER_URL": server.url},
        timeout=60,
        check=True,
    )
    assert read.stdout == b'{"no":"event"}\n'


def test_export_writes_sqlite(server: ServerProcess, tmp_path: Path) -> None:
    target = tmp_path / "out.db"
    assert (
        "Wrote 3 entities"
        in run(server, "export", "good", "--to", "sqlite", "-o", str(target)).stderr
    )
    database = sqlite3.connect(target)
    assert database.execute('SELECT key, name, age FROM "user" ORDER BY key').fetchall() == [
        ("u1", "Al", 3),
        ("u2", "\x1b[31mBo", None),
    ]
    database.close()
    again = run(server, "export", "good", "--to", "sqlite", "-o", str(target), code=1)
    assert "exists; choose another --output" in again.stderr


def test_export_writes_csv_and_parquet(server: ServerProcess, tmp_path: Path) -> None:
    run(server, "export", "good", "--to", "csv", "-o", str(tmp_path / "csv"))
    with (tmp_path / "csv" / "user.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["key"] for row in rows] == ["u1", "u2"]
    assert json.loads(rows[0]["value"]) == {"name": "Al", "age": 3}
    one = tmp_path / "user.parquet"
    run(server, "export", "good", "--to", "parquet", "--type", "user", "-o", str(one))
    table = pyarrow.parquet.read_table(one).to_pydict()
    assert table["age"] == [3, None]
    assert table["tags"] == [None, '["x"]']


def test_errors_are_reported_in_one_sentence(server: ServerProcess) -> None:
    assert "There is no stream nowhere" in run(server, "show", "nowhere", code=1).stderr
    assert "holds no state" in run(server, "export", "empty", "--to", "csv", code=1).stderr
