"""A stream of a server, and what can be done with it."""

import codecs
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from headwater.client import _calls
from headwater.client._calls import START, Call
from headwater.client._http1 import origin_of, stream_url
from headwater.client._reader import Live, Reader
from headwater.client._transport import Scope
from headwater.client._values import Appended, Batch, Created, Position, StreamInfo
from headwater.errors import BadData
from headwater.protocol.content_types import JSON
from headwater.protocol.producers import ProducerClaim

if TYPE_CHECKING:
    from headwater.client._async_transport import AsyncScope
    from headwater.client._client import AsyncClient, Client


class AppendSession:
    """Numbers the idempotent appends of one stream object.

    Whoever uses it holds a lock from `claim` to the end of the append. An append that failed leaves
    open whether its number was used, so the next one begins a new epoch.
    """

    def __init__(self) -> None:
        self._producer_id = f"append-{uuid.uuid4()}"
        self._epoch = 0
        self._seq = 0

    def claim(self) -> ProducerClaim:
        """Give the claim of the next append; it counts as failed until `confirm`."""
        claim = ProducerClaim(self._producer_id, self._epoch, self._seq)
        self._epoch, self._seq = self._epoch + 1, 0
        return claim

    def confirm(self, claim: ProducerClaim) -> None:
        """Take note that the append was acknowledged."""
        self._epoch, self._seq = claim.epoch, claim.seq + 1


def check_same_server(source_url: str, url: str) -> None:
    """Refuse a fork to another server, which the protocol can't name."""
    if origin_of(url) != origin_of(source_url):
        raise ValueError(f"{source_url} can only be forked on its own server, not to {url}")


# What reading gives: batches, and the same data as bytes, text or JSON items.


class TextDecoder:
    """Puts text together whose characters may be cut by the batches."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def feed(self, batch: Batch) -> str:
        """Take a batch; a character that it cuts comes with the next one."""
        try:
            return self._decoder.decode(batch.data, final=batch.closed)
        except UnicodeDecodeError as error:
            raise BadData(batch.url, batch.start, str(error)) from None


class Reading:
    """A stream being read, from an offset to the end that it has.

    Iterate it, or one of its views, once. Lost connections are made anew behind the last batch:
    nothing is lost or seen twice.
    """

    def __init__(self, reader: Reader, run: Callable[[], Iterator[Batch]]) -> None:
        self._reader = reader
        self._run = run
        self._batches: Iterator[Batch] | None = None

    @property
    def offset(self) -> str:
        """Where to resume behind all batches that were given."""
        return str(self._reader.position)

    @property
    def closed(self) -> bool:
        """Whether the stream is closed and was read to its end."""
        return self._reader.closed

    @property
    def content_type(self) -> str:
        """The stream's content type; empty before the first batch."""
        return self._reader.content_type

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    def __next__(self) -> Batch:
        return next(self.batches())

    def batches(self) -> Iterator[Batch]:
        """Give the batches; one without data tells that the end is reached, for now or for ever."""
        if self._batches is None:
            self._batches = self._run()
        return self._batches

    def bytes(self) -> Iterator[bytes]:
        """Give the data as it comes."""
        for batch in self.batches():
            if not batch.empty:
                yield batch.data

    def text(self) -> Iterator[str]:
        """Give the data as text, whole characters at a time."""
        decoder = TextDecoder()
        for batch in self.batches():
            text = decoder.feed(batch)
            if text:
                yield text

    def items(self) -> Iterator[Any]:
        """Give the messages of a JSON stream."""
        for batch in self.batches():
            yield from batch.items()

    def items_with_offsets(self) -> Iterator[tuple[Any, Position]]:
        """Give the messages of a JSON stream, each with where to resume behind it."""
        for batch in self.batches():
            yield from batch.items_with_offsets()


class Following(Reading):
    """A stream being followed; it ends when the stream is closed, or by `stop`."""

    def __init__(
        self, reader: Reader, run: Callable[[], Iterator[Batch]], stop: Callable[[], None]
    ) -> None:
        super().__init__(reader, run)
        self._stop = stop

    def stop(self) -> None:
        """End it, from any thread: whoever iterates comes to the end without an error."""
        self._stop()


class AsyncReading:
    """`Reading` for `async for`."""

    def __init__(self, reader: Reader, run: Callable[[], AsyncIterator[Batch]]) -> None:
        self._reader = reader
        self._run = run
        self._batches: AsyncIterator[Batch] | None = None

    @property
    def offset(self) -> str:
        """Where to resume behind all batches that were given."""
        return str(self._reader.position)

    @property
    def closed(self) -> bool:
        """Whether the stream is closed and was read to its end."""
        return self._reader.closed

    @property
    def content_type(self) -> str:
        """The stream's content type; empty before the first batch."""
        return self._reader.content_type

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self.batches()

    async def __anext__(self) -> Batch:
        return await anext(self.batches())

    def batches(self) -> AsyncIterator[Batch]:
        """Give the batches; one without data tells that the end is reached, for now or for ever."""
        if self._batches is None:
            self._batches = self._run()
        return self._batches

    async def bytes(self) -> AsyncIterator[bytes]:
        """Give the data as it comes."""
        async for batch in self.batches():
            if not batch.empty:
                yield batch.data

    async def text(self) -> AsyncIterator[str]:
        """Give the data as text, whole characters at a time."""
        decoder = TextDecoder()
        async for batch in self.batches():
            text = decoder.feed(batch)
            if text:
                yield text

    async def items(self) -> AsyncIterator[Any]:
        """Give the messages of a JSON stream."""
        async for batch in self.batches():
            for item in batch.items():
                yield item

    async def items_with_offsets(self) -> AsyncIterator[tuple[Any, Position]]:
        """Give the messages of a JSON stream, each with where to resume behind it."""
        async for batch in self.batches():
            for pair in batch.items_with_offsets():
                yield pair


class AsyncFollowing(AsyncReading):
    """`Following` for `async for`."""

    def __init__(
        self, reader: Reader, run: Callable[[], AsyncIterator[Batch]], stop: Callable[[], None]
    ) -> None:
        super().__init__(reader, run)
        self._stop = stop

    def stop(self) -> None:
        """End it, from any task or thread: whoever iterates comes to the end without an error."""
        self._stop()


class Stream:
    """One stream. Making this asks the server nothing: the stream need not exist yet.

    Every method raises an error of `headwater.errors.ClientError` where it can't do what it says.
    Data for a JSON stream is any value that JSON knows; bytes are a JSON text, sent as it is. Other
    streams take bytes and text.
    """

    def __init__(self, client: "Client", url: str, content_type: str | None = None) -> None:
        self.url = url
        self.client = client
        self._content_type = content_type
        self._session = AppendSession()
        self._session_lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Stream({self.url!r})"

    def create(
        self,
        content_type: str = JSON,
        *,
        ttl: int | None = None,
        expires_at: str | None = None,
        data: Any = None,
        closed: bool = False,
    ) -> Created:
        """Create the stream, or make sure that it exists with this configuration.

        `ttl` is how many seconds it may stay unused, `expires_at` when it ends (RFC 3339). With
        `data` it begins with that, with `closed` it never gets more.
        """
        created = self.client.run(
            _calls.create(
                self.url,
                b"" if data is None else _calls.body_of(data, content_type),
                content_type=content_type,
                ttl=ttl,
                expires_at=expires_at,
                closed=closed,
            )
        )
        self._content_type = created.content_type or content_type
        return created

    def append(
        self,
        data: Any,
        *,
        seq: str | None = None,
        idempotent: bool = False,
        producer: ProducerClaim | None = None,
        content_type: str | None = None,
        close: bool = False,
    ) -> Appended:
        """Append one value; bytes are a whole body, of whose JSON array each element is a message.

        Where no answer came, it is in doubt whether it was appended, and the error says so. With
        `idempotent` it is sent again until it is certain, and appended once; `producer` does the
        same under a claim of your own. `close` closes the stream in the same step.
        """
        content_type = content_type or self.content_type()
        body = _calls.body_of(data, content_type)
        return self._append(body, content_type, seq, producer, close, idempotent=idempotent)

    def append_many(
        self,
        items: Iterable[Any],
        *,
        seq: str | None = None,
        idempotent: bool = False,
        producer: ProducerClaim | None = None,
        content_type: str | None = None,
        close: bool = False,
    ) -> Appended:
        """Append several values in one step: all of them, or none."""
        content_type = content_type or self.content_type()
        messages = [_calls.encode(item, content_type) for item in items]
        if not messages:
            raise ValueError("append_many needs at least one item")
        body = _calls.join_messages(messages, content_type)
        return self._append(body, content_type, seq, producer, close, idempotent=idempotent)

    def read(self, offset: str = START, *, until: str | None = None) -> Reading:
        """Read from an offset to the end that the stream has now; there is always a batch.

        Of a reader that is to stop earlier, `until` is the offset: little is sent of what lies
        behind it. A batch may still reach beyond, where a server does not know the parameter.
        """
        reader = Reader(self.url, str(offset), until=until)
        return Reading(reader, lambda: self._batches(reader, Scope()))

    def follow(self, offset: str = START, *, live: Live = "auto") -> Following:
        """Read from an offset, then wait for more; ends when the stream is closed.

        `live` is how to wait: `sse`, `long-poll`, or `auto` for SSE wherever it carries the data
        exactly, which is everything but text. Where something between here and the server holds
        events back, it goes over to long-poll by itself.
        """
        reader = Reader(self.url, str(offset), live)
        scope = Scope()
        return Following(reader, lambda: self._batches(reader, scope), scope.stop)

    def head(self) -> StreamInfo:
        """Ask for the stream's metadata."""
        info = self.client.run(_calls.head(self.url))
        self._content_type = info.content_type
        return info

    def exists(self) -> bool:
        """Ask whether the stream is there."""
        return self.client.run(_calls.exists(self.url))

    def close(
        self, data: Any = None, *, content_type: str | None = None, idempotent: bool = False
    ) -> Appended:
        """Close the stream for good, in one step with a last append where there is data."""
        if data is None:
            return self.client.run(_calls.close(self.url))
        return self.append(data, content_type=content_type, close=True, idempotent=idempotent)

    def fork(
        self,
        target: "str | Stream",
        *,
        offset: str | None = None,
        sub_offset: int = 0,
        ttl: int | None = None,
        expires_at: str | None = None,
    ) -> Created:
        """Create a stream that starts with this one's data, up to an offset or else to its end.

        `sub_offset` moves the point on by so many messages (JSON) or bytes.
        """
        if isinstance(target, Stream):
            url = target.url
        else:
            url = stream_url(self.client.base_url, target, self.client.root)
        check_same_server(self.url, url)
        position = Position.parse(offset) if offset is not None else None
        return self.client.run(
            _calls.fork(
                self.url,
                url,
                offset=position.offset if position is not None else None,
                sub_offset=sub_offset + (position.skip if position is not None else 0),
                ttl=ttl,
                expires_at=expires_at,
            )
        )

    def delete(self) -> None:
        """Delete the stream; its forks keep what they share with it."""
        self.client.run(_calls.delete(self.url))

    def content_type(self) -> str:
        """Tell the stream's content type, which is asked for once."""
        if self._content_type is None:
            self.head()
        return self._content_type or ""

    def _append(
        self,
        body: bytes,
        content_type: str,
        seq: str | None,
        producer: ProducerClaim | None,
        close: bool,
        *,
        idempotent: bool,
    ) -> Appended:
        def call(claim: ProducerClaim | None) -> Call[Appended]:
            return _calls.append(
                self.url, body, content_type=content_type, seq=seq, producer=claim, close=close
            )

        if idempotent and producer is None:
            with self._session_lock:
                claim = self._session.claim()
                appended = self.client.run(call(claim))
                self._session.confirm(claim)
        else:
            appended = self.client.run(call(producer))
        if appended.next_offset:
            return appended
        return replace(appended, next_offset=(self.head()).next_offset)

    def _batches(self, reader: Reader, scope: Scope) -> Iterator[Batch]:
        for batch in self.client.read(reader, scope):
            self._content_type = batch.content_type or self._content_type
            yield batch


# A stream of a server, and what can be done with it, awaited.


class AsyncStream:
    """One stream. Making this asks the server nothing: the stream need not exist yet.

    Every method raises an error of `headwater.errors.ClientError` where it can't do what it says.
    Data for a JSON stream is any value that JSON knows; bytes are a JSON text, sent as it is. Other
    streams take bytes and text.
    """

    def __init__(self, client: "AsyncClient", url: str, content_type: str | None = None) -> None:
        self.url = url
        self.client = client
        self._content_type = content_type
        self._session = AppendSession()
        import asyncio

        self._session_lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"AsyncStream({self.url!r})"

    async def create(
        self,
        content_type: str = JSON,
        *,
        ttl: int | None = None,
        expires_at: str | None = None,
        data: Any = None,
        closed: bool = False,
    ) -> Created:
        """Create the stream, or make sure that it exists with this configuration.

        `ttl` is how many seconds it may stay unused, `expires_at` when it ends (RFC 3339). With
        `data` it begins with that, with `closed` it never gets more.
        """
        created = await self.client.run(
            _calls.create(
                self.url,
                b"" if data is None else _calls.body_of(data, content_type),
                content_type=content_type,
                ttl=ttl,
                expires_at=expires_at,
                closed=closed,
            )
        )
        self._content_type = created.content_type or content_type
        return created

    async def append(
        self,
        data: Any,
        *,
        seq: str | None = None,
        idempotent: bool = False,
        producer: ProducerClaim | None = None,
        content_type: str | None = None,
        close: bool = False,
    ) -> Appended:
        """Append one value; bytes are a whole body, of whose JSON array each element is a message.

        Where no answer came, it is in doubt whether it was appended, and the error says so. With
        `idempotent` it is sent again until it is certain, and appended once; `producer` does the
        same under a claim of your own. `close` closes the stream in the same step.
        """
        content_type = content_type or await self.content_type()
        body = _calls.body_of(data, content_type)
        return await self._append(body, content_type, seq, producer, close, idempotent=idempotent)

    async def append_many(
        self,
        items: Iterable[Any],
        *,
        seq: str | None = None,
        idempotent: bool = False,
        producer: ProducerClaim | None = None,
        content_type: str | None = None,
        close: bool = False,
    ) -> Appended:
        """Append several values in one step: all of them, or none."""
        content_type = content_type or await self.content_type()
        messages = [_calls.encode(item, content_type) for item in items]
        if not messages:
            raise ValueError("append_many needs at least one item")
        body = _calls.join_messages(messages, content_type)
        return await self._append(body, content_type, seq, producer, close, idempotent=idempotent)

    def read(self, offset: str = START, *, until: str | None = None) -> AsyncReading:
        """Read from an offset to the end that the stream has now; there is always a batch.

        Of a reader that is to stop earlier, `until` is the offset: little is sent of what lies
        behind it. A batch may still reach beyond, where a server does not know the parameter.
        """
        reader = Reader(self.url, str(offset), until=until)
        from headwater.client._async_transport import AsyncScope

        return AsyncReading(reader, lambda: self._batches(reader, AsyncScope()))

    def follow(self, offset: str = START, *, live: Live = "auto") -> AsyncFollowing:
        """Read from an offset, then wait for more; ends when the stream is closed.

        `live` is how to wait: `sse`, `long-poll`, or `auto` for SSE wherever it carries the data
        exactly, which is everything but text. Where something between here and the server holds
        events back, it goes over to long-poll by itself.
        """
        reader = Reader(self.url, str(offset), live)
        from headwater.client._async_transport import AsyncScope

        scope = AsyncScope()
        return AsyncFollowing(reader, lambda: self._batches(reader, scope), scope.stop)

    async def head(self) -> StreamInfo:
        """Ask for the stream's metadata."""
        info = await self.client.run(_calls.head(self.url))
        self._content_type = info.content_type
        return info

    async def exists(self) -> bool:
        """Ask whether the stream is there."""
        return await self.client.run(_calls.exists(self.url))

    async def close(
        self, data: Any = None, *, content_type: str | None = None, idempotent: bool = False
    ) -> Appended:
        """Close the stream for good, in one step with a last append where there is data."""
        if data is None:
            return await self.client.run(_calls.close(self.url))
        return await self.append(data, content_type=content_type, close=True, idempotent=idempotent)

    async def fork(
        self,
        target: "str | AsyncStream",
        *,
        offset: str | None = None,
        sub_offset: int = 0,
        ttl: int | None = None,
        expires_at: str | None = None,
    ) -> Created:
        """Create a stream that starts with this one's data, up to an offset or else to its end.

        `sub_offset` moves the point on by so many messages (JSON) or bytes.
        """
        if isinstance(target, AsyncStream):
            url = target.url
        else:
            url = stream_url(self.client.base_url, target, self.client.root)
        check_same_server(self.url, url)
        position = Position.parse(offset) if offset is not None else None
        return await self.client.run(
            _calls.fork(
                self.url,
                url,
                offset=position.offset if position is not None else None,
                sub_offset=sub_offset + (position.skip if position is not None else 0),
                ttl=ttl,
                expires_at=expires_at,
            )
        )

    async def delete(self) -> None:
        """Delete the stream; its forks keep what they share with it."""
        await self.client.run(_calls.delete(self.url))

    async def content_type(self) -> str:
        """Tell the stream's content type, which is asked for once."""
        if self._content_type is None:
            await self.head()
        return self._content_type or ""

    async def _append(
        self,
        body: bytes,
        content_type: str,
        seq: str | None,
        producer: ProducerClaim | None,
        close: bool,
        *,
        idempotent: bool,
    ) -> Appended:
        def call(claim: ProducerClaim | None) -> Call[Appended]:
            return _calls.append(
                self.url, body, content_type=content_type, seq=seq, producer=claim, close=close
            )

        if idempotent and producer is None:
            async with self._session_lock:
                claim = self._session.claim()
                appended = await self.client.run(call(claim))
                self._session.confirm(claim)
        else:
            appended = await self.client.run(call(producer))
        if appended.next_offset:
            return appended
        return replace(appended, next_offset=(await self.head()).next_offset)

    async def _batches(self, reader: Reader, scope: "AsyncScope") -> AsyncIterator[Batch]:
        async for batch in self.client.read(reader, scope):
            self._content_type = batch.content_type or self._content_type
            yield batch
