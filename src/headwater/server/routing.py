"""What the handlers of resources share: path segments, methods, query numbers, JSON responses."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec

from headwater.server.messages import Headers, Request, Response
from headwater.server.problems import method_not_allowed, problem_response

T = TypeVar("T")

_MAX_DIGITS: Final = 18


def split_path(path: str) -> list[str] | None:
    """Return the decoded segments of a path, or None if one is not UTF-8."""
    try:
        return [unquote_to_bytes(segment).decode() for segment in path.split("/")]
    except UnicodeDecodeError:
        return None


async def by_method(
    request: Request, *, control: bool = False, **handlers: Callable[[], Awaitable[T]]
) -> T | Response:
    """Call the handler of the request's method; HEAD is answered by that of GET."""
    method = request.head.method
    handler = handlers.get("GET" if method == "HEAD" else method)
    if handler is None:
        allowed = ", ".join((*handlers, "HEAD", "OPTIONS") if "GET" in handlers else handlers)
        return problem_response(method_not_allowed(method, allowed), control=control)
    return await handler()


def parse_number(text: str, minimum: int, maximum: int) -> int | None:
    """Parse a decimal number within limits."""
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        return None
    number = int(text)
    return number if minimum <= number <= maximum else None


def json_response(status: int, value: object, *headers: tuple[bytes, bytes]) -> Response:
    """Return a JSON response that may not be cached."""
    common: Headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    return Response(status, [*common, *headers], (msgspec.json.encode(value),))
