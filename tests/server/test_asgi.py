"""The ASGI adapter, mounted in a FastAPI application under uvicorn."""

import http.client
import json
from collections.abc import Iterator

import pytest

from tests.support.asgi import AsgiProcess


@pytest.fixture(scope="module")
def connection() -> Iterator[http.client.HTTPConnection]:
    with AsgiProcess("tests.support.asgi_apps:mounted") as server:
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=20)
        yield connection
        connection.close()


def ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: str | None = None,
    **headers: str,
) -> tuple[http.client.HTTPResponse, bytes]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, named)
    response = connection.getresponse()
    return response, response.read()


def test_streams_live_beside_the_hosts_own_routes(
    connection: http.client.HTTPConnection,
) -> None:
    assert json.loads(ask(connection, "GET", "/hello")[1]) == {"hello": "world"}
    created, _ = ask(connection, "PUT", "/streams/chat/1", '["a"]', content_type="application/json")
    assert created.status == 201
    location = created.getheader("location") or ""
    assert location.endswith("/streams/chat/1")
    read, body = ask(connection, "GET", "/streams/chat/1?offset=-1")
    assert read.status == 200
    assert json.loads(body) == ["a"]


def test_a_fork_names_its_source_by_the_whole_url_path(
    connection: http.client.HTTPConnection,
) -> None:
    ask(connection, "PUT", "/streams/source", '["a"]', content_type="application/json")
    forked, _ = ask(connection, "PUT", "/streams/fork", None, stream_forked_from="/streams/source")
    assert forked.status == 201
    assert json.loads(ask(connection, "GET", "/streams/fork")[1]) == ["a"]


def test_the_body_limit_holds(connection: http.client.HTTPConnection) -> None:
    refused, body = ask(connection, "PUT", "/streams/large", "x" * 1001)
    assert refused.status == 413
    assert json.loads(body)["code"] == "body-too-large"


def test_head_has_no_body_and_no_made_up_length(connection: http.client.HTTPConnection) -> None:
    ask(connection, "PUT", "/streams/head", '["a"]', content_type="application/json")
    response, body = ask(connection, "HEAD", "/streams/head")
    assert response.status == 200
    assert body == b""
    assert response.getheader("stream-next-offset")
