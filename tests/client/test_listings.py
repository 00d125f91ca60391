"""Operations on many streams: listing, splitting, waiting for changes."""

import asyncio
import json

import pytest

from headwater.client import AsyncClient, Client
from headwater.errors import StreamNotFound


def test_streams_are_listed_page_by_page(client: Client, path: str) -> None:
    names = [f"{path}/{number:04d}" for number in range(1005)]
    for name in names:
        client.stream(name).create()
    assert [stream.path for stream in client.streams(f"{path}/*")] == names


def test_a_long_stream_is_split_by_several_requests(client: Client, path: str) -> None:
    client.stream(path).create(data=json.dumps(list(range(1500))).encode())
    offsets = client.splits(path, size=1)
    assert len(offsets) == 1501
    assert [len(next(client.stream(path).read(at)).items()) for at in offsets[-3:]] == [2, 1, 0]
    assert client.splits(path, offsets[10], offsets[12], size=1) == offsets[10:13]
    with pytest.raises(StreamNotFound):
        client.splits(f"{path}/none")


def test_a_change_is_reported_after_the_cursor(client: Client, path: str) -> None:
    before = client.changes(f"{path}/*")
    assert before.streams is None
    client.stream(f"{path}/new").create()
    changed = client.changes(f"{path}/*", after=before.cursor, wait=5)
    assert [stream.path for stream in changed.streams or ()] == [f"{path}/new"]
    assert client.changes(f"{path}/*", after=changed.cursor, wait=0.05).streams == []


def test_the_asynchronous_client_does_the_same(client: Client, path: str) -> None:
    client.stream(f"{path}/a").create(data=b"[1,2,3]")

    async def look() -> tuple[list[str], int, object]:
        async with AsyncClient(client.base_url) as other:
            found = [stream.path async for stream in other.streams(f"{path}/**")]
            pieces = await other.splits(f"{path}/a", size=1)
            return found, len(pieces), (await other.changes(f"{path}/a")).streams

    assert asyncio.run(look()) == ([f"{path}/a"], 4, None)
