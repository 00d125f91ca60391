"""The server process: listening, periodic jobs, graceful stop."""

import asyncio
import gc
import logging
import resource
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Final, cast

from headwater.errors import CannotListen, SettingsError
from headwater.server.app import Application
from headwater.server.housekeeping import Housekeeping, Job
from headwater.server.http1.connection import Connection
from headwater.server.http1.endpoint import Endpoint
from headwater.server.memory_budget import divide
from headwater.server.settings import Settings
from headwater.storage.disk.faults import NO_FAULTS, Faults
from headwater.storage.disk.options import DiskOptions
from headwater.storage.disk.store import DiskStore
from headwater.storage.memory import MemoryStore
from headwater.storage.store import Store

log: Final = logging.getLogger("headwater.serve")

_OTHER_FILES: Final = 128
"""Open files other than connections and segments of readers: the journal, the catalog, the segments
of a checkpoint and of a compaction, and those of the event loop."""


def open_store(settings: Settings, faults: Faults = NO_FAULTS) -> Store:
    """Return the store that the settings select."""
    if settings.in_memory:
        return MemoryStore(settings.memory_limit_bytes)
    if "://" in settings.store:
        raise SettingsError("store", settings.store, "a directory, or 'memory'")
    budget = divide(settings)
    return DiskStore(
        Path(settings.store),
        DiskOptions(
            durability=settings.durability,
            tail_budget=budget.tail_bytes,
            journal_bytes=settings.journal_bytes,
            max_loaded_streams=budget.loaded_streams,
            max_open_segments=settings.max_open_segments,
            max_checked_blocks=budget.checked_blocks,
            checkpoint_seconds=settings.checkpoint_interval,
        ),
        faults=faults,
    )


class Server:
    """A listening server; `start`, then `stop`."""

    def __init__(self, settings: Settings, store: Store | None = None) -> None:
        self.settings = settings
        self.store = store or open_store(settings)
        self.app = Application(self.store, settings)
        self._endpoint: Endpoint | None = None
        self._listener: asyncio.Server | None = None
        self._housekeeping = Housekeeping([Job("sweep", _sweep_seconds(settings), self._sweep)])

    @property
    def url(self) -> str:
        """The URL of the server."""
        assert self._listener is not None  # noqa: S101 - the server was started
        host, port = self._listener.sockets[0].getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def start(self) -> None:
        """Open the store and listen."""
        await self.store.open()
        endpoint = self._endpoint = Endpoint(self.app)
        try:
            await self.app.start()
            self._listener = await self._listen(endpoint)
        except BaseException:
            await self.app.stop()
            await self.store.close()
            raise
        self._housekeeping.start()

    async def _listen(self, endpoint: Endpoint) -> asyncio.Server:
        host, port = self.settings.host, self.settings.port
        try:
            listener = await asyncio.get_running_loop().create_server(
                lambda: cast(asyncio.Protocol, Connection(endpoint)),
                host,
                port,
                backlog=4096,
                family=socket.AF_UNSPEC,
            )
        except OSError as error:
            raise CannotListen(host, port, error.strerror or str(error)) from error
        for each in listener.sockets:
            _disable_pacing(each)
        return listener

    async def stop(self) -> None:
        """Finish the requests in progress, end live readers, then close the store."""
        endpoint = self._endpoint
        if endpoint is None or self._listener is None:
            return
        self._listener.close()
        endpoint.stop()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.shutdown_timeout
        while endpoint.connections and loop.time() < deadline:  # noqa: ASYNC110 - once per process
            await asyncio.sleep(0.02)
        if endpoint.connections:
            log.warning(
                "closing connections that exceeded the shutdown timeout",
                extra={"count": len(endpoint.connections)},
            )
            for connection in tuple(endpoint.connections):
                connection.abort()
        await self._housekeeping.stop()
        self._endpoint = None
        await self.app.stop()
        await self.store.close()

    async def _sweep(self) -> None:
        if self._endpoint is not None:
            self._endpoint.sweep()


def _disable_pacing(listener: socket.socket) -> None:
    """Choose a congestion control without pacing for loopback connections.

    Pacing (as in bbr) only costs throughput there, since no link is shared.
    """
    if ip_address(listener.getsockname()[0]).is_loopback and hasattr(socket, "TCP_CONGESTION"):
        with suppress(OSError):  # an optimisation only
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def allow_open_files(settings: Settings) -> None:
    """Raise the limit on open files to what the settings may need, or to the hard limit."""
    needed = (
        settings.max_connections
        + settings.max_open_segments
        + settings.webhook_concurrency
        + _OTHER_FILES
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    infinite = resource.RLIM_INFINITY
    if soft == infinite or soft >= needed:
        return
    granted = needed if hard == infinite else min(needed, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (granted, hard))
    except (OSError, ValueError):  # some systems have a further limit
        granted = soft
    if granted < needed:
        log.warning(
            "open files are limited to %d, connections and segments may need %d: raise the hard "
            "limit (ulimit -Hn), or lower --max-connections",
            granted,
            needed,
        )


def _sweep_seconds(settings: Settings) -> float:
    """Return the seconds between two sweeps: 1, or less if a timeout is short."""
    shortest = min(
        settings.header_timeout,
        settings.body_timeout,
        settings.idle_timeout,
        settings.write_timeout,
    )
    return min(1.0, shortest / 4)


async def serve(
    settings: Settings, announce: Callable[[str], None], store: Store | None = None
) -> None:
    """Serve until SIGTERM or SIGINT; `announce` is called with the URL once it is ready."""
    allow_open_files(settings)
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    server = Server(settings, store)
    await server.start()
    announce(server.url)
    await stopped.wait()
    log.info("stopping")
    await server.stop()
    log.info("stopped")


def run(settings: Settings, announce: Callable[[str], None], store: Store | None = None) -> None:
    """Run `serve` on uvloop if it is installed, otherwise on asyncio's loop."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None
    try:
        import uvloop  # noqa: PLC0415 - absent on some platforms

        factory = uvloop.new_event_loop
    except ImportError:
        factory = None
    # Modules stay loaded and requests create no reference cycles: garbage is collected less often.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve(settings, announce, store))
