"""Operations: changes that were decided on and wait to be durable."""

from collections.abc import Mapping

from headwater.protocol.producers import ProducerClaim, ProducerState
from headwater.storage.disk.records import NOTHING_ELSE, AppendExtras
from headwater.storage.disk.registry import Documents, Registry
from headwater.storage.disk.stream import DiskStream


class CreateOperation:
    """A stream that was decided to be created."""

    __slots__ = ("_closed", "_data", "_registry", "_stream")

    def __init__(
        self, registry: Registry, stream: DiskStream, data: bytes, *, closed: bool
    ) -> None:
        self._registry = registry
        self._stream = stream
        self._data = data
        self._closed = closed
        stream.unsettled = True
        registry.put(stream)

    def apply(self) -> None:
        self._stream.unsettled = False
        self._registry.created(self._stream, self._data, closed=self._closed)

    def revert(self) -> None:
        self._registry.drop(self._stream)


class AppendOperation:
    """An append that was decided on; making it moves the accepted state."""

    __slots__ = ("_data", "_extras", "_now", "_old_producer", "_old_seq", "_registry", "_stream")

    def __init__(
        self,
        registry: Registry,
        stream: DiskStream,
        data: bytes,
        extras: AppendExtras,
        now: float,
    ) -> None:
        self._registry = registry
        self._stream = stream
        self._data = data
        self._extras = extras
        self._now = now
        stream.end += len(data)
        if extras is NOTHING_ELSE:
            return
        self._old_seq = stream.last_seq
        self._old_producer: ProducerState | None = None
        if extras.producer is not None:
            claim = ProducerClaim(*extras.producer)
            self._old_producer = stream.producers.get(claim.producer_id)
            stream.producers.set(claim.producer_id, claim.state)
            if extras.close:
                stream.closed_by = claim
        if extras.seq is not None:
            stream.last_seq = extras.seq
        if extras.close:
            stream.closed = True

    def apply(self) -> None:
        self._registry.appended(self._stream, self._data, self._extras, self._now)

    def revert(self) -> None:
        stream = self._stream
        stream.end -= len(self._data)
        if self._extras is NOTHING_ELSE:
            return
        stream.last_seq = self._old_seq
        if self._extras.producer is not None:
            stream.producers.set(self._extras.producer[0], self._old_producer)
        if self._extras.close:
            stream.closed = False
            stream.closed_by = None


class DeleteOperation:
    """A stream that was decided to be deleted."""

    __slots__ = ("_registry", "_stream")

    def __init__(self, registry: Registry, stream: DiskStream) -> None:
        self._registry = registry
        self._stream = stream
        stream.unsettled = True

    def apply(self) -> None:
        self._stream.unsettled = False
        self._registry.deleted(self._stream)

    def revert(self) -> None:
        self._stream.unsettled = False


class KeepOperation:
    """Documents that were handed over and wait to be durable."""

    __slots__ = ("_changes", "_documents")

    def __init__(self, documents: Documents, changes: Mapping[str, bytes | None]) -> None:
        self._documents = documents
        self._changes = dict(changes)

    def apply(self) -> None:
        self._documents.kept(self._changes)

    def revert(self) -> None:
        """Nothing was shown, so there is nothing to take back."""
