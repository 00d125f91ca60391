"""Operations have the signatures and results of ordinary methods, for mypy and for help().

mypy checks this file with all others: `assert_type` fails there, and so does an ignored error that
is none.
"""

import asyncio
import inspect
import pydoc
from collections.abc import AsyncIterator, Iterator
from typing import Any, assert_type

import pytest

from headwater.client import (
    Appended,
    AsyncClient,
    AsyncStream,
    AsyncWorker,
    Changed,
    Claim,
    Client,
    Created,
    ListedStream,
    SplitPoints,
    Stream,
    StreamInfo,
    SubscriptionCreated,
    Worker,
)
from tests.support.server import ServerProcess


def test_operations_of_a_client_return_values(client: Client, path: str) -> None:
    stream = client.stream(path)
    assert_type(stream.create(), Created)
    assert_type(stream.append(1), Appended)
    assert_type(stream.append_many([1]), Appended)
    assert_type(stream.head(), StreamInfo)
    assert_type(stream.exists(), bool)
    assert_type(stream.content_type(), str)
    assert_type(stream.fork(f"{path}/fork"), Created)
    assert_type(client.streams(f"{path}/*"), Iterator[ListedStream])
    assert_type(client.splits(path), list[str])
    assert_type(client.split_page(path, limit=1), SplitPoints)
    assert_type(client.changes(f"{path}/*", wait=0), Changed)
    name = path.replace("/", "-")
    created = client.subscriptions.create(name, pattern=f"{path}/*", wake_stream=path)
    assert_type(created, SubscriptionCreated)
    assert_type(client.subscriptions.claim(name, "w"), Claim | None)
    assert_type(client.subscriptions.list(), Iterator[dict[str, Any]])
    assert_type(Worker(client, name, print).run_once(), int)
    assert_type(stream.close(), Appended)
    client.subscriptions.delete(name)


def test_operations_of_an_asynchronous_client_return_awaitables(
    server: ServerProcess, path: str
) -> None:
    async def use() -> None:
        async with AsyncClient(server.url) as client:
            stream = client.stream(path)
            assert_type(await stream.create(), Created)
            assert_type(await stream.append(1), Appended)
            assert_type(await stream.head(), StreamInfo)
            assert_type(await stream.exists(), bool)
            assert_type(client.streams(f"{path}/*"), AsyncIterator[ListedStream])
            assert_type(await client.splits(path), list[str])
            name = path.replace("/", "-")
            await client.subscriptions.create(name, pattern=f"{path}/*", wake_stream=path)
            assert_type(client.subscriptions.list(), AsyncIterator[dict[str, Any]])

            async def handle(*_: object) -> None:
                raise AssertionError("there is no work")

            assert_type(await AsyncWorker(client, name, handle).run_once(), int)
            await client.subscriptions.delete(name)

    asyncio.run(use())


def test_wrong_arguments_are_refused_when_checked_and_when_run(stream: Stream) -> None:
    with pytest.raises(TypeError, match="sequence"):
        stream.append(1, sequence="a")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="data"):
        stream.append()  # type: ignore[call-arg]
    result: str = stream.append(1)  # type: ignore[assignment]
    assert isinstance(result, Appended)


@pytest.mark.parametrize("kind", [Stream, AsyncStream])
def test_help_shows_the_signature_and_the_docstring(kind: type[Stream | AsyncStream]) -> None:
    signature = inspect.signature(kind.append)
    assert list(signature.parameters)[:3] == ["self", "data", "seq"]
    assert signature.parameters["close"].default is False
    assert signature.return_annotation is Appended
    assert inspect.signature(kind.delete).return_annotation is None
    assert inspect.iscoroutinefunction(kind.append) is (kind is AsyncStream)
    page = pydoc.plain(pydoc.render_doc(kind))
    # From Python 3.13 on, a long signature has a line for each parameter.
    assert "append(self,data:Any,*,seq:str|None=None" in "".join(page.split())
    assert "Append several values in one step" in page


def test_help_shows_what_a_listing_iterates_over() -> None:
    assert inspect.signature(Client.streams).return_annotation == Iterator[ListedStream]
    assert inspect.signature(AsyncClient.streams).return_annotation == AsyncIterator[ListedStream]


def test_a_bound_operation_has_the_signature_without_self(stream: Stream) -> None:
    assert list(inspect.signature(stream.head).parameters) == []
    assert stream.head.__doc__ == "Return the stream's metadata."
