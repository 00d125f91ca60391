"""A line that tells how far a command is, for a person who waits."""

import sys
import time
from typing import Final

from headwater.cli.targets import NOTICE_SECONDS

_INTERVAL_SECONDS: Final = 0.2
_ERASE: Final = "\r\x1b[K"


class Progress:
    """Writes over one line of the terminal, once a command takes more than two seconds."""

    def __init__(self, *, wanted: bool = True) -> None:
        self._active = wanted and sys.stderr.isatty()
        self._next = time.monotonic() + NOTICE_SECONDS
        self._shown = False

    def show(self, text: str) -> None:
        """Tell how far it is, unless that was told a moment ago."""
        if self._active and time.monotonic() >= self._next:
            self._next = time.monotonic() + _INTERVAL_SECONDS
            self._shown = True
            _write(f"{_ERASE}{text}")

    def clear(self) -> None:
        """Leave the line to the sentence that ends the command."""
        if self._shown:
            self._shown = False
            _write(_ERASE)


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
