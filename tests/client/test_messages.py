"""URLs of streams and servers."""

import pytest

from headwater.client._http1 import origin_of, stream_url, target_of, with_query

BASE = "http://127.0.0.1:4437"


@pytest.mark.parametrize(
    ("base", "stream", "url"),
    [
        (BASE, "chat/42", f"{BASE}/v1/stream/chat/42"),
        (f"{BASE}/", "chat/42", f"{BASE}/v1/stream/chat/42"),
        ("https://host/prefix", "a", "https://host/prefix/v1/stream/a"),
        (BASE, "grün & blau?", f"{BASE}/v1/stream/gr%C3%BCn%20&%20blau%3F"),
        (BASE, "http://other:1/any/where", "http://other:1/any/where"),
        (BASE, "http://other/a b?x=1 2#part", "http://other/a%20b?x=1%202"),
        (BASE, "http://other/a%20b", "http://other/a%20b"),
        (BASE, "http://[::1]:9/s", "http://[::1]:9/s"),
    ],
)
def test_a_path_is_relative_to_the_base_url_and_a_url_is_used_unchanged(
    base: str, stream: str, url: str
) -> None:
    assert stream_url(base, stream) == url


@pytest.mark.parametrize("base", ["localhost:4437", "ftp://host", "http://", "http://host:99999"])
def test_an_invalid_base_url_is_refused(base: str) -> None:
    with pytest.raises(ValueError, match=r"URL|[Pp]ort"):
        stream_url(base, "chat/42")


def test_an_empty_path_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a path"):
        stream_url(BASE, "")


def test_query_parameters_are_merged_with_those_of_the_url_and_sorted() -> None:
    url = with_query(f"{BASE}/s?token=a%2Fb", ("offset", "1_2+3"), ("live", "sse"))
    assert target_of(url) == "/s?live=sse&offset=1_2%2B3&token=a%2Fb"


def test_the_origin_excludes_credentials() -> None:
    assert origin_of("https://user:secret@host:8443/x") == "https://host:8443"
