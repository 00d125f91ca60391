"""What reading gives: batches, and the same data as bytes, text or JSON items."""

import codecs
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from headwater.client.following import Reader
from headwater.client.values import Batch, Position
from headwater.errors import BadData


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
