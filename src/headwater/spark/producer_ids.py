"""Names of people's choice as ids of producers, which travel in a header."""

import re
from typing import Final
from urllib.parse import quote

_ENCODED: Final = "utf-8''"
"""How RFC 8187 begins a text of a header that is no ASCII."""
_PLAIN: Final = re.compile(r"[!-~]([ -~]*[!-~])?")
"""What arrives as it was sent: spaces at the ends of a header are cut off."""


def producer_id(name: str) -> str:
    """Give the id of a producer that goes by a name: another one for each name, always the same.

    A plain name is its own id, so that servers know those again who have written under it.
    """
    if _PLAIN.fullmatch(name) and not name.startswith(_ENCODED):
        return name
    return _ENCODED + quote(name, safe="", errors="surrogatepass")
