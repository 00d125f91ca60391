"""The public clients work with the server unchanged."""

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import durable_streams
import pytest

from tests.support.node import NODE
from tests.support.server import ServerProcess

pytestmark = pytest.mark.starts_engine


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with ServerProcess() as server:
        yield server


def test_the_typescript_client_creates_appends_reads_and_follows(server: ServerProcess) -> None:
    script = Path(__file__).with_name("official_client.mjs")
    result = subprocess.run(
        [NODE, str(script), server.url], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    saw = json.loads(result.stdout)
    three = [{"n": 1}, {"n": 2}, {"n": 3}]
    assert saw["caughtUp"] == three
    assert saw["sse"] == [*three, {"n": 4, "last": True}]
    assert saw["longPoll"] == [*three, {"n": 4, "last": True}]
    assert saw["contentType"] == "application/json"
    assert saw["gone"] is True


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_the_python_client_creates_appends_reads_and_follows(
    server: ServerProcess, live: durable_streams.LiveMode
) -> None:
    url = f"{server.url}/v1/stream/interop/python"
    with durable_streams.DurableStream.create(url, content_type="application/json") as handle:
        handle.append({"n": 1})
        handle.append({"n": 2})
        with durable_streams.stream(url, offset="-1", live=False) as response:
            assert response.read_json() == [{"n": 1}, {"n": 2}]
        seen: list[Any] = []

        def follow() -> None:
            with durable_streams.stream(url, offset="-1", live=live) as response:
                for item in response.iter_json():
                    seen.append(item)
                    if item.get("last"):
                        return

        follower = threading.Thread(target=follow, daemon=True)
        follower.start()
        handle.append({"n": 3, "last": True})
        follower.join(timeout=60)
        assert not follower.is_alive()
        assert seen == [{"n": 1}, {"n": 2}, {"n": 3, "last": True}]
        assert handle.head().content_type == "application/json"
        handle.delete()
