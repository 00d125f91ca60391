"""Header values are read strictly."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.protocol.expiry import NEVER, Expiry
from headwater.protocol.headers import (
    BadHeader,
    is_true,
    parse_expiry,
    parse_plain_integer,
    parse_producer,
)
from headwater.protocol.producers import MAX_INTEGER, ProducerClaim


@pytest.mark.parametrize("value", ["true", "True", "TRUE", "tRuE"])
def test_true_is_case_insensitive(value: str) -> None:
    assert is_true(value)


@pytest.mark.parametrize("value", [None, "", "false", "yes", "1", "true, true", "truee"])
def test_any_other_value_counts_as_absent(value: str | None) -> None:
    assert not is_true(value)


@given(st.integers(0, MAX_INTEGER))
def test_a_plain_integer_is_parsed(number: int) -> None:
    assert parse_plain_integer(str(number), MAX_INTEGER) == number


@given(st.text(max_size=20))
def test_a_plain_integer_has_a_single_spelling(text: str) -> None:
    number = parse_plain_integer(text, MAX_INTEGER)
    assert number is None or str(number) == text


@pytest.mark.parametrize(
    "ttl", ["", "-1", "+1", "01", "00", "1.0", "1e3", " 1", "1 ", "x", "\u0661", "9" * 5000]
)
def test_a_ttl_in_any_other_form_is_refused(ttl: str) -> None:
    refusal = parse_expiry(ttl, None)
    assert isinstance(refusal, BadHeader)
    assert (refusal.name, refusal.value) == ("Stream-TTL", ttl)


def test_a_ttl_is_stored_in_seconds() -> None:
    assert parse_expiry("0", None) == Expiry(ttl=0)
    assert parse_expiry("3600", None) == Expiry(ttl=3600)


@given(st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1)))  # noqa: DTZ001 - made aware below
def test_a_time_is_stored_as_written_and_as_an_instant(when: datetime) -> None:
    text = when.isoformat() + "Z"
    expiry = parse_expiry(None, text)
    assert isinstance(expiry, Expiry)
    assert expiry.expires_at == text
    assert expiry.instant == pytest.approx(when.replace(tzinfo=UTC).timestamp(), abs=1e-3)


def test_times_of_different_zones_are_compared_as_instants() -> None:
    one = parse_expiry(None, "2030-01-01T12:00:00+02:00")
    other = parse_expiry(None, "2030-01-01t10:00:00.000z")
    assert isinstance(one, Expiry)
    assert isinstance(other, Expiry)
    assert one.instant == other.instant


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tomorrow",
        "1893456000",
        "2030-01-01",
        "2030-01-01T00:00:00",
        "2030-01-01 00:00:00Z",
        "2030-13-01T00:00:00Z",
        "2030-02-30T00:00:00Z",
        "2030-01-01T25:00:00Z",
        "0000-01-01T00:00:00Z",
        "2030-01-01T00:00:00+99:99",
        "2030-01-01T00:00:00Z ",
        "20300101T000000Z",
        "2030-W01-1T00:00:00Z",
    ],
)
def test_a_time_in_any_other_form_is_refused(text: str) -> None:
    assert isinstance(parse_expiry(None, text), BadHeader)


@given(st.text())
def test_parsing_a_time_never_raises(text: str) -> None:
    assert isinstance(parse_expiry(None, text), BadHeader | Expiry)


@pytest.mark.parametrize(
    "text",
    [
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59-23:59",
        "1969-12-31T23:59:59Z",
        "2030-01-01T00:00:00." + "1" * 400 + "Z",
    ],
)
def test_times_at_the_limits_are_parsed_or_refused(text: str) -> None:
    assert isinstance(parse_expiry(None, text), BadHeader | Expiry)


def test_a_ttl_and_a_time_exclude_each_other() -> None:
    assert parse_expiry(None, None) == NEVER
    assert isinstance(parse_expiry("1", "2030-01-01T00:00:00Z"), BadHeader)


def test_producer_headers_are_sent_together_or_not_at_all() -> None:
    assert parse_producer(None, None, None) is None
    assert parse_producer("p", "0", "7") == ProducerClaim("p", 0, 7)
    for given_headers in (
        ("p", None, None),
        (None, "0", None),
        (None, None, "0"),
        ("p", "0", None),
        ("p", None, "0"),
        (None, "0", "0"),
        ("", "0", "0"),
    ):
        assert isinstance(parse_producer(*given_headers), BadHeader)


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", "1.5", "1e3", "x", str(MAX_INTEGER + 1), "9" * 400, "\u0661", " 1"]
)
def test_the_numbers_of_a_producer_are_integers_up_to_javascripts_limit(text: str) -> None:
    assert isinstance(parse_producer("p", text, "0"), BadHeader)
    assert isinstance(parse_producer("p", "0", text), BadHeader)
    assert parse_producer("p", str(MAX_INTEGER), "0") == ProducerClaim("p", MAX_INTEGER, 0)


@pytest.mark.parametrize(
    ("ttl", "expires_at", "name", "value"),
    [
        ("x", None, "Stream-TTL", "x"),
        (None, "tomorrow", "Stream-Expires-At", "tomorrow"),
        (None, "2030-02-30T00:00:00Z", "Stream-Expires-At", "2030-02-30T00:00:00Z"),
        ("1", "2030-01-01T00:00:00Z", "Stream-Expires-At", "2030-01-01T00:00:00Z"),
    ],
)
def test_a_refused_expiry_names_its_header_and_value(
    ttl: str | None, expires_at: str | None, name: str, value: str
) -> None:
    refusal = parse_expiry(ttl, expires_at)
    assert isinstance(refusal, BadHeader)
    assert (refusal.name, refusal.value) == (name, value)
    assert refusal.expected


@pytest.mark.parametrize(
    ("given_headers", "name", "value"),
    [
        ((None, "0", "0"), "Producer-Id", ""),
        (("p", None, "0"), "Producer-Epoch", ""),
        (("p", "0", None), "Producer-Seq", ""),
        (("", "0", "0"), "Producer-Id", ""),
        (("p", "", "0"), "Producer-Epoch", ""),
        (("p", "x", "0"), "Producer-Epoch", "x"),
        (("p", "0", "-1"), "Producer-Seq", "-1"),
    ],
)
def test_a_refused_producer_names_its_header_and_value(
    given_headers: tuple[str | None, str | None, str | None], name: str, value: str
) -> None:
    refusal = parse_producer(*given_headers)
    assert isinstance(refusal, BadHeader)
    assert (refusal.name, refusal.value) == (name, value)
    assert refusal.expected


@pytest.mark.parametrize("limit", [1, 9, 10, 10**10, MAX_INTEGER])
def test_a_plain_integer_past_its_limit_is_refused(limit: int) -> None:
    assert parse_plain_integer(str(limit), limit) == limit
    assert parse_plain_integer(str(limit + 1), limit) is None


def test_a_ttl_is_at_most_ten_billion_seconds() -> None:
    assert parse_expiry("10000000000", None) == Expiry(ttl=10_000_000_000)
    assert isinstance(parse_expiry("10000000001", None), BadHeader)


def test_a_number_past_javascripts_limit_is_refused() -> None:
    largest = 9_007_199_254_740_991
    assert parse_producer("p", str(largest), "0") == ProducerClaim("p", largest, 0)
    assert isinstance(parse_producer("p", str(largest + 1), "0"), BadHeader)
