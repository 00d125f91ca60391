"""Progress of a command, on standard error."""

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import click

NOTICE_SECONDS: Final = 2.0
"""How long a command may take before it reports what it is doing."""
_INTERVAL_SECONDS: Final = 0.2
_ERASE: Final = "\r\x1b[K"
_COLUMNS: Final = 80
"""Width of a terminal that does not report it."""
_BAR_COLUMNS: Final = 30


class Progress:
    """Reports what a command is doing, once it takes more than two seconds.

    On a terminal it rewrites one line. A text that is shown too early, or too soon after another,
    is written by a timer, since a caller that blocks after `show` can't call it again. If standard
    error is not a terminal, nothing is written unless `every` is set: then at most one line in that
    many seconds.
    """

    def __init__(
        self,
        label: str = "",
        *,
        enabled: bool = True,
        every: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_terminal = enabled and sys.stderr.isatty()
        self._every = every if enabled else None
        self._clock = clock
        self._label = label
        self._started = clock()
        self._due = self._started + (NOTICE_SECONDS if self._is_terminal else every or 0.0)
        self._lock = threading.Lock()
        self._text = ""
        self._timer: threading.Timer | None = None
        self._terminal: int | None = None
        self._shown = False
        command = click.get_current_context(silent=True)
        if self._is_terminal and command is not None:
            command.call_on_close(self.clear)  # an error message starts on an empty line

    def show(self, text: str) -> None:
        """Show a text: now, or when it is due unless a newer text replaces it."""
        if self._is_terminal:
            self._show_on_terminal(text)
        elif self._every is not None and text != self._text and self._clock() >= self._due:
            self._due = self._clock() + self._every
            self._text = text
            click.echo(text, err=True)

    def __call__(self, done: int, total: int) -> None:
        """Show how many bytes of a total are done."""
        percent = 100 * done // total if total else 100
        text = f"{self._label}: {percent} % of {size_of(total)}"
        if self._is_terminal:
            text += f" {_bar(percent)}{self._remaining(done, total)}"
        self.show(text)

    def begin(self, label: str) -> "Progress":
        """Report the next part of the work under another label."""
        self.clear()
        self._label = label
        self._started = self._clock()
        return self

    def clear(self) -> None:
        """Erase the line, for example to print the closing sentence in its place."""
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

    def _show_on_terminal(self, text: str) -> None:
        with self._lock:
            self._text = text
            if self._terminal is None:
                # Java is started with another standard error, which must not receive the line.
                self._terminal = os.dup(sys.stderr.fileno())
            if self._timer is not None:
                return
            early = self._due - self._clock()
            if early > 0:
                self._timer = threading.Timer(early, self._come_due)
                self._timer.daemon = True
                self._timer.start()
            else:
                self._write_line(self._terminal)

    def _come_due(self) -> None:
        with self._lock:
            # Otherwise the line was cleared meanwhile.
            if self._timer is threading.current_thread() and self._terminal is not None:
                self._timer = None
                self._write_line(self._terminal)

    def _write_line(self, terminal: int) -> None:
        self._due = self._clock() + _INTERVAL_SECONDS
        self._shown = True
        # A line that the terminal wraps can't be rewritten.
        columns = _columns(terminal)
        _write(terminal, f"{_ERASE}{self._text[: columns - 1]}")

    def _remaining(self, done: int, total: int) -> str:
        if not 0 < done < total:
            return ""
        seconds = round((self._clock() - self._started) * (total - done) / done)
        return f" {seconds // 60}:{seconds % 60:02} left"


def size_of(count: int) -> str:
    """Format a number of bytes with a binary unit."""
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{count} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _bar(percent: int) -> str:
    filled = _BAR_COLUMNS * percent // 100
    return f"[{'#' * filled}{'-' * (_BAR_COLUMNS - filled)}]"


def _columns(terminal: int) -> int:
    with suppress(OSError):
        return os.get_terminal_size(terminal).columns or _COLUMNS
    return _COLUMNS


def _write(terminal: int, text: str) -> None:
    with suppress(OSError):  # the window was closed: the command continues
        os.write(terminal, text.encode(errors="replace"))
