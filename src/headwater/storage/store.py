"""The store: the one interface between the server and whatever keeps the streams.

A store applies the rules of `headwater.protocol` to the streams that it keeps. All of its answers
are values: a result, or a refusal that says why nothing was done. It raises only when it can't work
at all (`StoreError`).

Promises that hold for every method and every backend:

- **Atomic.** A call takes effect as a whole or not at all, also when the process dies in between.
- **Durable first.** A call returns once its effect is as durable as the store was told to make it,
  and no reader, watcher or later answer shows an effect that isn't.
- **Acknowledged before notified.** Watchers and observers are called in a later turn of the event
  loop than the one in which the call returns, once for all changes of that turn.
- **In order.** Calls on one stream take effect one after another, in the order of their decisions.
- **Not cancelled half-way.** Dropping a call that waits does not undo it: an append that was handed
  over still happens.

Methods are coroutines that need no task around them: a backend that does, makes its own. Time comes
in as `now`, in seconds since the epoch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

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


class StreamInfo(Struct, frozen=True):
    """A stream as it is at one moment."""

    path: str
    config: StreamConfig
    incarnation: int
    tail: Offset
    closed: bool


class Created(Struct, frozen=True):
    """The stream exists as asked for; `new` unless it did before."""

    info: StreamInfo
    new: bool


class Appended(Struct, frozen=True):
    """The append happened: the new tail, and the producer's state where it had one."""

    tail: Offset
    closed: bool
    producer: ProducerState | None = None
    repeated: bool = False
    """It had happened before, by the same producer or as the same closing: nothing was written."""


class Chunk(Struct, frozen=True):
    """Stored bytes from `start` to `end`, cut at a boundary."""

    info: StreamInfo
    start: Offset
    end: Offset
    parts: Sequence[Part]
    """The last one is always in memory."""
    up_to_date: bool
    """Nothing lay behind `end` when the chunk was read."""

    def joined(self) -> bytes:
        """Give the bytes in one piece."""
        return b"".join(in_memory(self.parts))

    @property
    def at_end(self) -> bool:
        """Nothing will ever lie behind `end`."""
        return self.up_to_date and self.info.closed


class SplitPoints(Struct, frozen=True):
    """Where a range of a stream may be cut, its beginning included."""

    info: StreamInfo
    offsets: Sequence[Offset]
    complete: bool
    """The last offset is the end of the range; otherwise, go on from it."""


class Store(ABC):
    """Keeps streams. One instance belongs to one event loop."""

    sends_files = False
    """Whether long reads give ranges of files, sooner or later."""

    @abstractmethod
    async def open(self) -> None:
        """Make the store ready; raises `StoreError` with a sentence when it can't be."""

    @abstractmethod
    async def close(self) -> None:
        """Finish what is under way and let go of everything; may be called twice."""

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether the store is open and accepts calls."""

    @abstractmethod
    async def create(self, path: str, request: Create, now: float) -> Created | CreateRefusal:
        """Create a stream or a fork, with its first bytes and its closure, in one step.

        Repeating it is safe: a stream that agrees with the request is answered as existing, and
        the body is not appended again. A fork holds on to its source until it is deleted.
        """

    @abstractmethod
    async def append(self, path: str, request: Append, now: float) -> Appended | AppendRefusal:
        """Append, close, or both: bytes, producer, `Stream-Seq` and closure in one step.

        Repeating it is safe with a producer only.
        """

    @abstractmethod
    async def read(
        self, path: str, start: Offset | Now, limit: int, now: float, *, files: bool = False
    ) -> Chunk | ReadRefusal:
        """Read from a position, at most about `limit` bytes, always whole messages.

        A message longer than the limit is returned whole. Counts as an access for a sliding TTL.
        Only who asks for `files` is given ranges of them, where there are any; others get bytes.
        """

    @abstractmethod
    async def split_points(
        self, path: str, start: Offset, end: Offset | Now, size: int, limit: int, now: float
    ) -> SplitPoints | ReadRefusal:
        """Cut a range into at most `limit` pieces of about `size` bytes, always whole messages.

        Little is read, near the cuts only. Fork points are cut as well. A message longer than the
        size is a piece of its own. A range that ends before it begins is empty. It does not count
        as an access.
        """

    @abstractmethod
    async def head(self, path: str, now: float) -> StreamInfo | Missing:
        """Look at a stream without counting as an access.

        While a stream is in memory and has not changed, it is described by the same object.
        """

    @abstractmethod
    async def delete(self, path: str, now: float) -> DeleteRefusal | None:
        """Delete a stream; where forks need its bytes they stay, and so does its hold on the path.

        Deleting the last fork of a deleted source removes that source as well, up the chain.
        """

    @abstractmethod
    async def expire(self, now: float, limit: int) -> int:
        """Remove up to `limit` streams whose time is over, as if deleted; says how many."""

    @abstractmethod
    def watch(self, path: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after each change of a stream; returns a function that ends the watch.

        Called on the loop, after the writers of the change are acknowledged, and once for all
        changes that were acknowledged in the same turn. It is given nothing of the change: read to
        see it. It may be called without a change. A sliding TTL does not run out while a stream is
        watched (PROTOCOL 5.1).
        """

    @abstractmethod
    def observe(self, callback: Callable[[str], None]) -> Callable[[], None]:
        """Call `callback` with the path of each stream that changes; returns what ends it.

        Called like a watcher: after the writers are acknowledged, and once for all changes of a
        stream in the same turn. It must not take long. A sliding TTL runs out while a stream is
        observed, and nothing is spent on notifications while there are no observers.
        """

    @abstractmethod
    async def list_streams(
        self, prefix: str, after: str, limit: int, now: float
    ) -> list[StreamInfo]:
        """List up to `limit` living streams, in the order of their paths.

        Only paths that begin with `prefix` and sort behind `after` are listed; the list is empty
        only where there are no more. Each stream is described as it is at that moment; to list all,
        go on behind the last path. It does not count as an access.
        """

    @abstractmethod
    async def put_documents(self, documents: Mapping[str, bytes | None]) -> StoreUnwritable | None:
        """Keep small documents by key, beside the streams; None drops one.

        All of them are kept or none, and all are durable when it returns. Calls take effect in the
        order in which they are made, also among appends. Repeating one is safe.
        """

    @abstractmethod
    async def get_documents(self, prefix: str) -> dict[str, bytes]:
        """Give the durable documents whose keys begin with `prefix`, in the order of keys."""
