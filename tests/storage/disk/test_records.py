"""Records come out of their bytes as they went in."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from headwater.storage.disk.records import (
    NOTHING_ELSE,
    AppendExtras,
    AppendRecord,
    CreateMeta,
    CreateRecord,
    DamagedRecord,
    DeleteRecord,
    decode,
    encode_append,
    encode_create,
    encode_delete,
    stream_of,
)

NUMBERS = st.integers(1, 2**63)
TIMES = st.floats(0, 1e12)
DATA = st.one_of(st.binary(max_size=50), st.just(b"x" * 20_000))
EXTRAS = st.builds(
    AppendExtras,
    st.booleans(),
    st.none() | st.text(max_size=10),
    st.none() | st.tuples(st.text(max_size=10), st.integers(0, 2**53), st.integers(0, 2**53)),
)
METAS = st.builds(
    CreateMeta,
    path=st.text(min_size=1),
    content_type=st.text(max_size=30),
    ttl=st.none() | st.integers(0, 10**10),
    expires_at=st.none() | st.text(),
    instant=st.none() | TIMES,
    closed=st.booleans(),
    now=TIMES,
    source_path=st.none() | st.text(),
    source=st.integers(0, 2**53),
    anchor=st.tuples(st.integers(0, 10**15), st.integers(0, 10**15)),
    sub_offset=st.integers(0, 10**10),
    at=st.integers(0, 10**15),
)


@given(NUMBERS, st.integers(0, 2**60), TIMES, EXTRAS, DATA)
def test_an_append_comes_out_as_it_went_in(
    stream: int, start: int, now: float, extras: AppendExtras, data: bytes
) -> None:
    body = b"".join(encode_append(stream, start, now, extras, data))
    assert decode(body) == AppendRecord(stream, start, now, extras, data)
    assert stream_of(body) == stream


@given(NUMBERS, METAS, DATA)
def test_a_creation_comes_out_as_it_went_in(stream: int, meta: CreateMeta, data: bytes) -> None:
    body = b"".join(encode_create(stream, meta, data))
    assert decode(body) == CreateRecord(stream, meta, data)
    assert stream_of(body) == stream


@given(NUMBERS, TIMES)
def test_a_deletion_comes_out_as_it_went_in(stream: int, now: float) -> None:
    body = b"".join(encode_delete(stream, now))
    assert decode(body) == DeleteRecord(stream, now)
    assert stream_of(body) == stream


def test_large_data_is_not_copied() -> None:
    data = b"x" * 100_000
    assert encode_append(1, 0, 0.0, NOTHING_ELSE, data)[-1] is data


def test_the_longest_producer_id_and_seq_fit() -> None:
    extras = AppendExtras(close=True, seq="s" * 20_000, producer=("p" * 20_000, 2**53, 2**53))
    record = decode(b"".join(encode_append(1, 0, 0.0, extras, b"data")))
    assert isinstance(record, AppendRecord)
    assert record.extras == extras


def test_an_unknown_kind_is_named() -> None:
    body = bytes([99]) + b"".join(encode_delete(1, 0.0))[1:]
    with pytest.raises(DamagedRecord, match="kind 99"):
        decode(body)


@given(st.binary(min_size=1, max_size=60))
def test_bytes_that_are_no_record_raise_nothing_else(body: bytes) -> None:
    try:
        decode(body)
    except DamagedRecord:
        return
