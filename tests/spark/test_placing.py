"""Messages get to their place once, whoever tries it."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.client import Client, ProducerClaim
from headwater.errors import StreamDiffers
from headwater.spark.placing import framed, place
from headwater.spark.ranges import byte_of
from tests.support.patience import wait_until
from tests.support.server import ServerProcess

TEXTS = [json.dumps({"n": n, "pad": "é" * (n % 7)}).encode() for n in range(60)]


def items(client: Client, path: str) -> list[object]:
    return list(client.stream(path).read().items())


def test_messages_are_appended_in_chunks_and_a_second_run_appends_nothing(
    client: Client, room: str
) -> None:
    stream = client.stream(f"{room}/s")
    stream.create()
    first = place(stream, TEXTS, json=True, producer=room, chunk_bytes=100)
    assert first.appended == first.bytes == len(framed(TEXTS, json=True))
    assert items(client, f"{room}/s") == [json.loads(text) for text in TEXTS]
    second = place(stream, TEXTS, json=True, producer=room, chunk_bytes=333)
    assert second == type(second)(len(TEXTS), first.bytes, 0, stream.head().next_offset)
    assert len(items(client, f"{room}/s")) == len(TEXTS)


@pytest.mark.parametrize("cut", [0, 1, 7, 59])
def test_a_run_that_was_cut_short_is_gone_on_with_in_other_chunks(
    client: Client, room: str, cut: int
) -> None:
    stream = client.stream(f"{room}/s")
    stream.create()
    place(stream, TEXTS[:cut], json=True, producer=room, chunk_bytes=50)
    placed = place(stream, TEXTS, json=True, producer=room, chunk_bytes=170)
    assert placed.messages == len(TEXTS)
    assert items(client, f"{room}/s") == [json.loads(text) for text in TEXTS]


def test_a_late_append_of_a_killed_run_is_found_and_not_doubled(client: Client, room: str) -> None:
    stream = client.stream(f"{room}/s")
    stream.create()

    def interrupted() -> Iterator[bytes]:
        # A chunk is sent when the next one begins. Just before, what the first run sent arrives.
        yield TEXTS[0]
        yield TEXTS[1]
        late = b"[" + TEXTS[1] + b"," + TEXTS[2] + b"]"
        claim = ProducerClaim(room, len(framed(TEXTS[:1], json=True)), 0)
        assert not stream.append(late, producer=claim).duplicate
        yield from TEXTS[2:]

    place(stream, interrupted(), json=True, producer=room, chunk_bytes=20)
    assert items(client, f"{room}/s") == [json.loads(text) for text in TEXTS]


def test_a_stream_with_other_messages_is_refused_and_left_alone(client: Client, room: str) -> None:
    stream = client.stream(f"{room}/s")
    stream.create(data=b'[{"other": 1}, {"other": 2}]')
    with pytest.raises(StreamDiffers, match="does not hold the expected data"):
        place(stream, TEXTS, json=True, producer=room)
    assert items(client, f"{room}/s") == [{"other": 1}, {"other": 2}]


def test_a_second_writer_is_noticed(client: Client, room: str) -> None:
    stream = client.stream(f"{room}/s")
    stream.create()

    def disturbed() -> Iterator[bytes]:
        yield TEXTS[0]
        yield TEXTS[1]
        stream.append({"somebody": "else"})
        yield from TEXTS[2:]

    with pytest.raises(StreamDiffers, match="another writer"):
        place(stream, disturbed(), json=True, producer=room, chunk_bytes=20)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    pieces=st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=12),
    there=st.integers(0, 100),
    size=st.integers(1, 50),
)
def test_bytes_are_placed_whatever_was_there_of_them(
    server: ServerProcess, pieces: list[bytes], there: int, size: int
) -> None:
    whole = b"".join(pieces)
    with Client(server.url) as client:
        path = f"bytes/{hash((whole, there, size)) & 0xFFFFFFFFFFFF:x}"
        stream = client.stream(path)
        stream.create("application/octet-stream")
        if whole[:there] and not stream.head().next_offset.endswith(f"{len(whole):016d}"):
            stream.append(whole[:there])
        placed = place(stream, pieces, json=False, producer="p", chunk_bytes=size)
        assert placed.bytes == len(whole)
        assert b"".join(stream.read().bytes()) == whole
        stream.delete()


PLACING = """
import signal
import sys
from headwater.client import Client
from headwater.spark.placing import place
url, path, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
def messages():
    for n in range(count):
        yield b'{"n":%d}' % n
    signal.pause()  # it never comes to its end
with Client(url) as client:
    stream = client.stream(path)
    stream.create()
    place(stream, messages(), json=True, producer="p", chunk_bytes=60)
"""


@pytest.mark.kills
def test_killed_processes_leave_every_message_once(
    server: ServerProcess, client: Client, room: str
) -> None:
    count = 8000
    stream = client.stream(f"{room}/s")
    stream.create()
    tails = [0]
    chance = Random(3)

    def has_moved() -> bool:
        return byte_of(stream.head().next_offset) > tails[-1]

    for upto in range(count // 4, count + 1, count // 4):
        # Each round goes further than the one before can have come, however late it was killed.
        command = [sys.executable, "-c", PLACING, server.url, f"{room}/s", str(upto)]
        # Two at a time: they must not disturb each other either.
        processes = [subprocess.Popen(command) for _ in range(2)]
        wait_until(has_moved, "another message", pause=0.005)
        time.sleep(chance.random() / 10)  # Any moment will do: it is the one of the kill.
        for process in processes:
            process.kill()
        for process in processes:
            process.wait(60)
        tails.append(byte_of(stream.head().next_offset))
    texts = [b'{"n":%d}' % number for number in range(count)]
    assert tails[-1] < len(framed(texts, json=True))
    place(stream, texts, json=True, producer="p")
    assert items(client, f"{room}/s") == [{"n": number} for number in range(count)]
