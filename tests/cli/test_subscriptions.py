"""The commands on subscriptions and keys."""

import json

from headwater.client import Client
from tests.cli.conftest import Headwater


def test_a_subscription_is_created_confirmed_shown_listed_and_deleted(
    headwater: Headwater, client: Client, path: str
) -> None:
    name = path.replace("/", "-")
    client.stream(f"{path}/a").create(content_type="application/json")
    arguments = (
        *("subscriptions", "create", name, "--pattern", f"{path}/*"),
        *("--wake-stream", f"{path}-wake", "--lease", "5", "--description", "for tests"),
    )
    assert headwater.ok(*arguments) == (
        f"Created subscription {name}; it covers 1 stream so far.\n"
    )
    assert headwater.ok(*arguments).startswith(f"Confirmed subscription {name}")
    shown = headwater.ok("subscriptions", "show", name)
    assert "for tests" in shown
    assert f"  {path}/a  glob  acked " in shown
    described = json.loads(headwater.ok("subscriptions", "show", name, "--json"))
    assert described["lease_ttl_ms"] == 5000
    assert f"{name}  pull-wake  active  1 stream  " in headwater.ok("subscriptions", "list")
    assert headwater.ok("subscriptions", "delete", name) == f"Deleted subscription {name}.\n"
    gone = headwater.run("subscriptions", "show", name)
    assert gone.returncode == 1
    assert b"does not exist or was deleted" in gone.stderr
    assert b"Traceback" not in gone.stderr


def test_another_configuration_is_a_conflict(headwater: Headwater, path: str) -> None:
    name = path.replace("/", "-")
    create = ("subscriptions", "create", name, "--wake-stream", "w", "--pattern")
    headwater.ok(*create, "a/*")
    conflict = headwater.run(*create, "b/*")
    assert conflict.returncode == 1
    assert b"first, or use another id" in conflict.stderr
    headwater.ok("subscriptions", "delete", name)


def test_a_webhook_that_is_not_allowed_is_refused(headwater: Headwater) -> None:
    done = headwater.run(
        *("subscriptions", "create", "x", "--stream", "a", "--webhook", "http://10.0.0.1/")
    )
    assert done.returncode == 1
    assert b"https://" in done.stderr


def test_contradictory_options_are_wrong_usage(headwater: Headwater) -> None:
    for arguments in (
        ("--pattern", "a"),
        ("--wake-stream", "w"),
        ("--pattern", "a", "--wake-stream", "w", "--webhook", "https://x.example/"),
        ("--pattern", "a", "--wake-stream", "w", "--lease", "0"),
    ):
        done = headwater.run("subscriptions", "create", "x", *arguments)
        assert done.returncode == 2, arguments


def test_keys_are_rotated_while_the_server_runs(headwater: Headwater) -> None:
    first, second = headwater.ok("keys", "rotate"), headwater.ok("keys", "rotate")
    assert first != second
    assert first.startswith("Webhooks are signed with ds_")
