"""The URL of a PostgreSQL run store: what is libpq's, and what is ours."""

from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from headwater.errors import SettingsError

_OURS: Final = frozenset({"schema", "connections", "redis"})


def split_url(url: str) -> tuple[str, dict[str, str]]:
    """Take our options out of a URL; gives libpq's and them."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise SettingsError("run store", url, "a URL such as postgresql://user@host/database")
    scheme = scheme.partition("+")[0]
    parts = urlsplit(f"{scheme}://{rest}")
    given = parse_qsl(parts.query, keep_blank_values=True)
    theirs = [(name, value) for name, value in given if name not in _OURS]
    ours = {name: value for name, value in given if name in _OURS}
    return urlunsplit(parts._replace(query=urlencode(theirs))), ours


def arguments(options: dict[str, str]) -> dict[str, Any]:
    """Read the options that every authority has, as a store takes them."""
    given: dict[str, Any] = {}
    if "schema" in options:
        given["schema"] = options["schema"]
    if "connections" in options:
        text = options["connections"]
        if not text.isdecimal():
            raise SettingsError("connections", text, "a number")
        given["connections"] = int(text)
    return given
