"""Standard output for data: whole batchs, and a quiet end when nobody reads any more."""

import os
import select
import stat
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headwater.client import Batch

_BREAKS_TO_SPACES: Final = bytes.maketrans(b"\r\n", b"  ")


class Output:
    """Writes batchs to standard output."""

    def __init__(self) -> None:
        self._file = sys.stdout.buffer
        self.gone = False
        """Whether whoever read the output has gone."""

    @property
    def is_file(self) -> bool:
        """Whether the output goes to a file, so that nobody sees it grow."""
        return stat.S_ISREG(os.fstat(self._file.fileno()).st_mode)

    def write(self, batch: "Batch", *, flush: bool) -> None:
        """Write a batch: JSON messages one per line, other data as it is."""
        try:
            self._file.write(lines_of(batch.messages()) if batch.is_json else batch.data)
            if flush:
                self._file.flush()
        except BrokenPipeError:
            self.gone = True

    def finish(self) -> None:
        """Write what is buffered; where nobody reads, let it go instead."""
        try:
            self._file.flush()
        except BrokenPipeError:
            self.gone = True
        if self.gone:
            # The interpreter flushes once more when it ends, and would complain.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._file.fileno())
            os.close(nowhere)

    def watch(self, when_gone: Callable[[], None]) -> None:
        """Call back as soon as nobody reads a pipe any more, although nothing is written."""
        number = self._file.fileno()
        mode = os.fstat(number).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            threading.Thread(target=self._wait, args=(number, when_gone), daemon=True).start()

    def _wait(self, number: int, when_gone: Callable[[], None]) -> None:
        poll = select.poll()
        poll.register(number, 0)  # errors and hang-ups are told without asking
        poll.poll()
        self.gone = True
        when_gone()


def lines_of(messages: list[bytes]) -> bytes:
    """Put each JSON message on a line of its own."""
    if not messages:
        return b""
    # Between tokens a line break is only space, and within a string JSON allows none.
    return b"\n".join(message.translate(_BREAKS_TO_SPACES) for message in messages) + b"\n"
