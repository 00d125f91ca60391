"""Reads of durable bytes: inherited from a source, in segments, or still in memory."""

from functools import partial
from typing import Final, cast

from headwater.errors import StreamDamaged
from headwater.protocol.byte_requests import Buffer, serve
from headwater.protocol.offsets import Now, Offset, PositionRefusal
from headwater.storage.disk.catalog import Catalog
from headwater.storage.disk.registry import Registry
from headwater.storage.disk.segments import SegmentFiles
from headwater.storage.disk.stream import DiskStream
from headwater.storage.file_ranges import Part
from headwater.storage.read_path import find_range, make_chunk
from headwater.storage.store import Chunk

_FROM_FILE_BYTES: Final = 256 * 1024
"""A range of at least this length is sent from its file instead of being read."""
_END_BYTES: Final = 64
_COPIED_BYTES: Final = 1024 * 1024
"""How much is read at once of bytes that are not verified yet, or can't be sent from a file."""


class ReadExecutor:
    """Reads durable bytes; raises `StreamDamaged` if they are not what was written."""

    def __init__(self, registry: Registry, catalog: Catalog, files: SegmentFiles) -> None:
        self._registry = registry
        self._catalog = catalog
        self._files = files

    def chunk(
        self, stream: DiskStream, start: Offset | Now, limit: int, *, files: bool = False
    ) -> Chunk | PositionRefusal:
        """Read about `limit` bytes from an offset, as whole messages."""
        info = stream.info()
        read_limit = partial(self.read_limit, stream) if files else None
        rule = find_range(info, stream.lineage, start, limit, read_limit)
        span = serve(rule, partial(self.joined, stream))
        if not isinstance(span, tuple):
            return span
        begin, end = span
        parts = self.parts(stream, begin, end, files=files) if begin < end else ()
        return make_chunk(info, stream.lineage, begin, end, parts)

    def read_limit(self, stream: DiskStream, begin: int, most: int) -> int:
        """Return how much to read at once: little of what is copied or has to be verified first.

        The event loop waits for that. Bytes verified before are most likely in the page cache.
        """
        if begin >= stream.tail_log.start:
            return most
        upto = begin
        copied = 0
        if begin >= stream.start:
            for extent in self._catalog.extents(stream.number, begin, begin + most):
                file = self._files.get_open(extent.segment)
                if file is None:
                    break
                checked = file.checked_until(extent, upto)
                if not self._is_lent(checked - upto):
                    copied += checked - upto
                if copied > _COPIED_BYTES:
                    break
                upto = checked
                if upto < extent.end:
                    break
        return min(most, max(upto - begin, _COPIED_BYTES))

    def _is_lent(self, length: int) -> bool:
        """Return whether contiguous bytes of a segment are sent from its file."""
        return length >= _FROM_FILE_BYTES and self._files.can_send_files

    def joined(self, stream: DiskStream, begin: int, end: int) -> bytes:
        """Return the bytes of a short range in one piece."""
        return b"".join(self.slice(stream, begin, end))

    def slice(self, stream: DiskStream, begin: int, end: int) -> list[Buffer]:
        """Return the bytes of a range, as one or more buffers."""
        return cast("list[Buffer]", self.parts(stream, begin, end, files=False))

    def parts(self, stream: DiskStream, begin: int, end: int, *, files: bool) -> list[Part]:
        """Return the bytes of a range as buffers or, with `files`, long parts as file ranges."""
        if begin >= stream.tail_log.start:
            return list(stream.tail_log.slice(begin, end))
        parts: list[list[Part]] = []
        # From the end of the range back to its beginning, up the chain of sources.
        while True:
            if end > stream.tail_log.start:
                first = max(begin, stream.tail_log.start)
                parts.append(list(stream.tail_log.slice(first, end)))
                end = first
            if end > stream.start and begin < end:
                first = max(begin, stream.start)
                parts.append(self._from_segments(stream, first, end, files=files))
                end = first
            if begin >= end:
                break
            source = self._registry.by_number(stream.source)
            assert source is not None  # noqa: S101 - a source stays while it has forks
            stream = source
        return [part for some in reversed(parts) for part in some]

    def _from_segments(
        self, stream: DiskStream, begin: int, end: int, *, files: bool
    ) -> list[Part]:
        parts: list[Part] = []
        for extent in self._catalog.extents(stream.number, begin, end):
            if extent.end <= begin:
                continue
            try:
                file = self._files.get(extent.segment)
            except FileNotFoundError as missing:
                raise StreamDamaged(missing.filename, 0, stream.number) from missing
            upto = min(end, extent.end)
            if files and self._is_lent(upto - begin):
                # All but the end: responses are completed from the last bytes.
                parts.append(file.range(extent, begin, upto - _END_BYTES))
                begin = upto - _END_BYTES
            parts.append(file.read(extent, begin, upto))
            begin = upto
        if begin < end:
            where = f"{self._catalog.path} (bytes {begin} to {end} of the stream are not listed)"
            raise StreamDamaged(where, 0, stream.number)
        return parts
