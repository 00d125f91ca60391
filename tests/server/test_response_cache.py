"""Which responses are cached, for how long, and how many."""

from headwater.protocol.expiry import Expiry
from headwater.protocol.lifecycle import StreamConfig
from headwater.protocol.offsets import Offset
from headwater.server.messages import Head, Request, Response
from headwater.server.response_cache import SMALL_RESPONSE_BYTES, Key, ResponseCache
from headwater.storage.store import Chunk, StreamInfo

JSON = StreamConfig("application/json", "application/json")
LIMIT = 1024 * 1024


def info(incarnation: int = 1, tail: int = 10, config: StreamConfig = JSON) -> StreamInfo:
    return StreamInfo("s", config, incarnation, Offset(incarnation, tail), closed=False)


def chunk(described: StreamInfo, *, up_to_date: bool) -> Chunk:
    return Chunk(described, Offset(1, 0), Offset(1, 5), (), up_to_date=up_to_date)


def key(query: str = "offset=-1") -> Key:
    found = ResponseCache.key(Request(Head("GET", "/v1/stream/s", query, {}), b""))
    assert found is not None
    return found


def test_a_response_at_the_tail_is_fresh_until_the_stream_changes() -> None:
    cache = ResponseCache(LIMIT)
    described = info()
    cache.add(key(), chunk(described, up_to_date=True), Response(200, [], (b"[1]",)))
    answer = cache.find(key())
    assert answer is not None
    assert answer.is_fresh(described)
    assert not answer.is_fresh(info(tail=20))


def test_a_response_before_the_tail_is_fresh_as_long_as_the_stream_exists() -> None:
    cache = ResponseCache(LIMIT)
    cache.add(key(), chunk(info(), up_to_date=False), Response(200, [], (b"[1]",)))
    answer = cache.find(key())
    assert answer is not None
    assert answer.is_fresh(info(tail=20))
    assert not answer.is_fresh(info(incarnation=2))
    assert not answer.is_fresh(None)


def test_a_large_response_is_cached_at_its_second_request() -> None:
    cache = ResponseCache(LIMIT)
    body = (b"x" * SMALL_RESPONSE_BYTES, b"y")
    for _ in range(2):
        assert cache.find(key()) is None
        cache.add(key(), chunk(info(), up_to_date=False), Response(200, [], body))
    answer = cache.find(key())
    assert answer is not None
    assert answer.response.body == (b"".join(body),)


def test_a_cached_response_references_no_larger_buffer() -> None:
    cache = ResponseCache(LIMIT)
    block = memoryview(b"[1,\n2,\n" + b"x" * LIMIT)
    cache.add(key(), chunk(info(), up_to_date=True), Response(200, [], (block[:3], b"]")))
    answer = cache.find(key())
    assert answer is not None
    assert answer.response.body == (b"[1,]",)


def test_a_stream_with_a_sliding_ttl_is_not_cached() -> None:
    cache = ResponseCache(LIMIT)
    sliding = info(config=StreamConfig("application/json", "application/json", Expiry(ttl=60)))
    cache.add(key(), chunk(sliding, up_to_date=True), Response(200, [], (b"[1]",)))
    assert cache.find(key()) is None


def test_the_cache_stays_below_its_limit() -> None:
    cache = ResponseCache(4 * SMALL_RESPONSE_BYTES)
    for number in range(20):
        answer = Response(200, [], (b"x" * (SMALL_RESPONSE_BYTES - 2000),))
        cache.add(key(f"offset={number}"), chunk(info(), up_to_date=True), answer)
        cache.find(key("offset=0"))
    kept = [number for number in range(20) if cache.find(key(f"offset={number}"))]
    assert kept == [0, 17, 18, 19]
    for _ in range(2):
        long = Response(200, [], (b"x" * (SMALL_RESPONSE_BYTES + 1),))
        cache.add(key("long"), chunk(info(), up_to_date=True), long)
    assert cache.find(key("long")) is None
