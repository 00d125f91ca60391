"""What a client adds to each request: headers, parameters and credentials of the user's own.

Values may be functions. They are called anew for each attempt and each reconnection, so that a
token that has run out meanwhile is replaced.
"""

from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from headwater.client._http1 import Request, origin_of, with_query

Value = str | Callable[[], str]
"""A header or parameter, or what makes one."""

AsyncValue = Value | Callable[[], Awaitable[str]]
"""The same for the asynchronous client, where making one may wait."""

Auth = str | tuple[str, str] | Callable[[], Any]
"""A bearer token, a user with a password, or a function that gives a token."""


class Dressing(Struct, frozen=True):
    """What is added to requests to one server."""

    origin: str
    headers: Mapping[str, Any] = {}
    params: Mapping[str, Any] = {}

    @property
    def plain(self) -> bool:
        """Whether there is nothing to add."""
        return not self.headers and not self.params

    def applies_to(self, request: Request) -> bool:
        """Tell whether a request is for our server: credentials go nowhere else."""
        return not self.plain and origin_of(request.url) == self.origin


def make_dressing(
    base_url: str,
    headers: Mapping[str, Any] | None,
    params: Mapping[str, Any] | None,
    auth: Auth | None,
) -> Dressing:
    """Put together what the user gave."""
    worn = dict(headers or {})
    if auth is not None:
        worn["Authorization"] = _authorization(auth)
    for name, value in {**worn, **(params or {})}.items():
        if not isinstance(value, str) and not callable(value):
            raise TypeError(f"{name!r} is {value!r}: a header or parameter is text or a function")
    return Dressing(origin_of(base_url), worn, dict(params or {}))


def dressed(request: Request, headers: Mapping[str, str], params: Mapping[str, str]) -> Request:
    """Add resolved headers and parameters; what the protocol sets itself comes first."""
    own = {name.lower() for name in request.headers}
    added = {name: value for name, value in headers.items() if name.lower() not in own}
    url = with_query(request.url, *params.items()) if params else request.url
    return replace(request, headers={**added, **request.headers}, url=url)


def as_header(name: str, value: object) -> str:
    """Check what a function gave; a token gets its scheme."""
    if not isinstance(value, str):
        raise TypeError(f"the function for {name!r} gave {value!r}: it must give text")
    return value


class Bearer:
    """Makes an Authorization header of a token that a function gives."""

    def __init__(self, token: Callable[[], Any]) -> None:
        self._token = token

    def __call__(self) -> Any:
        """Ask for the token now; what has to be waited for stays to be waited for."""
        token = self._token()
        return _bearer(token) if isinstance(token, str) else _later(token)


async def _later(token: Awaitable[Any]) -> str:
    return _bearer(as_header("Authorization", await token))


def _bearer(token: str) -> str:
    return f"Bearer {token}"


def _authorization(auth: Auth) -> str | Bearer:
    if isinstance(auth, str):
        return _bearer(auth)
    if isinstance(auth, tuple):
        user, password = auth
        return "Basic " + b64encode(f"{user}:{password}".encode()).decode()
    return Bearer(auth)
