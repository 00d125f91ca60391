"""Waiting for what must happen: only a hang takes longer than the deadline."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

PATIENCE_SECONDS: Final = 60.0


async def until(holds: Callable[[], object], what: str = "it") -> None:
    """Wait on the loop until something holds."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not happen in {PATIENCE_SECONDS:g} s"
        await asyncio.sleep(0.01)


def wait_until(holds: Callable[[], object], what: str = "it", pause: float = 0.02) -> None:
    """Wait in a thread until something holds."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not happen in {PATIENCE_SECONDS:g} s"
        time.sleep(pause)
