"""Operations: accepted changes, applied once they are durable or reverted if they never are."""

from collections.abc import Mapping

from headwater.protocol.lifecycle import Accepted
from headwater.protocol.producers import ProducerState
from headwater.storage.disk.records import AppendExtras
from headwater.storage.disk.registry import Documents, Registry
from headwater.storage.disk.stream import DiskStream


class CreateOperation:
    """The creation of a stream."""

    __slots__ = ("_closed", "_data", "_registry", "_stream")

    def __init__(
        self, registry: Registry, stream: DiskStream, data: bytes, *, closed: bool
    ) -> None:
        self._registry = registry
        self._stream = stream
        self._data = data
        self._closed = closed
        stream.changing = True
        registry.put(stream)

    def apply(self) -> None:
        self._stream.changing = False
        self._registry.created(self._stream, self._data, closed=self._closed)

    def revert(self) -> None:
        self._registry.drop(self._stream)


class AppendOperation:
    """An append to a stream."""

    __slots__ = ("_before", "_decision", "_extras", "_now", "_producer", "_registry", "_stream")

    def __init__(
        self,
        registry: Registry,
        stream: DiskStream,
        decision: Accepted,
        producer: ProducerState | None,
        extras: AppendExtras,
        now: float,
    ) -> None:
        """Accept an append; `producer` is the state of its producer before."""
        self._registry = registry
        self._stream = stream
        self._decision = decision
        self._producer = producer
        self._extras = extras
        self._now = now
        self._before = stream.accepted
        stream.accepted = decision.after
        if extras.producer is not None:
            stream.producers.set(extras.producer[0], decision.producer)

    def apply(self) -> None:
        decision = self._decision
        self._registry.appended(
            self._stream, decision.data, self._extras, self._now, decision.after
        )

    def revert(self) -> None:
        self._stream.accepted = self._before
        if self._extras.producer is not None:
            self._stream.producers.set(self._extras.producer[0], self._producer)


class DeleteOperation:
    """The deletion of a stream."""

    __slots__ = ("_registry", "_sources", "_stream")

    def __init__(self, registry: Registry, stream: DiskStream) -> None:
        self._registry = registry
        self._stream = stream
        self._sources, _ = registry.sources_to_change(stream)
        stream.changing = True
        for source in self._sources:
            source.leaving_forks += 1

    def apply(self) -> None:
        self._end()
        self._registry.deleted(self._stream)

    def revert(self) -> None:
        self._end()

    def _end(self) -> None:
        self._stream.changing = False
        for source in self._sources:
            source.leaving_forks -= 1


class PutDocumentsOperation:
    """Documents to store or to delete."""

    __slots__ = ("_changes", "_documents")

    def __init__(self, documents: Documents, changes: Mapping[str, bytes | None]) -> None:
        self._documents = documents
        self._changes = dict(changes)

    def apply(self) -> None:
        self._documents.put(self._changes)

    def revert(self) -> None:
        """Do nothing: documents change only when they are durable."""
