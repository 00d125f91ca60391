"""Globs, and the index against a matcher that tries each of them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.protocol.globs import GlobIndex, literal_prefix, matches
from tests.support.lines import counted_lines

SEGMENTS = st.sampled_from(["a", "b", "ab", "x*", "é"])
PATHS = st.lists(SEGMENTS, min_size=1, max_size=5).map("/".join)
PATTERNS = st.lists(SEGMENTS | st.sampled_from(["*", "**"]), min_size=1, max_size=5).map("/".join)


def naive(pattern: str, path: str) -> bool:
    """Match by a regular expression, which knows nothing of our code."""
    if pattern == "**":
        return True
    text = "/" + pattern
    expression = "".join(
        r"(?:/[^/]+)*" if part == "**" else "/[^/]+" if part == "*" else "/" + re.escape(part)
        for part in text[1:].split("/")
    )
    return re.fullmatch(expression, "/" + path) is not None


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("events/*", "events/a", True),
        ("events/*", "events", False),
        ("events/*", "events/a/b", False),
        ("events/**", "events", True),
        ("events/**", "events/a/b", True),
        ("events/**", "eventsX", False),
        ("**", "a/b/c", True),
        ("**/log", "log", True),
        ("**/log", "a/b/log", True),
        ("**/log", "a/log/b", False),
        ("a/**/b/*", "a/b/c", True),
        ("a/**/b/*", "a/x/y/b/c", True),
        ("a/**/b/*", "a/b", False),
        ("a*", "ab", False),
        ("a*", "a*", True),
        ("*/*", "a/b", True),
    ],
)
def test_a_glob_matches_by_segments(pattern: str, path: str, expected: bool) -> None:
    assert matches(pattern, path) is expected
    assert naive(pattern, path) is expected


@given(PATTERNS, PATHS)
def test_a_glob_matches_like_a_naive_matcher(pattern: str, path: str) -> None:
    assert matches(pattern, path) == naive(pattern, path)


@given(PATTERNS, PATHS)
def test_all_matches_begin_with_the_literal_prefix(pattern: str, path: str) -> None:
    if matches(pattern, path):
        assert path.startswith(literal_prefix(pattern))


@given(st.lists(PATTERNS, max_size=30), st.lists(PATHS, max_size=5), st.data())
def test_the_index_finds_the_same_as_trying_each_glob(
    patterns: list[str], paths: list[str], data: st.DataObject
) -> None:
    index: GlobIndex[int] = GlobIndex()
    for number, pattern in enumerate(patterns):
        index.add(number, pattern)
    kept = dict(enumerate(patterns))
    for gone in data.draw(st.lists(st.integers(0, 30), max_size=30)):
        index.remove(gone)
        kept.pop(gone, None)
        for path in paths:
            expected = {number for number, pattern in kept.items() if naive(pattern, path)}
            assert set(index.match(path)) == expected
    assert len(index) == len(kept)


@given(st.lists(PATTERNS, max_size=20))
def test_an_emptied_index_has_no_nodes(patterns: list[str]) -> None:
    index: GlobIndex[int] = GlobIndex()
    for number, pattern in enumerate(patterns):
        index.add(number, pattern)
    for number in range(len(patterns)):
        index.remove(number)
    assert index._root.empty
    assert index.match("a/b") == ()


def test_a_key_has_one_pattern() -> None:
    index: GlobIndex[str] = GlobIndex()
    index.add("k", "a/*")
    index.add("k", "b/*")
    assert index.match("a/1") == ()
    assert index.match("b/1") == ("k",)


def test_a_lookup_in_ten_thousand_globs_costs_no_more_than_in_ten() -> None:
    def lines(count: int) -> int:
        index: GlobIndex[int] = GlobIndex()
        for number in range(count):
            index.add(number, f"tenant-{number}/*/events/**")
        with counted_lines() as counted:
            assert index.match("other/1/events") == ()
            assert index.match("tenant-7/1/events") == (7,)
        return next(counted)

    assert lines(10_000) == lines(10)


@pytest.mark.parametrize(
    ("pattern", "prefix"),
    [
        ("a/b", "a/b"),
        ("a/b/*", "a/b/"),
        ("a/b/*/c", "a/b/"),
        ("a/b/**", "a/b"),
        ("a/**/b", "a"),
        ("*", ""),
        ("**", ""),
        ("*/a", ""),
        ("**/a", ""),
    ],
)
def test_the_literal_prefix_is_as_long_as_possible(pattern: str, prefix: str) -> None:
    assert literal_prefix(pattern) == prefix


@pytest.mark.parametrize("star", ["*", "**"])
def test_removing_a_pattern_does_not_affect_the_others(star: str) -> None:
    index: GlobIndex[str] = GlobIndex()
    index.add("gone", f"a/{star}")
    index.add("kept", "a/b")
    index.remove("gone")
    assert index.match("a/b") == ("kept",)
    assert index.match("a/c") == ()
