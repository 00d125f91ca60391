"""Help texts, and exit codes that distinguish wrong usage from failure."""

import pytest

from tests.cli.conftest import Headwater

COMMANDS = [
    *("serve", "create", "append", "read", "head", "close", "fork", "delete"),
    *("subscriptions", "keys", "state", "runs", "pipeline"),
    *("info", "check", "repair", "backup"),
]


def test_commands_are_listed_in_the_order_of_the_life_of_a_stream(headwater: Headwater) -> None:
    text = headwater.ok("--help")
    listed = text.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in listed] == COMMANDS
    assert all(line.endswith(".") and not line.endswith("...") for line in listed)
    assert text.partition("Examples:\n")[2].count("headwater ") == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help_text(headwater: Headwater, command: str) -> None:
    assert headwater.ok(command, "-h").startswith(f"Usage: python -m headwater {command}")


@pytest.mark.parametrize(
    "arguments",
    [
        ("create",),
        ("create", ""),
        ("create", "x", "--ttl", "-1"),
        ("create", "x", "--ttl", "1", "--expires-at", "2099-01-01T00:00:00Z"),
        ("create", "x", "--expires-at", "tomorrow"),
        ("create", "x", "--content-type", "text"),
        ("create", "x", "--url", "localhost:4437"),
        ("create", "x", "--url", "http://host:notaport"),
        ("append", "x", "1", "-"),
        ("append", "x", "1", "--json-lines"),
        ("append", "x", "1", "--resume", "position"),
        ("read", "x", "--offset", "a b"),
        ("read", "x", "--offset", "-1,"),
        ("read", "x", "--offset", "-1,x"),
        ("read", "x", "--offset", ",1"),
        ("read", "x", "--live", "websocket"),
        ("fork", "http://one/x", "http://two/y"),
        ("unknown",),
    ],
)
def test_wrong_usage_exits_with_2(headwater: Headwater, arguments: tuple[str, ...]) -> None:
    done = headwater.run(*arguments)
    assert done.returncode == 2
    assert b"Error: " in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("append", "none", "1"),
        ("append", "none", "--json-lines"),
        ("read", "none"),
        ("read", "none", "--follow"),
        ("head", "none"),
        ("close", "none"),
        ("delete", "none"),
    ],
)
def test_a_missing_stream_is_reported_in_one_sentence_with_exit_code_1(
    headwater: Headwater, arguments: tuple[str, ...]
) -> None:
    done = headwater.run(*arguments)
    assert done.returncode == 1
    assert done.stdout == b""
    (line,) = done.stderr.decode().splitlines()
    assert line == "Error: There is no stream none; create it with: headwater create none"


@pytest.mark.parametrize("arguments", [("head", "x"), ("read", "x", "-f"), ("append", "x", "1")])
def test_an_unreachable_server_is_reported_at_once(arguments: tuple[str, ...]) -> None:
    done = Headwater("http://127.0.0.1:9").run(*arguments)
    assert done.returncode == 1
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("Error: Can't reach http://127.0.0.1:9: Connection refused.")
