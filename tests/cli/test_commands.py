"""The commands with a single request: create, head, close, fork, delete."""

import json
import os
import pty
import socket
import subprocess
import sys

from headwater.client import Client
from tests.cli.conftest import Headwater


def test_create_makes_a_json_stream_and_reports_it(
    headwater: Headwater, client: Client, path: str
) -> None:
    said = headwater.ok("create", path)
    tail = client.stream(path).head().next_offset
    assert said == f"Created {path} (application/json); it ends at offset {tail}.\n"
    again = headwater.ok("create", path, "1")
    assert again == (
        f"{path} already exists with this configuration, and DATA was not added; "
        f"it ends at offset {tail}.\n"
    )


def test_create_takes_initial_data_each_argument_one_message(
    headwater: Headwater, client: Client, path: str
) -> None:
    headwater.ok("create", path, "[1, 2]", '{"a": "ä"}', "--ttl", "60")
    (chunk,) = client.stream(path).read()
    assert chunk.messages() == [b"[1, 2]", '{"a": "ä"}'.encode()]
    assert client.stream(path).head().ttl == 60


def test_create_can_close_at_once(headwater: Headwater, client: Client, path: str) -> None:
    said = headwater.ok("create", path, "all of it", "--content-type", "text/plain", "--closed")
    assert "it is closed at offset" in said
    (chunk,) = client.stream(path).read()
    assert (chunk.data, chunk.closed) == (b"all of it", True)


def test_create_over_another_configuration_fails_with_the_servers_message(
    headwater: Headwater, path: str
) -> None:
    headwater.ok("create", path)
    done = headwater.run("create", path, "--content-type", "text/plain")
    assert done.returncode == 1
    assert done.stderr.decode().startswith(f"Error: '{path}' exists, but its content type is")


def test_create_refuses_an_argument_that_is_not_json(headwater: Headwater, path: str) -> None:
    done = headwater.run("create", path, "hello")
    assert done.returncode == 1
    assert done.stderr.decode().startswith("Error: 'hello' is not JSON (a text needs quotes")


def test_a_stream_may_be_a_whole_url_and_the_server_an_option(
    headwater: Headwater, server_url: str, path: str
) -> None:
    url = f"{server_url}/v1/stream/{path}"
    elsewhere = Headwater("http://127.0.0.1:9")
    assert elsewhere.ok("create", url).startswith(f"Created {url} ")
    assert elsewhere.ok("append", path, "1", "--url", server_url).startswith("Appended 1 message ")
    assert headwater.ok("read", url) == "1\n"


def test_head_aligns_names_and_values(headwater: Headwater, path: str) -> None:
    headwater.ok("create", path, "--ttl", "60")
    lines = headwater.ok("head", path).splitlines()
    shown = dict(line.split(None, 1) for line in lines)
    assert shown["content-type:"] == "application/json"
    assert shown["closed:"] == "no"
    assert shown["ttl:"] == "60"
    assert "expires-at:" not in shown
    assert len({line.index(value) for line, value in zip(lines, shown.values(), strict=True)}) == 1


def test_head_prints_one_json_object(headwater: Headwater, path: str) -> None:
    headwater.ok("create", path, "--closed", "--expires-at", "2099-01-01T00:00:00Z")
    fields = json.loads(headwater.ok("head", path, "--json"))
    assert fields["closed"] is True
    assert fields["expires_at"] == "2099-01-01T00:00:00Z"
    assert fields["ttl"] is None
    assert fields["url"].endswith(path)


def test_close_ends_a_stream_with_last_data_and_may_be_repeated(
    headwater: Headwater, client: Client, path: str
) -> None:
    headwater.ok("create", path)
    said = headwater.ok("close", path, '"bye"')
    (chunk,) = client.stream(path).read()
    assert (chunk.messages(), chunk.closed) == ([b'"bye"'], True)
    assert said == f"Closed {path}; it ends at offset {chunk.next_offset}.\n"
    assert headwater.ok("close", path) == said
    refused = headwater.run("close", path, '"more"')
    assert refused.returncode == 1
    assert b"takes no more appends" in refused.stderr


def test_fork_diverges_at_an_offset_plus_a_number_of_messages(
    headwater: Headwater, path: str
) -> None:
    headwater.ok("create", path, "1", "2", "3")
    fork = f"{path}/fork"
    said = headwater.ok("fork", path, fork, "--offset", "-1", "--sub-offset", "2")
    assert said.startswith(f"Forked {path} as {fork}; it ends at offset ")
    assert headwater.ok("read", fork) == "1\n2\n"
    again = headwater.ok("fork", path, fork, "--offset", "-1", "--sub-offset", "2")
    assert again.startswith(f"{fork} is already this fork of {path}; ")
    missing = headwater.run("fork", f"{path}/none", f"{path}/other")
    assert missing.returncode == 1
    assert f"Error: '{path}/none' does not exist" in missing.stderr.decode()


def test_delete_does_not_ask_in_a_script(headwater: Headwater, path: str) -> None:
    headwater.ok("create", path)
    assert headwater.ok("delete", path) == f"Deleted {path}.\n"
    assert headwater.run("head", path).returncode == 1


def test_delete_asks_on_a_terminal(headwater: Headwater, server_url: str, path: str) -> None:
    headwater.ok("create", path)

    def delete(reply: bytes, *options: str) -> subprocess.CompletedProcess[bytes]:
        ours, theirs = pty.openpty()
        try:
            os.write(ours, reply)
            return subprocess.run(
                [sys.executable, "-m", "headwater", "delete", path, "--url", server_url, *options],
                stdin=theirs,
                capture_output=True,
                check=False,
                timeout=60,
            )
        finally:
            os.close(ours)
            os.close(theirs)

    refused = delete(b"n\n")
    assert refused.returncode == 1
    assert b"Delete " in refused.stderr
    assert headwater.run("head", path).returncode == 0
    assert delete(b"", "--yes").returncode == 0
    assert headwater.run("head", path).returncode == 1


def test_a_command_reports_that_it_waits_for_the_server(path: str) -> None:
    ours, theirs = pty.openpty()
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,  # accepts, and never answers
        os.fdopen(ours, "rb", buffering=0) as terminal,
        os.fdopen(theirs, "wb") as stderr,
        Headwater(f"http://127.0.0.1:{listener.getsockname()[1]}").start(
            "head", path, stderr=stderr
        ),
    ):
        assert terminal.read(100).decode() == "\r\x1b[KWaiting for the server …"
