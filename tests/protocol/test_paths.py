"""Stream paths: which are valid, and which are refused."""

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.protocol.paths import BadPath, NotAStream, parse_path, url_path

ROOT = "/v1/stream/"
LIMIT = 1024

segments = st.text(
    st.characters(exclude_categories=["C", "Z"], exclude_characters="/\\"), min_size=1, max_size=20
).filter(lambda text: text not in {".", "..", "__ds"})
paths = st.lists(segments, min_size=1, max_size=6).map("/".join)


def parse(encoded: str) -> str | BadPath | NotAStream:
    return parse_path(ROOT + encoded, ROOT, LIMIT)


@given(paths)
def test_a_path_is_parsed_from_its_url(path: str) -> None:
    url = url_path(path, ROOT)
    assert url.isascii()
    assert parse_path(url, ROOT, LIMIT) == path


@given(paths)
def test_a_path_does_not_depend_on_which_characters_are_escaped(path: str) -> None:
    everything = "".join(
        char if char == "/" else "".join(f"%{byte:02X}" for byte in char.encode()) for char in path
    )
    assert parse(everything) == path
    assert parse(everything.lower()) == path
    assert parse(quote(path, safe="/")) == path


@given(st.text(max_size=60))
def test_no_accepted_path_is_ambiguous(text: str) -> None:
    found = parse(text)
    if isinstance(found, str):
        assert not {"", ".", ".."} & set(found.split("/"))
        assert "\\" not in found
        assert found.isprintable()
        assert len(found.encode()) <= LIMIT


@pytest.mark.parametrize(
    "encoded",
    [
        "",
        "..",
        ".",
        "a/../b",
        "a//b",
        "a/",
        "/a",
        "%2e%2e",
        "%2E",
        ".%2e",
        "a%2fb",
        "a%5Cb",
        "a\\b",
        "%00",
        "a%0A",
        "%7f",
        "%ff",
        "%c0%af",
        "%ed%a0%80",
        "%e2%80%8b",
        "__ds",
        "__ds/x",
        "%5F_ds/x",
    ],
)
def test_a_dangerous_path_is_refused(encoded: str) -> None:
    assert isinstance(parse(encoded), BadPath)


def test_a_path_is_decoded_only_once() -> None:
    assert parse("%252e%252e") == "%2e%2e"
    assert parse("a%252fb") == "a%2fb"


def test_the_reserved_name_is_allowed_in_later_segments() -> None:
    assert parse("a/__ds") == "a/__ds"
    assert parse("__dsx") == "__dsx"


def test_the_limit_counts_decoded_bytes() -> None:
    assert parse("é" * 512) == "é" * 512
    assert parse("%C3%A9" * 512) == "é" * 512
    assert isinstance(parse("%C3%A9" * 513), BadPath)
    assert isinstance(parse("x" * 1025), BadPath)
    assert isinstance(parse("x" * 100_000), BadPath)


@pytest.mark.parametrize("url", ["/", "/v1/stream", "/v1/streams/x", "/healthz", "", "*"])
def test_a_path_outside_of_the_root_is_not_a_stream(url: str) -> None:
    assert parse_path(url, ROOT, LIMIT) == NotAStream(ROOT)


@pytest.mark.parametrize(
    ("encoded", "reason"),
    [
        ("%ff", "not UTF-8"),
        ("a//b", "empty"),
        ("a%2fb", "slash"),
        ("x" * 1025, "longer than 1024 bytes"),
        ("x" * 100_000, "longer than 1024 bytes"),
        ("__ds/x", "reserved"),
    ],
)
def test_a_refused_path_has_a_reason(encoded: str, reason: str) -> None:
    refusal = parse(encoded)
    assert isinstance(refusal, BadPath)
    assert reason in refusal.reason


def test_characters_allowed_in_urls_are_not_escaped() -> None:
    assert url_path("a:b@c/~d;e=f,g", ROOT) == f"{ROOT}a:b@c/~d;e=f,g"
