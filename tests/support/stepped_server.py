"""A server whose time stands still until a test moves it: no timeout of its own is a race then.

It runs in a thread of the test's process, on a loop whose clock is a number. The clock of the
application, which leases, expiry and signatures go by, is the same number.
"""

import asyncio
import select
import threading
import time
from collections.abc import Coroutine
from typing import Any, Final, Self
from urllib.parse import urlsplit

from headwater.server.app import Application
from headwater.server.listener import Server
from headwater.server.settings import Settings
from tests.support.barrier import barrier
from tests.support.patience import PATIENCE_SECONDS
from tests.support.wire import Wire

START: Final = 1_900_000_000
"""The time of day, in seconds since 1970, when such a server starts."""
_STEP_SECONDS: Final = 0.0625
_TURNS: Final = 10
"""Turns of the loop after each step, in which everything that has come due is done."""


class SteppedLoop(asyncio.SelectorEventLoop):
    """A loop whose time a test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self._began: float | None = None
        super().__init__()

    def time(self) -> float:
        return self.now if self._began is None else self.now + time.monotonic() - self._began

    def go_by_the_real_clock(self) -> None:
        """Have time pass by itself from now on."""
        self._began = time.monotonic()


class SteppedServer:
    """A server in a thread, with settings as `Settings` takes them."""

    def __init__(self, **settings: Any) -> None:
        self._settings = Settings(**{"port": 0, "store": "memory", **settings})
        self._loop = SteppedLoop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.go_by_the_real_clock)
        self._run(self._server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def port(self) -> int:
        port = urlsplit(self.url).port
        assert port is not None
        return port

    def clock(self) -> float:
        """Tell the time of day."""
        return START + self._loop.time()

    def advance(self, seconds: float) -> None:
        """Move the time on, in small steps; the server does what comes due at each of them."""
        self._run(self._advance(seconds))

    async def _start(self) -> None:
        self._server = Server(self._settings)
        self._server.app = Application(
            self._server.store, self._settings, self.clock, jitter=lambda: 0.5
        )
        await self._server.start()

    async def _advance(self, seconds: float) -> None:
        until = self._loop.now + seconds
        while self._loop.now < until:
            self._loop.now = min(until, self._loop.now + _STEP_SECONDS)
            for _ in range(_TURNS):
                await asyncio.sleep(0)

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE_SECONDS)


def is_silent(server: SteppedServer, wire: Wire) -> bool:
    """Return whether a client has nothing to read once the server has done all it has to."""
    barrier(server.port)
    return not select.select([wire.sock], [], [], 0)[0]
