"""Offsets name positions, sort as text, and distinguish incarnations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.protocol.offsets import (
    MAX_BYTE,
    NOW,
    START,
    Lineage,
    MalformedOffset,
    Offset,
    StaleIncarnation,
    UnknownPosition,
    parse_offset,
    parse_position,
)

numbers = st.integers(0, MAX_BYTE)
offsets = st.builds(Offset, numbers, numbers)


@st.composite
def chains(draw: st.DrawFn) -> list[tuple[Lineage, int]]:
    """Draw streams, each forked from the one before and then grown, with their tails."""
    epoch = draw(st.integers(1, 5))
    tail = draw(st.integers(0, 30))
    found = [(Lineage(epoch), tail)]
    for _ in range(draw(st.integers(0, 6))):
        epoch += draw(st.integers(1, 4))
        at = draw(st.integers(0, tail))
        tail = at + draw(st.integers(0, 20))
        found.append((found[-1][0].fork(at, epoch), tail))
    return found


@given(offsets)
def test_an_offset_is_parsed_from_its_text(offset: Offset) -> None:
    assert parse_offset(str(offset)) == offset
    assert parse_position(str(offset)) == offset


@given(offsets, offsets)
def test_offsets_sort_alike_as_text_and_as_numbers(one: Offset, other: Offset) -> None:
    assert (str(one) < str(other)) == (one < other)


@given(offsets)
def test_an_offset_is_safe_in_urls_and_is_no_sentinel(offset: Offset) -> None:
    assert not set(str(offset)) & set(",&=?/%+ ")
    assert str(offset) not in {"-1", "now"}


@given(st.text(max_size=40))
def test_any_other_text_is_malformed(text: str) -> None:
    parsed = parse_offset(text)
    assert parsed == MalformedOffset(text) or str(parsed) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "-2",
        "NOW",
        "0000000000000001_000000000000000",
        "0000000000000001_00000000000000011",
        "0000000000000001_0000000000000001\n",
        " 0000000000000001_0000000000000001",
        "0000000000000001-0000000000000001",
        "000000000000000\u0661_0000000000000001",
    ],
)
def test_text_that_resembles_an_offset_is_malformed(text: str) -> None:
    assert parse_position(text) == MalformedOffset(text)


def test_sentinels_and_an_absent_offset_are_positions() -> None:
    assert parse_position(None) == START
    assert parse_position("-1") == START
    assert parse_position("now") == NOW


@given(chains())
def test_offsets_of_a_chain_of_forks_are_unique_and_sorted(
    chain: list[tuple[Lineage, int]],
) -> None:
    for lineage, tail in chain:
        names = [str(lineage.name(byte)) for byte in range(tail + 1)]
        assert names == sorted(set(names))


@given(chains())
def test_an_offset_is_located_at_the_byte_that_it_names(chain: list[tuple[Lineage, int]]) -> None:
    for lineage, tail in chain:
        for byte in range(tail + 1):
            assert lineage.locate(lineage.name(byte)) == byte
        assert lineage.locate(START) == 0


@given(chains(), st.integers(0, 60))
def test_a_fork_shares_the_offsets_of_its_source_up_to_the_fork_point(
    chain: list[tuple[Lineage, int]], extra: int
) -> None:
    lineage, tail = chain[-1]
    for at in range(tail + 1):
        fork = lineage.fork(at, lineage.own + 1)
        shared = [fork.name(byte) == lineage.name(byte) for byte in range(tail + extra + 1)]
        assert shared == [byte <= at for byte in range(tail + extra + 1)]


@given(chains())
def test_offsets_after_the_fork_point_differ_from_those_of_the_source(
    chain: list[tuple[Lineage, int]],
) -> None:
    source, tail = chain[-1]
    at = tail // 2
    fork = source.fork(at, source.own + 3)
    for byte in range(at + 1, tail + 1):
        assert not isinstance(fork.locate(source.name(byte)), int)
        assert source.locate(fork.name(byte)) == UnknownPosition(fork.name(byte))


@given(st.integers(1, 100), st.integers(1, 100), numbers)
def test_an_earlier_epoch_is_stale_and_a_later_one_unknown(own: int, apart: int, byte: int) -> None:
    lineage = Lineage(own + apart)
    stale, later = Offset(own, byte), Offset(own + 2 * apart, byte)
    assert lineage.locate(stale) == StaleIncarnation(stale, own + apart)
    assert lineage.locate(later) == UnknownPosition(later)


def test_an_ancestors_epoch_past_the_fork_is_unknown_and_not_stale() -> None:
    lineage = Lineage(3).fork(10, 7)
    assert lineage.locate(Offset(3, 10)) == 10
    assert lineage.locate(Offset(3, 11)) == UnknownPosition(Offset(3, 11))
    assert lineage.locate(Offset(5, 5)) == StaleIncarnation(Offset(5, 5), 7)
    assert lineage.locate(Offset(7, 10)) == UnknownPosition(Offset(7, 10))
    assert lineage.locate(Offset(7, 11)) == 11


def test_a_fork_at_the_fork_point_of_its_source_inherits_none_of_its_epoch() -> None:
    source = Lineage(1).fork(5, 2)
    assert source.fork(5, 3) == Lineage(3, ((5, 1),))
    assert source.fork(6, 3) == Lineage(3, ((5, 1), (6, 2)))


def test_the_start_is_byte_0_with_epoch_0() -> None:
    assert parse_position("-1") == Offset(0, 0)
