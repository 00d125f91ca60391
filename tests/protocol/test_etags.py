"""ETags differ whenever the ranges that they identify differ."""

from hypothesis import given
from hypothesis import strategies as st

from headwater.protocol.caching import make_etag, matches
from headwater.protocol.offsets import Offset

offsets = st.builds(Offset, st.integers(0, 10**6), st.integers(0, 10**6))
ranges = st.tuples(offsets, offsets, st.integers(1, 10**6), st.booleans())

Range = tuple[Offset, Offset, int, bool]


def etag(of: Range) -> str:
    start, end, incarnation, closed = of
    return make_etag(start, end, incarnation, closed=closed)


@given(ranges, ranges)
def test_two_ranges_share_an_etag_only_if_they_are_the_same(one: Range, other: Range) -> None:
    assert (etag(one) == etag(other)) == (one == other)


@given(ranges)
def test_an_etag_has_the_syntax_of_http(of: Range) -> None:
    tag = etag(of)
    assert tag[0] == tag[-1] == '"'
    assert '"' not in tag[1:-1]
    assert "," not in tag
    assert tag.isascii()
    assert tag.isprintable()


@given(ranges, ranges)
def test_if_none_match_accepts_lists_weak_tags_and_the_star(one: Range, other: Range) -> None:
    tag = etag(one)
    for header in (tag, f"W/{tag}", f'"x", {tag}', f'{tag},"x"', f' {tag} , W/"x"', "*", " * "):
        assert matches(header, tag)
    for header in ("", '"x"', tag[1:-1], f'"{tag}"'):
        assert not matches(header, tag)
    assert matches(etag(other), tag) == (one == other)


def test_closure_alone_changes_the_etag() -> None:
    start, end = Offset(1, 0), Offset(1, 9)
    assert make_etag(start, end, 1, closed=True) != make_etag(start, end, 1, closed=False)
