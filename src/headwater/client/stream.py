"""A stream of a server, and what can be done with it."""

import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from headwater.client import calls
from headwater.client.calls import START, Call
from headwater.client.following import Live, Reader
from headwater.client.messages import stream_url
from headwater.client.reading import Following, Reading
from headwater.client.session import AppendSession, check_same_server
from headwater.client.transport import Scope
from headwater.client.values import Appended, Batch, Created, StreamInfo, parse_position
from headwater.protocol.content_types import JSON
from headwater.protocol.producers import ProducerClaim

if TYPE_CHECKING:
    from headwater.client.client import Client


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
            calls.create(
                self.url,
                b"" if data is None else calls.body_of(data, content_type),
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
        body = calls.body_of(data, content_type)
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
        messages = [calls.encode(item, content_type) for item in items]
        if not messages:
            raise ValueError("append_many needs at least one item")
        body = calls.join_messages(messages, content_type)
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
        info = self.client.run(calls.head(self.url))
        self._content_type = info.content_type
        return info

    def exists(self) -> bool:
        """Ask whether the stream is there."""
        return self.client.run(calls.exists(self.url))

    def close(
        self, data: Any = None, *, content_type: str | None = None, idempotent: bool = False
    ) -> Appended:
        """Close the stream for good, in one step with a last append where there is data."""
        if data is None:
            return self.client.run(calls.close(self.url))
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
        position = parse_position(offset) if offset is not None else None
        return self.client.run(
            calls.fork(
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
        self.client.run(calls.delete(self.url))

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
            return calls.append(
                self.url, body, content_type=content_type, seq=seq, producer=claim, close=close
            )

        if idempotent and producer is None:
            with self._session_lock:
                claim = self._session.claim()
                appended = self.client.run(call(claim))
                self._session.confirm(claim)
        else:
            appended = self.client.run(call(producer))
        if appended.offset:
            return appended
        return replace(appended, offset=(self.head()).next_offset)

    def _batches(self, reader: Reader, scope: Scope) -> Iterator[Batch]:
        for batch in self.client.read(reader, scope):
            self._content_type = batch.content_type or self._content_type
            yield batch
