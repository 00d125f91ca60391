"""A line that tells how far a command is, for a person who waits."""

import os
import sys
import threading
import time
from contextlib import suppress
from typing import Final

import click

from headwater.cli._io import NOTICE_SECONDS

_INTERVAL_SECONDS: Final = 0.2
_ERASE: Final = "\r\x1b[K"
_COLUMNS: Final = 80
"""Of a terminal that does not say how wide it is."""


class Progress:
    """Writes over one line of the terminal, once a command takes more than two seconds.

    What is said too early, or too soon behind something else, is kept and shown when it is time:
    whoever says what it does before it blocks can't say it again.
    """

    def __init__(self, *, wanted: bool = True) -> None:
        self._active = wanted and sys.stderr.isatty()
        self._next = time.monotonic() + NOTICE_SECONDS
        self._lock = threading.Lock()
        self._text = ""
        self._timer: threading.Timer | None = None
        self._terminal: int | None = None
        self._shown = False
        command = click.get_current_context(silent=True)
        if self._active and command is not None:
            command.call_on_close(self.clear)  # an error is told on a line of its own

    def show(self, text: str) -> None:
        """Tell how far it is: now, or in a moment, unless there is something newer by then."""
        if not self._active:
            return
        with self._lock:
            self._text = text
            if self._terminal is None:
                # Java is started with another standard error, which must not get the line.
                self._terminal = os.dup(sys.stderr.fileno())
            if self._timer is not None:
                return
            early = self._next - time.monotonic()
            if early > 0:
                self._timer = threading.Timer(early, self._come_due)
                self._timer.daemon = True
                self._timer.start()
            else:
                self._show(self._terminal)

    def clear(self) -> None:
        """Leave the line to the sentence that ends the command."""
        with self._lock:
            timer, self._timer = self._timer, None
            terminal, self._terminal = self._terminal, None
            shown, self._shown = self._shown, False
        if timer is not None:
            timer.cancel()
            timer.join()
        if terminal is not None:
            if shown:
                _write(terminal, _ERASE)
            os.close(terminal)

    def _come_due(self) -> None:
        with self._lock:
            # Else it was cleared meanwhile.
            if self._timer is threading.current_thread() and self._terminal is not None:
                self._timer = None
                self._show(self._terminal)

    def _show(self, terminal: int) -> None:
        self._next = time.monotonic() + _INTERVAL_SECONDS
        self._shown = True
        # A line that the terminal breaks could not be written over.
        columns = _columns(terminal)
        _write(terminal, f"{_ERASE}{self._text[: columns - 1]}")


def _columns(terminal: int) -> int:
    with suppress(OSError):
        return os.get_terminal_size(terminal).columns or _COLUMNS
    return _COLUMNS


def _write(terminal: int, text: str) -> None:
    with suppress(OSError):  # of a window that was closed: the command goes on
        os.write(terminal, text.encode(errors="replace"))
