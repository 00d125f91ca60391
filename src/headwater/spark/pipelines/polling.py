"""Asking a server every few seconds, beside what a person waits for."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from headwater.errors import HeadwaterError

_PATIENCE_SECONDS: Final = 3.0


class Polling:
    """Asks in a thread of its own: a server that is slow, or gone, delays no batch and no stop."""

    def __init__(self, name: str, seconds: float, ask: Callable[[], None]) -> None:
        self._seconds = seconds
        self._ask = ask
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Ask once more, and end; a server that does not answer is not waited for."""
        self._over.set()
        self._thread.join(_PATIENCE_SECONDS)

    def _work(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._over.wait(self._seconds)
            with suppress(HeadwaterError):  # what is known stays as it is until it answers
                self._ask()
