"""An HTTP proxy that does everything wrong that can go wrong, by a seeded chance.

It knows requests and answers, so that it can answer for the server (429, 503), lose an answer to a
request that was carried out, send an answer twice, or hold requests and answers back so that those
of other connections overtake them.
"""

import asyncio
import random
import threading
from contextlib import suppress
from typing import Any, Final, Self
from urllib.parse import urlsplit

import httptools

FAULTS: Final = (
    "429",
    "503",
    "503 after it was done",
    "cut before",
    "cut after",
    "half",
    "twice",
    "late request",
    "late answer",
)


class Message:
    """One request or answer, kept as the bytes that it came in."""

    def __init__(self, *, is_request: bool) -> None:
        kind = httptools.HttpRequestParser if is_request else httptools.HttpResponseParser
        self.parser: Any = kind(self)
        self.raw = bytearray()
        self.whole = False
        self.events = False

    def feed(self, data: bytes) -> None:
        self.raw += data
        self.parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type" and b"text/event-stream" in value:
            self.events = True

    def on_message_complete(self) -> None:
        self.whole = True


class FaultyProxy:
    """Stands between a client and a server; `url` is where clients connect."""

    def __init__(self, upstream_url: str, *, seed: int, chance: float) -> None:
        parts = urlsplit(upstream_url)
        self._upstream = (parts.hostname or "", parts.port or 80)
        self._random = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self.chance = chance
        """How likely a request meets a fault."""
        self.buffers_events = False
        """Whether event streams are held back until they end, as some proxies do."""
        self.happened: dict[str, int] = dict.fromkeys((*FAULTS, "cut events"), 0)
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        tasks: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._connection(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(*self._upstream)
        try:
            with suppress(OSError, httptools.HttpParserError):
                while await self._exchange(reader, writer, up_reader, up_writer):
                    pass
        finally:
            for one in (writer, up_writer):
                one.transport.abort()

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
    ) -> bool:
        request = Message(is_request=True)
        while not request.whole:
            data = await reader.read(65536)
            if not data:
                return False
            request.feed(data)
        fault = self._choose()
        if fault in {"429", "503"}:
            writer.write(_refusal(fault))
            return True
        if fault == "cut before":
            return False
        if fault == "late request":
            await asyncio.sleep(self._random.random() * 0.02)
        up_writer.write(bytes(request.raw))
        answer = Message(is_request=False)
        is_head = request.raw.startswith(b"HEAD")
        while not answer.whole:
            data = await up_reader.read(65536)
            if not data:
                return False
            answer.feed(data)
            if answer.events:
                return await self._carry_events(answer, writer, up_reader)
            if is_head and b"\r\n\r\n" in answer.raw:
                break
        return await self._deliver(fault, bytes(answer.raw), writer)

    async def _deliver(self, fault: str, answer: bytes, writer: asyncio.StreamWriter) -> bool:
        if fault == "503 after it was done":
            writer.write(_refusal("503"))
            return True
        if fault == "cut after":
            return False
        if fault == "half":
            writer.write(answer[: len(answer) // 2])
            await writer.drain()
            await asyncio.sleep(0.001)
            return False
        if fault == "late answer":
            await asyncio.sleep(self._random.random() * 0.02)
        # Twice in one piece: a copy that came later could not be told from the next answer.
        writer.write(answer + answer if fault == "twice" else answer)
        await writer.drain()
        return True

    async def _carry_events(
        self, answer: Message, writer: asyncio.StreamWriter, up_reader: asyncio.StreamReader
    ) -> bool:
        if self.buffers_events:
            while data := await up_reader.read(65536):
                answer.raw += data
            writer.write(bytes(answer.raw))
            await writer.drain()
            return False
        writer.write(bytes(answer.raw))
        while data := await up_reader.read(65536):
            if self._random.random() < self.chance / 4:
                self.happened["cut events"] += 1
                writer.write(data[: self._random.randrange(len(data))])
                await writer.drain()
                await asyncio.sleep(0.001)
                return False
            writer.write(data)
            await writer.drain()
        return False

    def _choose(self) -> str:
        if self._random.random() >= self.chance:
            return ""
        fault = self._random.choice(FAULTS)
        self.happened[fault] += 1
        return fault


def _refusal(status: str) -> bytes:
    more = "Retry-After: 0\r\n" if status == "429" else ""
    return f"HTTP/1.1 {status} No\r\n{more}Content-Length: 0\r\n\r\n".encode()
