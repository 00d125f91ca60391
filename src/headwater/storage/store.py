"""The store: the interface between the server and the backends that store streams.

A store applies the rules of `headwater.protocol` to the streams that it holds. Every method returns
a value: a result, or a refusal with the reason why nothing was done. A store raises `StoreError`
only when it can't work at all.

Promises that hold for every method and every backend:

- **Atomic.** A call takes effect as a whole or not at all, also when the process dies in between.
- **Durable first.** A call returns once its effect is durable, as far as the store is configured to
  be. No reader, watcher or later result shows an effect before that.
- **Acknowledged before notified.** Watchers and observers are called in a later turn of the event
  loop than the one in which the call returns, once for all changes of that turn.
- **In order.** Calls on one stream take effect one after another, in the order of their decisions.
- **Not cancelled half-way.** Cancelling a call that waits does not undo it: a queued append is
  still executed.

Methods are coroutines that may run outside a task: a backend that needs a task creates it. Time is
passed as `now`, in seconds since the epoch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from headwater.protocol.lifecycle import Append, Create, StreamConfig
from headwater.protocol.offsets import Now, Offset
from headwater.protocol.producers import ProducerState
from headwater.protocol.refusals import Missing
from headwater.storage.file_ranges import Part, in_memory
from headwater.storage.refusals import (
    AppendRefusal,
    CreateRefusal,
    DeleteRefusal,
    ReadRefusal,
    StoreUnwritable,
)

MAX_EXPIRED_AT_ONCE: Final = 256
"""Streams that a store examines, and deletes, in one turn of the event loop when they expire."""


class StreamInfo(Struct, frozen=True):
    """A stream as it is at one moment."""

    path: str
    config: StreamConfig
    incarnation: int
    tail: Offset
    closed: bool


class Created(Struct, frozen=True):
    """The stream exists as requested; `new` unless it existed before."""

    info: StreamInfo
    new: bool


class Appended(Struct, frozen=True):
    """The append is done: the new tail, and the producer's state if the request named one."""

    tail: Offset
    closed: bool
    producer: ProducerState | None = None
    repeated: bool = False
    """The request was a duplicate, by its producer or of the same close: nothing was written."""


class Chunk(Struct, frozen=True):
    """Stored bytes from `start` to `end`, which is a message boundary."""

    info: StreamInfo
    start: Offset
    end: Offset
    parts: Sequence[Part]
    """The last one is always in memory."""
    up_to_date: bool
    """Whether `end` was the tail when the chunk was read."""

    def joined(self) -> bytes:
        """Return the bytes in one piece."""
        return b"".join(in_memory(self.parts))

    @property
    def at_end(self) -> bool:
        """Whether `end` is the end of a closed stream."""
        return self.up_to_date and self.info.closed


class SplitPoints(Struct, frozen=True):
    """Offsets at which a range of a stream may be split, including its beginning."""

    info: StreamInfo
    offsets: Sequence[Offset]
    complete: bool
    """Whether the last offset is the end of the range; otherwise, continue from it."""


class Store(ABC):
    """Stores streams. One instance belongs to one event loop."""

    sends_files = False
    """Whether long reads may return ranges of files."""

    @abstractmethod
    async def open(self) -> None:
        """Make the store ready; raises `StoreError` if that is impossible."""

    @abstractmethod
    async def close(self) -> None:
        """Finish what is in progress and release all resources; may be called twice."""

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether the store is open and accepts calls."""

    @property
    def committing(self) -> bool:
        """Whether writers wait for the disk, so that less urgent work should yield the processor.

        The kernel needs the processor to finish an fsync, and on a busy core gets it only at the
        end of this process's time slice.
        """
        return False

    @abstractmethod
    async def create(self, path: str, request: Create, now: float) -> Created | CreateRefusal:
        """Create a stream or a fork, with its first bytes and its closure, in one step.

        Repeating it is safe: a stream that matches the request is reported as existing, and the
        body is not appended again. The bytes of a source are stored until its forks are deleted.
        """

    @abstractmethod
    async def append(self, path: str, request: Append, now: float) -> Appended | AppendRefusal:
        """Append, close, or both: bytes, producer, `Stream-Seq` and closure in one step.

        Repeating it is safe only with a producer.
        """

    @abstractmethod
    async def read(
        self, path: str, start: Offset | Now, limit: int, now: float, *, files: bool = False
    ) -> Chunk | ReadRefusal:
        """Read about `limit` bytes from a position, always as whole messages.

        A message longer than the limit is returned whole. Counts as an access for a sliding TTL.
        With `files=True` the chunk may contain file ranges; otherwise all parts are bytes.
        """

    @abstractmethod
    async def split_points(
        self, path: str, start: Offset, end: Offset | Now, size: int, limit: int, now: float
    ) -> SplitPoints | ReadRefusal:
        """Split a range into at most `limit` pieces of about `size` bytes, as whole messages.

        Only bytes near the split points are read. Fork points are split points too. A message
        longer than the size is a piece of its own. A range that ends before it begins is empty.
        Does not count as an access.
        """

    @abstractmethod
    async def head(self, path: str, now: float) -> StreamInfo | Missing:
        """Describe a stream; does not count as an access.

        While a stream is in memory and has not changed, the same object is returned.
        """

    @abstractmethod
    async def delete(self, path: str, now: float) -> DeleteRefusal | None:
        """Delete a stream; while it has forks, its bytes are kept and its path is blocked.

        Deleting the last fork of a deleted source removes that source as well, up the chain.
        """

    @abstractmethod
    async def expire(self, now: float, limit: int) -> int:
        """Delete up to `limit` streams that have expired; return how many were deleted.

        They are deleted in batches, each with one commit. The event loop runs between two batches:
        give a higher limit for fewer calls, not for longer ones.
        """

    @abstractmethod
    def watch(self, path: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after each change of a stream; returns a function that ends the watch.

        The callback runs on the loop, after the writers of the change are acknowledged, once for
        all changes that were acknowledged in the same turn. It may be called without a change, and
        has to read the stream to see one. A sliding TTL does not expire while a stream is watched
        (PROTOCOL 5.1).
        """

    @abstractmethod
    def observe(self, callback: Callable[[str], None]) -> Callable[[], None]:
        """Call `callback` with the path of each changed stream; returns a function that ends it.

        The callback runs like that of `watch`, and must return quickly. Observing a stream does not
        prevent its expiry.
        """

    @abstractmethod
    async def list_streams(
        self, prefix: str, after: str, limit: int, now: float
    ) -> list[StreamInfo]:
        """List up to `limit` streams that are not deleted, in the order of their paths.

        Only paths that begin with `prefix` and sort after `after` are listed. The list is empty
        only if there are no more. Each stream is described as it is at that moment. To list all,
        continue after the last path. Does not count as an access.
        """

    @abstractmethod
    async def put_documents(self, documents: Mapping[str, bytes | None]) -> StoreUnwritable | None:
        """Store small documents by key, beside the streams; None deletes one.

        All of them are stored or none, and all are durable when the call returns. Calls take
        effect in the order in which they are made, also among appends. Repeating one is safe.
        """

    @abstractmethod
    async def get_documents(self, prefix: str) -> dict[str, bytes]:
        """Return the durable documents whose keys begin with `prefix`, in the order of keys."""
