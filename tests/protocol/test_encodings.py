"""Which coding a client gets (RFC 9110, 12.5.3)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.protocol.encodings import CODINGS, negotiate


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
def test_the_best_of_what_is_accepted_is_chosen(accepted: str, coding: str | None) -> None:
    assert negotiate(accepted) == coding


@given(st.text())
def test_any_header_is_understood_somehow(accepted: str) -> None:
    assert negotiate(accepted) in {None, *CODINGS}


@given(st.sets(st.sampled_from(CODINGS), min_size=1))
def test_what_is_chosen_was_offered(offered: set[str]) -> None:
    assert negotiate(", ".join(sorted(offered))) in offered
