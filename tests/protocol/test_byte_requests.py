"""Rules that request bytes are served by a function or by a coroutine, with the same outcome."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.protocol.byte_requests import serve, serve_async
from headwater.protocol.framing import find_position, find_split, skip_messages
from headwater.protocol.offsets import Lineage, Offset

JSON = "application/json"
STORED = b"".join(b"%d,\n" % number for number in range(3000))


@given(st.integers(0, len(STORED) + 1), st.integers(1, 20_000))
def test_a_coroutine_and_a_function_get_the_same_decision(at: int, limit: int) -> None:
    def read(start: int, end: int) -> bytes:
        return STORED[start:end]

    async def read_async(start: int, end: int) -> bytes:
        await asyncio.sleep(0)
        return STORED[start:end]

    def rules() -> list[object]:
        offset, lineage, tail = Offset(1, at), Lineage(1), len(STORED)
        return [
            find_position(offset, lineage, tail, JSON),
            find_split(at, limit, tail, JSON),
            skip_messages(at, tail, limit),
        ]

    for one, other in zip(rules(), rules(), strict=True):
        assert serve(one, read) == asyncio.run(serve_async(other, read_async))  # type: ignore[arg-type] # generators of three kinds


def test_an_error_of_reading_propagates_to_the_caller() -> None:
    def broken(start: int, end: int) -> bytes:
        raise OSError(f"{start} to {end}")

    with pytest.raises(OSError, match="2 to 3"):
        serve(find_position(Offset(1, 3), Lineage(1), 9, JSON), broken)


def test_a_position_that_needs_no_bytes_requests_none() -> None:
    def unread(start: int, end: int) -> bytes:
        raise AssertionError(start, end)

    for at in (0, 9):
        assert serve(find_position(Offset(1, at), Lineage(1), 9, JSON), unread) == at
    assert serve(find_position(Offset(1, 4), Lineage(1), 9, "text/plain"), unread) == 4
