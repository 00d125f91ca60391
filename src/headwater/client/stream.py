"""A stream of a server, and what can be done with it."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from headwater.client import calls
from headwater.client.calls import START, join_messages
from headwater.client.following import Live, Reader
from headwater.client.messages import origin_of, stream_url
from headwater.client.values import Appended, Chunk, Created, StreamInfo
from headwater.protocol.content_types import JSON
from headwater.protocol.producers import ProducerClaim

if TYPE_CHECKING:
    from headwater.client.client import Client


class Stream:
    """One stream. Making this asks the server nothing: the stream need not exist yet.

    Every method raises an error of `headwater.errors.ClientError` where it can't do what it says.
    """

    def __init__(self, client: "Client", url: str) -> None:
        self.url = url
        self._client = client
        self._content_type: str | None = None

    def __repr__(self) -> str:
        return f"Stream({self.url!r})"

    def create(
        self,
        data: bytes | str = b"",
        *,
        content_type: str = JSON,
        ttl: int | None = None,
        expires_at: str | None = None,
        closed: bool = False,
    ) -> Created:
        """Create the stream, or make sure that it exists with this configuration."""
        created = self._client.run(
            calls.create(
                self.url,
                _encode(data),
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
        data: bytes | str,
        *,
        content_type: str | None = None,
        seq: str | None = None,
        producer: ProducerClaim | None = None,
        close: bool = False,
    ) -> Appended:
        """Append one body; of a JSON array, each element becomes a message.

        Without a content type, the stream's own is asked for once. An append is sent a second time
        only with `producer`, by which the server recognises it.
        """
        appended = self._client.run(
            calls.append(
                self.url,
                _encode(data),
                content_type=content_type or self._own_content_type(),
                seq=seq,
                producer=producer,
                close=close,
            )
        )
        if appended.next_offset:
            return appended
        return replace(appended, next_offset=self.head().next_offset)

    def append_many(
        self,
        messages: Iterable[bytes | str],
        *,
        content_type: str | None = None,
        seq: str | None = None,
        producer: ProducerClaim | None = None,
        close: bool = False,
    ) -> Appended:
        """Append several messages in one step: all of them, or none."""
        content_type = content_type or self._own_content_type()
        body = join_messages(map(_encode, messages), content_type)
        return self.append(body, content_type=content_type, seq=seq, producer=producer, close=close)

    def read(self, offset: str = START) -> Iterator[Chunk]:
        """Read from an offset to the end that the stream has now; there is always a chunk."""
        while True:
            chunk = self._client.run(calls.read(self.url, offset))
            self._content_type = chunk.content_type
            yield chunk
            if chunk.up_to_date:
                return
            offset = chunk.next_offset

    def follow(self, offset: str = START, *, live: Live = "auto") -> Iterator[Chunk]:
        """Read from an offset, then wait for more; ends when the stream is closed.

        An empty chunk tells that the end is reached for now, or for ever. Lost connections are
        made anew behind the last chunk: nothing is lost or seen twice. `live` is how to wait:
        `sse`, `long-poll`, or `auto` for SSE wherever it carries the data exactly, which is
        everything but text.
        """
        return self._client.follow(Reader(self.url, offset, live))

    def head(self) -> StreamInfo:
        """Ask for the stream's metadata."""
        info = self._client.run(calls.head(self.url))
        self._content_type = info.content_type
        return info

    def close(self, data: bytes | str = b"", *, content_type: str | None = None) -> Appended:
        """Close the stream for good, in one step with a last append where there is data."""
        if data:
            return self.append(data, content_type=content_type, close=True)
        return self._client.run(calls.close(self.url))

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
        url = (
            target.url if isinstance(target, Stream) else stream_url(self._client.base_url, target)
        )
        if origin_of(url) != origin_of(self.url):
            raise ValueError(f"{self.url} can only be forked on its own server, not to {url}")
        return self._client.run(
            calls.fork(
                self.url, url, offset=offset, sub_offset=sub_offset, ttl=ttl, expires_at=expires_at
            )
        )

    def delete(self) -> None:
        """Delete the stream; its forks keep what they share with it."""
        self._client.run(calls.delete(self.url))

    def _own_content_type(self) -> str:
        if self._content_type is None:
            self.head()
        return self._content_type or ""


def _encode(data: bytes | str) -> bytes:
    return data.encode() if isinstance(data, str) else data
