"""Each operation against a real server."""

import os

import msgspec
import pytest

from headwater import errors
from headwater.client import NO_RETRY, Client, ProducerClaim, Stream
from tests.support.server import ServerProcess


def test_a_stream_is_created_once(client: Client, path: str) -> None:
    stream = client.stream(path)
    first = stream.create(data=b'[{"n": 1}]', ttl=3600)
    assert first.new
    assert first.content_type == "application/json"
    again = stream.create(ttl=3600)
    assert not again.new
    assert again.next_offset == first.next_offset
    with pytest.raises(errors.StreamExists, match="content type") as caught:
        stream.create(content_type="text/plain", ttl=3600)
    assert caught.value.status == 409
    assert caught.value.code == "config-mismatch"
    assert caught.value.url == stream.url


def test_what_is_appended_is_read_back(stream: Stream) -> None:
    first = stream.append(b'{"n": 1}')
    second = stream.append_many([b"[2, 2]", 3])
    assert second.next_offset > first.next_offset
    (chunk,) = stream.read()
    assert chunk.messages() == [b'{"n": 1}', b"[2, 2]", b"3"]
    assert chunk.up_to_date
    assert not chunk.closed
    assert chunk.next_offset == second.next_offset
    (rest,) = stream.read(first.next_offset)
    assert rest.messages() == [b"[2, 2]", b"3"]


def test_reading_from_now_returns_the_end_and_no_data(stream: Stream) -> None:
    tail = stream.append(b"1").next_offset
    (chunk,) = stream.read("now")
    assert chunk.empty
    assert chunk.next_offset == tail


def test_a_long_stream_is_read_in_contiguous_batches(client: Client, path: str) -> None:
    stream = client.stream(path)
    data = os.urandom(3 * 1024 * 1024 + 17)
    stream.create(data=data, content_type="application/octet-stream")
    chunks = list(stream.read())
    assert len(chunks) > 1
    assert b"".join(chunk.data for chunk in chunks) == data
    assert [chunk.up_to_date for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_a_reader_stops_at_the_until_offset(client: Client, path: str) -> None:
    stream = client.stream(path)
    stream.create()
    ends = [stream.append(number).next_offset for number in range(6)]
    assert list(stream.read(ends[1], until=ends[3]).items()) == [2, 3]
    assert list(stream.read(until=ends[-1]).items()) == list(range(6))
    assert list(stream.read(ends[3], until=ends[1])) == []


def test_the_content_type_is_requested_if_it_is_unknown(client: Client, path: str) -> None:
    client.stream(path).create(content_type="text/plain")
    client.stream(path).append("Zeile ä\n")
    (chunk,) = client.stream(path).read()
    assert chunk.data == "Zeile ä\n".encode()
    with pytest.raises(errors.ContentTypeMismatch):
        client.stream(path).append(b"1", content_type="application/json")


def test_a_repeated_append_of_a_producer_is_a_duplicate(stream: Stream) -> None:
    claim = ProducerClaim("writer", 0, 0)
    assert not stream.append(b"1", producer=claim).duplicate
    assert stream.append(b"1", producer=claim).duplicate
    with pytest.raises(errors.ProducerGap) as gap:
        stream.append(b"1", producer=ProducerClaim("writer", 0, 5))
    assert (gap.value.expected, gap.value.received) == (1, 5)
    stream.append(b"2", producer=ProducerClaim("writer", 3, 0))
    with pytest.raises(errors.ProducerFenced) as fenced:
        stream.append(b"1", producer=claim)
    assert fenced.value.current_epoch == 3
    (chunk,) = stream.read()
    assert chunk.messages() == [b"1", b"2"]


def test_stream_seq_must_increase(stream: Stream) -> None:
    stream.append(b"1", seq="b")
    with pytest.raises(errors.StreamSeqRegression):
        stream.append(b"2", seq="a")


def test_closing_with_data_is_one_step_and_final(stream: Stream) -> None:
    end = stream.close("last")
    assert end.closed
    assert stream.close().next_offset == end.next_offset
    (chunk,) = stream.read()
    assert chunk.closed
    assert chunk.messages() == [b'"last"']
    with pytest.raises(errors.StreamClosed) as caught:
        stream.append(b"1")
    assert caught.value.next_offset == end.next_offset


def test_head_returns_the_metadata(client: Client, path: str) -> None:
    stream = client.stream(path)
    created = stream.create(content_type="text/plain", ttl=60)
    info = stream.head()
    assert info.content_type == "text/plain"
    assert info.next_offset == created.next_offset
    assert (info.ttl, info.expires_at, info.closed) == (60, None, False)
    assert info.incarnation is not None
    expiring = client.stream(f"{path}/expiring")
    expiring.create(expires_at="2099-01-01T00:00:00Z", closed=True)
    info = expiring.head()
    assert (info.ttl, info.expires_at, info.closed) == (None, "2099-01-01T00:00:00Z", True)


def test_a_fork_shares_the_data_before_it_and_is_independent_after_it(
    client: Client, stream: Stream, path: str
) -> None:
    first = stream.append_many([1, 2, 3])
    stream.append(b"4")
    fork = client.stream(f"{path}/fork")
    assert stream.fork(fork, offset="-1", sub_offset=2).new
    assert stream.fork(f"{path}/later", offset=first.next_offset).new
    fork.append(b'"mine"')
    assert next(fork.read()).messages() == [b"1", b"2", b'"mine"']
    assert next(client.stream(f"{path}/later").read()).messages() == [b"1", b"2", b"3"]
    with pytest.raises(ValueError, match="its own server"):
        stream.fork("http://elsewhere:1/v1/stream/x")


def test_forking_a_missing_stream_names_the_source(client: Client, path: str) -> None:
    with pytest.raises(errors.StreamNotFound) as caught:
        client.stream(f"{path}/none").fork(f"{path}/fork")
    assert caught.value.code == "fork-source-not-found"


def test_a_deleted_stream_is_not_found_and_its_offsets_are_gone(stream: Stream) -> None:
    offset = stream.append(b"1").next_offset
    stream.delete()
    with pytest.raises(errors.StreamNotFound) as caught:
        stream.head()
    assert caught.value.code == "stream-not-found"
    with pytest.raises(errors.StreamNotFound):
        stream.delete()
    stream.create()
    with pytest.raises(errors.OffsetGone, match="start again"):
        next(stream.read(offset))


def test_a_deleted_stream_with_forks_is_gone(stream: Stream, path: str) -> None:
    stream.fork(f"{path}/fork")
    stream.delete()
    with pytest.raises(errors.StreamGone):
        stream.head()
    with pytest.raises(errors.StreamExists):
        stream.create()


def test_the_servers_detail_is_the_message(stream: Stream) -> None:
    with pytest.raises(errors.RequestRefused, match="Nothing was appended") as caught:
        stream.append(b"{nonsense")
    assert caught.value.status == 400
    assert caught.value.code == "invalid-json"


def test_paths_are_escaped_and_whole_urls_are_accepted(client: Client, path: str) -> None:
    name = f"{path}/ä b?c#d%41"
    created = client.stream(name).create(data=b"1")
    assert next(client.stream(created.url).read()).messages() == [b"1"]
    assert next(client.stream(name).read()).messages() == [b"1"]


def test_a_url_outside_of_the_root_is_refused_with_advice(client: Client) -> None:
    with pytest.raises(errors.RequestRefused, match="/v1/stream/") as caught:
        next(client.stream(f"{client.base_url}/elsewhere").read())
    assert type(caught.value) is errors.RequestRefused


def test_a_body_over_the_limit_is_reported_although_it_was_not_read() -> None:
    with (
        ServerProcess("--max-body-bytes", "1000") as small,
        Client(small.url, retry=NO_RETRY) as client,
    ):
        stream = client.stream("s")
        stream.create(content_type="application/octet-stream")
        with pytest.raises(errors.BodyTooLarge, match="smaller appends"):
            stream.append(bytes(8 * 1024 * 1024))


def test_result_values_can_be_encoded_and_printed(stream: Stream) -> None:
    assert "next_offset" in msgspec.to_builtins(stream.head())
    assert stream.url in repr(stream)
