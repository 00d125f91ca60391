"""What a client adds to each request: headers, parameters and credentials.

Values may be functions. They are called for each attempt and each reconnection, so that an expired
token is replaced.
"""

from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from headwater.client._http1 import Request, origin_of, with_query

Value = str | Callable[[], str]
"""A header or parameter, or a function that returns it."""

AsyncValue = Value | Callable[[], Awaitable[str]]
"""The same for the asynchronous client, whose functions may be coroutine functions."""

Auth = str | tuple[str, str] | Callable[[], Any]
"""A bearer token, a user with a password, or a function that returns a token."""


class RequestDefaults(Struct, frozen=True):
    """Headers and parameters that are added to the requests to one server."""

    origin: str
    headers: Mapping[str, Any] = {}
    params: Mapping[str, Any] = {}

    def applies_to(self, request: Request) -> bool:
        """Return whether there is something to add, and the request goes to this server.

        Credentials are sent nowhere else.
        """
        return bool(self.headers or self.params) and origin_of(request.url) == self.origin


def make_defaults(
    base_url: str,
    headers: Mapping[str, Any] | None,
    params: Mapping[str, Any] | None,
    auth: Auth | None,
) -> RequestDefaults:
    """Combine the options of a client."""
    headers, params = dict(headers or {}), dict(params or {})
    if auth is not None:
        headers["Authorization"] = _authorization(auth)
    for name, value in {**headers, **params}.items():
        if not isinstance(value, str) and not callable(value):
            raise TypeError(f"{name!r} is {value!r}: a header or parameter is text or a function")
    return RequestDefaults(origin_of(base_url), headers, params)


def with_defaults(
    request: Request, headers: Mapping[str, str], params: Mapping[str, str]
) -> Request:
    """Add headers and parameters; headers that the protocol sets take precedence."""
    own = {name.lower() for name in request.headers}
    added = {name: value for name, value in headers.items() if name.lower() not in own}
    url = with_query(request.url, *params.items()) if params else request.url
    return replace(request, headers={**added, **request.headers}, url=url)


def check_value(name: str, value: object) -> str:
    """Return what a function returned for a header or parameter, if it is text."""
    if not isinstance(value, str):
        raise TypeError(f"the function for {name!r} returned {value!r}: it must return text")
    return value


class Bearer:
    """Returns an Authorization header with the token that a function returns."""

    def __init__(self, token: Callable[[], Any]) -> None:
        self._token = token

    def __call__(self) -> Any:
        """Return the header, or an awaitable of it if the function is a coroutine function."""
        token = self._token()
        return _bearer(token) if isinstance(token, str) else _awaited(token)


async def _awaited(token: Awaitable[Any]) -> str:
    return _bearer(check_value("Authorization", await token))


def _bearer(token: str) -> str:
    return f"Bearer {token}"


def _authorization(auth: Auth) -> str | Bearer:
    if isinstance(auth, str):
        return _bearer(auth)
    if isinstance(auth, tuple):
        user, password = auth
        return "Basic " + b64encode(f"{user}:{password}".encode()).decode()
    return Bearer(auth)
