"""How one asynchronous reader is ended by another task or thread."""

import asyncio

from headwater.client.async_transport import AsyncExchange


class AsyncScope:
    """What one reader has open, so that another task can end it."""

    def __init__(self) -> None:
        self._exchange: AsyncExchange | None = None
        self._ended = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.stopped = False

    @property
    def exchange(self) -> AsyncExchange:
        """What is open now."""
        if self._exchange is None:
            raise LookupError("nothing is open")
        return self._exchange

    def enter(self) -> None:
        """Take note of the loop that the reader runs in."""
        self._loop = asyncio.get_running_loop()

    def hold(self, exchange: AsyncExchange) -> AsyncExchange:
        """Remember what is open now; it ends at once where the reader was stopped meanwhile."""
        self._exchange = exchange
        if self.stopped:
            exchange.cut()
        return exchange

    def let_go(self) -> None:
        """Give back what is open."""
        if self._exchange is not None:
            self._exchange.finish()
            self._exchange = None

    def stop(self) -> None:
        """End whatever the reader waits for; another thread may do so, too."""
        self.stopped = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end)

    async def wait(self, seconds: float) -> None:
        """Wait, or until the reader is stopped."""
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            return

    def _end(self) -> None:
        self._ended.set()
        if self._exchange is not None:
            self._exchange.cut()
