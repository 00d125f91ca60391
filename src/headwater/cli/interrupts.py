"""Ctrl-C at the points where it loses nothing."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn, Self

EXIT_CODE = 130
"""What a shell reports of a process that SIGINT has ended."""


class Interrupts:
    """Holds SIGINT back while something must not be cut in two; a second one gets through.

    With `once`, the KeyboardInterrupt that it raises is the last: the command reports and ends, and
    nothing interrupts that.
    """

    def __init__(self, *, once: bool = False) -> None:
        self._once = once
        self._ended = False
        self._holding = False
        self.pending = False

    def __enter__(self) -> Self:
        # A job in the background ignores SIGINT, and goes on doing so.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        if signal.getsignal(signal.SIGINT) == self._interrupt and not self._ended:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Finish a block first, then be interrupted."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        self.check()

    def check(self) -> None:
        """Be interrupted now if that was held back."""
        if self.pending:
            self._raise()

    def over(self) -> None:
        """Let nothing cut the last message short: the command ends right after it."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._ended:
            return
        if self._holding and not self.pending:
            self.pending = True
        else:
            self._raise()

    def _raise(self) -> NoReturn:
        # Before the exception is raised: the next SIGINT may come before it is caught.
        self._ended = self._once
        raise KeyboardInterrupt
