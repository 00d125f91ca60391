"""The calls of a Headwater server that look at streams from above: listing, splitting, changes.

As with streams, a call is the request to send and the reading of its answer.
"""

from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from headwater.client.calls import Call
from headwater.client.failures import failure, unexpected
from headwater.client.messages import ROOT, Answer, Request, stream_url, with_query
from headwater.protocol.paths import url_path

T = TypeVar("T")

SPLIT_BYTES: Final = 32 * 1024 * 1024


class ListedStream(Struct, frozen=True):
    """A stream as a listing describes it."""

    path: str
    content_type: str
    tail: str
    incarnation: str
    closed: bool


class StreamPage(Struct, frozen=True):
    """Some streams, and the path behind which there may be more."""

    streams: list[ListedStream]
    next: str | None = None


class Splits(Struct, frozen=True):
    """Where a range of a stream may be cut; `next` is where to go on if it was too long."""

    path: str
    content_type: str
    tail: str
    incarnation: str
    closed: bool
    offsets: list[str]
    next: str | None = None


class Changed(Struct, frozen=True):
    """Which streams changed behind a cursor."""

    cursor: str
    streams: list[ListedStream] | None
    """None where the server does not know: list the streams."""
    gone: list[str] = []
    """Those of them that are not there any more."""


def streams(
    base_url: str, glob: str = "**", after: str = "", limit: int = 1000, *, root: str = ROOT
) -> Call[StreamPage]:
    """List streams in the order of their paths."""
    url = with_query(
        stream_url(base_url, "__ds/streams", root),
        ("glob", glob),
        ("after", after),
        ("limit", str(limit)),
    )
    return Call(Request("GET", url), lambda answer: _read(answer, StreamPage))


def splits(
    base_url: str,
    path: str,
    start: str = "-1",
    end: str = "now",
    size: int = SPLIT_BYTES,
    limit: int = 1000,
    *,
    root: str = ROOT,
) -> Call[Splits]:
    """Ask where a range of a stream may be cut into pieces of about a size."""
    url = with_query(
        stream_url(base_url, "__ds/splits", root) + url_path(path, "/"),
        ("from", start),
        ("to", end),
        ("bytes", str(size)),
        ("limit", str(limit)),
    )
    return Call(Request("GET", url), lambda answer: _read(answer, Splits))


def changes(
    base_url: str, globs: Iterable[str], after: str, wait: float, *, root: str = ROOT
) -> Call[Changed]:
    """Ask which streams changed behind a cursor; waits for the first change where none did."""
    url = with_query(
        stream_url(base_url, "__ds/changes", root),
        *(("glob", glob) for glob in globs),
        ("after", after),
        ("wait_ms", str(round(wait * 1000))),
    )
    return Call(Request("GET", url, live=True), lambda answer: _read(answer, Changed))


def _read(answer: Answer, kind: type[T]) -> T:
    if answer.status != 200:
        raise failure(answer)
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except msgspec.DecodeError as error:
        raise unexpected(answer, f"something else than was asked for ({error})") from None
