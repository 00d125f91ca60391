"""Content types: which are equal, which are JSON, and which are text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.protocol.content_types import is_json, is_text, media_type


@pytest.mark.parametrize(
    ("value", "media"),
    [
        ("application/json", "application/json"),
        ("Application/JSON; charset=utf-8", "application/json"),
        ("  text/plain ;x=y;z", "text/plain"),
        ("application/vnd.thing+json", "application/vnd.thing+json"),
        ("", None),
        ("json", None),
        ("a/b/c", None),
        ("text/", None),
        ("/plain", None),
        ("te xt/plain", None),
        ("text/plain, text/html", None),
        ("t\u00e9xt/plain", None),
        ("text/plain\n", "text/plain"),
    ],
)
def test_a_header_is_reduced_to_its_media_type(value: str, media: str | None) -> None:
    assert media_type(value) == media


@given(st.text())
def test_a_media_type_is_unchanged(value: str) -> None:
    media = media_type(value)
    assert media is None or media_type(media) == media


def test_json_is_a_single_type_and_text_is_a_family() -> None:
    assert is_json("application/json")
    assert not is_json("application/ndjson")
    assert not is_json("application/vnd.thing+json")
    assert is_text("application/json")
    assert is_text("text/html")
    assert not is_text("application/xml")
    assert not is_text("textual/plain")


def test_a_long_header_is_parsed_like_a_short_one() -> None:
    assert media_type(f"Text/Plain; x={'y' * 300}") == "text/plain"
