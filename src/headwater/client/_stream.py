"""A stream: its operations, and the readings that `read` and `follow` return.

`Stream` and `AsyncStream` have the same operations, written once in `StreamOperations`.
"""

import codecs
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from headwater.client import _calls
from headwater.client._calls import START, Call
from headwater.client._http1 import origin_of, stream_url
from headwater.client._operations import Asynchronous, Invoke, Steps, operation
from headwater.client._reader import Live, Reader
from headwater.client._transport import Scope
from headwater.client._values import Appended, Batch, Created, Position, StreamInfo
from headwater.errors import BadData
from headwater.protocol.content_types import JSON
from headwater.protocol.producers import ProducerClaim

if TYPE_CHECKING:
    from headwater.client._async_transport import AsyncScope
    from headwater.client._client import AsyncClient, BaseClient, Client

T = TypeVar("T")


class BaseReading:
    """The position of a read."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    @property
    def offset(self) -> str:
        """The offset, or position, to resume from after all batches that were returned."""
        return str(self._reader.position)

    @property
    def closed(self) -> bool:
        """Whether the stream is closed and was read to its end."""
        return self._reader.closed

    @property
    def content_type(self) -> str:
        """The stream's content type; empty before the first batch."""
        return self._reader.content_type


class Reading(BaseReading):
    """A read from an offset to the present end of a stream.

    Iterate once, over batches or over one of the views: bytes, text or items. After a lost
    connection it continues from the last batch: nothing is lost or seen twice.
    """

    def __init__(self, reader: Reader, start: Callable[[], Iterator[Batch]]) -> None:
        super().__init__(reader)
        self._start = start
        self._batches: Iterator[Batch] | None = None

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    def __next__(self) -> Batch:
        return next(self.batches())

    def batches(self) -> Iterator[Batch]:
        """Iterate over the batches; one without data reports that the end was reached."""
        if self._batches is None:
            self._batches = self._start()
        return self._batches

    def bytes(self) -> Iterator[bytes]:
        """Iterate over the data as it arrives."""
        return self._view(_data)

    def text(self) -> Iterator[str]:
        """Iterate over the data as text, in whole characters."""
        return self._view(TextDecoder().feed)

    def items(self) -> Iterator[Any]:
        """Iterate over the messages of a JSON stream."""
        return self._view(Batch.items)

    def items_with_offsets(self) -> Iterator[tuple[Any, Position]]:
        """Iterate over the messages of a JSON stream, each with the position after it."""
        return self._view(Batch.items_with_offsets)

    def _view(self, parts: Callable[[Batch], Iterable[T]]) -> Iterator[T]:
        for batch in self.batches():
            yield from parts(batch)


class Following(Reading):
    """A read that waits for more data until the stream is closed or `stop` is called."""

    def __init__(
        self, reader: Reader, start: Callable[[], Iterator[Batch]], stop: Callable[[], None]
    ) -> None:
        super().__init__(reader, start)
        self._stop = stop

    def stop(self) -> None:
        """End the iteration without an error; may be called from any thread."""
        self._stop()


class AsyncReading(BaseReading):
    """`Reading` for `async for`."""

    def __init__(self, reader: Reader, start: Callable[[], AsyncIterator[Batch]]) -> None:
        super().__init__(reader)
        self._start = start
        self._batches: AsyncIterator[Batch] | None = None

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self.batches()

    async def __anext__(self) -> Batch:
        return await anext(self.batches())

    def batches(self) -> AsyncIterator[Batch]:
        """Iterate over the batches; one without data reports that the end was reached."""
        if self._batches is None:
            self._batches = self._start()
        return self._batches

    def bytes(self) -> AsyncIterator[bytes]:
        """Iterate over the data as it arrives."""
        return self._view(_data)

    def text(self) -> AsyncIterator[str]:
        """Iterate over the data as text, in whole characters."""
        return self._view(TextDecoder().feed)

    def items(self) -> AsyncIterator[Any]:
        """Iterate over the messages of a JSON stream."""
        return self._view(Batch.items)

    def items_with_offsets(self) -> AsyncIterator[tuple[Any, Position]]:
        """Iterate over the messages of a JSON stream, each with the position after it."""
        return self._view(Batch.items_with_offsets)

    async def _view(self, parts: Callable[[Batch], Iterable[T]]) -> AsyncIterator[T]:
        async for batch in self.batches():
            for part in parts(batch):
                yield part


class AsyncFollowing(AsyncReading):
    """`Following` for `async for`."""

    def __init__(
        self, reader: Reader, start: Callable[[], AsyncIterator[Batch]], stop: Callable[[], None]
    ) -> None:
        super().__init__(reader, start)
        self._stop = stop

    def stop(self) -> None:
        """End the iteration without an error; may be called from any task or thread."""
        self._stop()


class TextDecoder:
    """Decodes text whose characters may be cut between batches."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def feed(self, batch: Batch) -> tuple[str, ...]:
        """Return the text of a batch, if any; a cut character is returned with the next batch."""
        try:
            text = self._decoder.decode(batch.data, final=batch.closed)
        except UnicodeDecodeError as error:
            raise BadData(batch.url, batch.start, str(error)) from None
        return (text,) if text else ()


def _data(batch: Batch) -> tuple[bytes, ...]:
    return () if batch.empty else (batch.data,)


class AppendSession:
    """Numbers the idempotent appends of one stream object, as a producer of its own.

    The caller holds `lock` from `claim` to the end of the append. It is unknown whether a failed
    append used its number, so the next one begins a new epoch.
    """

    def __init__(self, lock: Any) -> None:
        self.lock = lock
        self._producer_id = f"append-{uuid.uuid4()}"
        self._epoch = 0
        self._seq = 0

    def claim(self) -> ProducerClaim:
        """Return the claim of the next append, which counts as failed until `confirm`."""
        claim = ProducerClaim(self._producer_id, self._epoch, self._seq)
        self._epoch, self._seq = self._epoch + 1, 0
        return claim

    def confirm(self, claim: ProducerClaim) -> None:
        """Record that the append was acknowledged."""
        self._epoch, self._seq = claim.epoch, claim.seq + 1


class StreamOperations:
    """The operations on a stream, for both kinds of clients."""

    client: "BaseClient[Any]"

    def __init__(self, url: str, lock: Any, content_type: str | None) -> None:
        self.url = url
        self._content_type = content_type
        self._session = AppendSession(lock)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    @operation
    def create(
        self,
        content_type: str = JSON,
        *,
        ttl: int | None = None,
        expires_at: str | None = None,
        data: Any = None,
        closed: bool = False,
    ) -> Steps[Created]:
        """Create the stream, or confirm that it exists with this configuration.

        The stream expires after `ttl` seconds without an access, or at the time `expires_at` (RFC
        3339). `data` is its first content; with `closed`, it is also its last.
        """
        body = b"" if data is None else _calls.body_of(data, content_type)
        created = yield from self.client._steps(
            _calls.create(
                self.url,
                body,
                content_type=content_type,
                ttl=ttl,
                expires_at=expires_at,
                closed=closed,
            )
        )
        self._content_type = created.content_type or content_type
        return created

    @operation
    def append(
        self,
        data: Any,
        *,
        seq: str | None = None,
        idempotent: bool = False,
        producer: ProducerClaim | None = None,
        content_type: str | None = None,
        close: bool = False,
    ) -> Steps[Appended]:
        """Append one value as one message.

        Bytes are sent unchanged: in a JSON stream they must be a JSON text, and each element of an
        array is a message. If the response is lost, the append may or may not have been executed,
        and `ConnectionLost` is raised. With `idempotent` it is sent again until it is acknowledged,
        and appended once; `producer` does the same under a claim of your own. `close` closes the
        stream in the same step.
        """
        content_type = content_type or (yield from self._known_content_type())
        body = _calls.body_of(data, content_type)
        return (
            yield from self._append(body, content_type, seq, producer, close, idempotent=idempotent)
        )

    @operation
    def append_many(
        self,
        items: Iterable[Any],
        *,
        seq: str | None = None,
        idempotent: bool = False,
        producer: ProducerClaim | None = None,
        content_type: str | None = None,
        close: bool = False,
    ) -> Steps[Appended]:
        """Append several values in one step: all of them, or none."""
        content_type = content_type or (yield from self._known_content_type())
        messages = [_calls.encode(item, content_type) for item in items]
        if not messages:
            raise ValueError("append_many needs at least one item")
        body = _calls.join_messages(messages, content_type)
        return (
            yield from self._append(body, content_type, seq, producer, close, idempotent=idempotent)
        )

    @operation
    def head(self) -> Steps[StreamInfo]:
        """Return the stream's metadata."""
        return (yield from self._head())

    @operation
    def exists(self) -> Steps[bool]:
        """Return whether the stream exists."""
        return (yield from self.client._steps(_calls.exists(self.url)))

    @operation
    def close(
        self, data: Any = None, *, content_type: str | None = None, idempotent: bool = False
    ) -> Steps[Appended]:
        """Close the stream for good, in one step with a last append if there is data."""
        if data is None:
            return (yield from self.client._steps(_calls.close(self.url)))
        content_type = content_type or (yield from self._known_content_type())
        body = _calls.body_of(data, content_type)
        return (
            yield from self._append(body, content_type, None, None, True, idempotent=idempotent)
        )

    @operation
    def fork(
        self,
        target: "str | Stream | AsyncStream",
        *,
        offset: str | None = None,
        sub_offset: int = 0,
        ttl: int | None = None,
        expires_at: str | None = None,
    ) -> Steps[Created]:
        """Create a stream that shares this one's data, up to an offset or to its present end.

        `sub_offset` is a number of messages (JSON) or bytes after the offset.
        """
        client = self.client
        if isinstance(target, str):
            url = stream_url(client.base_url, target, client.root)
        else:
            url = target.url
        if origin_of(url) != origin_of(self.url):
            # The protocol names the source by its path.
            raise ValueError(f"{self.url} can only be forked on its own server, not to {url}")
        position = Position.parse(offset) if offset is not None else None
        return (
            yield from client._steps(
                _calls.fork(
                    self.url,
                    url,
                    offset=position.offset if position is not None else None,
                    sub_offset=sub_offset + (position.skip if position is not None else 0),
                    ttl=ttl,
                    expires_at=expires_at,
                )
            )
        )

    @operation
    def delete(self) -> Steps[None]:
        """Delete the stream; its forks retain the data that they share with it."""
        yield from self.client._steps(_calls.delete(self.url))

    @operation
    def content_type(self) -> Steps[str]:
        """Return the stream's content type; it is requested only once."""
        return (yield from self._known_content_type())

    def _head(self) -> Steps[StreamInfo]:
        info = yield from self.client._steps(_calls.head(self.url))
        self._content_type = info.content_type
        return info

    def _known_content_type(self) -> Steps[str]:
        if self._content_type is None:
            yield from self._head()
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
    ) -> Steps[Appended]:
        def call(claim: ProducerClaim | None) -> Call[Appended]:
            return _calls.append(
                self.url, body, content_type=content_type, seq=seq, producer=claim, close=close
            )

        if idempotent and producer is None:
            session = self._session
            yield Invoke(session.lock.acquire)
            try:
                claim = session.claim()
                appended = yield from self.client._steps(call(claim))
                session.confirm(claim)
            finally:
                session.lock.release()
        else:
            appended = yield from self.client._steps(call(producer))
        if appended.next_offset:
            return appended
        info = yield from self._head()
        return replace(appended, next_offset=info.next_offset)


class Stream(StreamOperations):
    """A stream by its URL. Creating this object sends no request: the stream need not exist yet.

    Every method raises a subclass of `headwater.errors.ClientError` if it fails. Data for a JSON
    stream is any value that JSON can represent; bytes must be a JSON text and are sent unchanged.
    Other streams accept bytes and text.
    """

    client: "Client"

    def __init__(self, client: "Client", url: str, content_type: str | None = None) -> None:
        super().__init__(url, client._make_lock(), content_type)
        self.client = client

    def read(self, offset: str = START, *, until: str | None = None) -> Reading:
        """Read from an offset to the present end; there is always at least one batch.

        With `until`, reading stops at that offset. A server that does not support the parameter may
        return a last batch that extends past it.
        """
        reader = Reader(self.url, str(offset), until=until)
        return Reading(reader, lambda: self._batches(reader, Scope()))

    def follow(self, offset: str = START, *, live: Live = "auto") -> Following:
        """Read from an offset, then wait for more data until the stream is closed.

        `live` is how to wait: 'sse', 'long-poll', or 'auto', which uses SSE except for text, since
        SSE changes its line ends. If a proxy buffers events, long-poll is used instead.
        """
        reader = Reader(self.url, str(offset), live)
        scope = Scope()
        return Following(reader, lambda: self._batches(reader, scope), scope.stop)

    def _batches(self, reader: Reader, scope: Scope) -> Iterator[Batch]:
        for batch in self.client._read(reader, scope):
            self._content_type = batch.content_type or self._content_type
            yield batch


class AsyncStream(StreamOperations, Asynchronous):
    """`Stream` with awaitable methods."""

    client: "AsyncClient"

    def __init__(self, client: "AsyncClient", url: str, content_type: str | None = None) -> None:
        super().__init__(url, client._make_lock(), content_type)
        self.client = client

    def read(self, offset: str = START, *, until: str | None = None) -> AsyncReading:
        """Read from an offset to the present end, as `Stream.read` does."""
        reader = Reader(self.url, str(offset), until=until)
        return AsyncReading(reader, lambda: self._batches(reader, self.client._make_scope()))

    def follow(self, offset: str = START, *, live: Live = "auto") -> AsyncFollowing:
        """Read from an offset, then wait for more, as `Stream.follow` does."""
        reader = Reader(self.url, str(offset), live)
        scope = self.client._make_scope()
        return AsyncFollowing(reader, lambda: self._batches(reader, scope), scope.stop)

    async def _batches(self, reader: Reader, scope: "AsyncScope") -> AsyncIterator[Batch]:
        async for batch in self.client._read(reader, scope):
            self._content_type = batch.content_type or self._content_type
            yield batch
