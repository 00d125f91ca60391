"""A request and an answer, as the client's rules see them, whatever transport carries them."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit, urlunsplit

from msgspec import Struct

from headwater.protocol.paths import url_path

ROOT: Final = "/v1/stream/"
"""Where the streams live under a base URL."""

_PATH_SAFE: Final = "/%~!$&'()*+,;=:@"
_QUERY_SAFE: Final = _PATH_SAFE + "?"


class Request(Struct, frozen=True):
    """One request with its whole body."""

    method: str
    url: str
    headers: Mapping[str, str] = {}
    body: bytes = b""
    repeatable: bool = True
    """Whether sending it twice leaves the stream as sending it once does."""
    live: bool = False
    """Whether the server may hold the answer back until there is something to say."""


class Answer(Struct, frozen=True):
    """One answer; the body is empty where it is read as it comes."""

    url: str
    method: str
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes = b""
    attempt: int = 0
    """How many times the same request was sent before, without an answer to rely on."""


def stream_url(base_url: str, stream: str, root: str = ROOT) -> str:
    """Find the URL of a stream: a whole URL as it is, a path under the base URL's streams."""
    if is_url(stream):
        return _clean(stream)
    if not stream:
        raise ValueError("a stream needs a path, such as chat/42")
    parts = _split(_clean(base_url))
    prefix = urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
    return prefix + url_path(stream.removeprefix("/"), root)


def is_url(stream: str) -> bool:
    """Tell a whole URL from a path."""
    return stream.lower().startswith(("http://", "https://"))


def origin_of(url: str) -> str:
    """Give the part of a URL that says where to connect."""
    parts = _split(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def path_of(url: str) -> str:
    """Give the path of a URL, as the fork headers want it."""
    return _split(url).path


def target_of(url: str) -> str:
    """Give what a request line names: path and query."""
    parts = _split(url)
    return urlunsplit(("", "", parts.path or "/", parts.query, ""))


def with_query(url: str, *parameters: tuple[str, str]) -> str:
    """Add query parameters, sorted by name so that caches see one URL (PROTOCOL 10.1)."""
    parts = _split(url)
    pairs = sorted([*parse_qsl(parts.query, keep_blank_values=True), *parameters])
    return parts._replace(query=urlencode(pairs, quote_via=quote)).geturl()


def _clean(url: str) -> str:
    """Escape what a person may type but a request line can't hold; escapes stay as they are."""
    parts = _split(url)
    return parts._replace(
        path=quote(parts.path, safe=_PATH_SAFE), query=quote(parts.query, safe=_QUERY_SAFE)
    ).geturl()


def _split(url: str) -> SplitResult:
    parts = urlsplit(url)._replace(fragment="")
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"'{url}' is no URL of a server: it must look like http://127.0.0.1:4437")
    _ = parts.port  # raises ValueError where it is no port
    return parts
