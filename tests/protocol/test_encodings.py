"""Negotiation of content codings (RFC 9110, 12.5.3)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.protocol.content_types import CODINGS, negotiate


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        ("", None),
        ("identity", None),
        ("gzip", "gzip"),
        ("GZip", "gzip"),
        ("x-gzip", "gzip"),
        ("deflate", "deflate"),
        ("br", "br"),
        ("gzip, deflate, br, zstd", "zstd"),
        ("gzip;q=1.0, br;q=0.5", "gzip"),
        ("gzip;q=0.5,br;q=0.8", "br"),
        ("gzip;q=0", None),
        ("*", "zstd"),
        ("*;q=0.1, gzip;q=0.5", "gzip"),
        ("zstd;q=0, *", "br"),
        ("*;q=0", None),
        ("gzip;q=0, *;q=0", None),
        ("compress, lzma", None),
        ("gzip ; q=0.2 , br ; q=0.1", "gzip"),
        ("gzip;q=nonsense", None),
        ("gzip;q=nan", None),
        (",,,", None),
    ],
)
def test_the_best_accepted_coding_is_chosen(accepted: str, coding: str | None) -> None:
    assert negotiate(accepted) == coding


@given(st.text())
def test_negotiation_never_raises(accepted: str) -> None:
    assert negotiate(accepted) in {None, *CODINGS}


@given(st.sets(st.sampled_from(CODINGS), min_size=1))
def test_the_chosen_coding_is_accepted_by_the_client(offered: set[str]) -> None:
    assert negotiate(", ".join(sorted(offered))) in offered


@pytest.mark.parametrize("accepted", ["gzip, br;q=1", "br, gzip;q=1", "gzip;q=9, br"])
def test_the_quality_is_1_if_it_is_absent_or_greater(accepted: str) -> None:
    assert negotiate(accepted) == "br"


def test_a_long_header_is_negotiated_like_a_short_one() -> None:
    assert negotiate(f"gzip{', identity' * 100}") == "gzip"
