"""Where the bytes of a stream are: inherited from a source, in segments, or still in memory."""

from headwater.errors import StoreDamaged, StreamDamaged
from headwater.protocol.framing import Buffer, find_cut, is_boundary
from headwater.protocol.offsets import Now, Offset
from headwater.protocol.refusals import OffsetBeyondTail, OffsetInsideMessage, ReadRefusal
from headwater.storage.disk.catalog import Catalog
from headwater.storage.disk.registry import Registry
from headwater.storage.disk.segments import SegmentFiles
from headwater.storage.disk.streams import DiskStream
from headwater.storage.store import Chunk


class StoredBytes:
    """Reads durable bytes; raises `StreamDamaged` where they are not what was written."""

    def __init__(self, registry: Registry, catalog: Catalog, files: SegmentFiles) -> None:
        self._registry = registry
        self._catalog = catalog
        self._files = files

    def chunk(self, stream: DiskStream, start: Offset | Now, limit: int) -> Chunk | ReadRefusal:
        """Read up to a limit from an offset on, and end between messages."""
        info = stream.info()
        end = stream.log.end
        if isinstance(start, Now):
            begin = end
        else:
            located = stream.lineage.locate(start)
            if not isinstance(located, int):
                return located
            begin = located
            if begin > end:
                return OffsetBeyondTail(start, info.tail)
            if 0 < begin < end:
                before = self.joined(stream, begin - 1, begin)[0]
                if not is_boundary(before, stream.media_type):
                    return OffsetInsideMessage(start)
        if begin == end:
            return Chunk(info, info.tail, info.tail, (), up_to_date=True)
        name = stream.lineage.name
        if end - begin <= limit:
            buffers = self.slice(stream, begin, end)
            return Chunk(info, name(begin), info.tail, buffers, up_to_date=True)
        upto = find_cut(
            lambda a, b: self.joined(stream, a, b), begin, limit, end, stream.media_type
        )
        buffers = self.slice(stream, begin, upto)
        return Chunk(info, name(begin), name(upto), buffers, up_to_date=upto == end)

    def joined(self, stream: DiskStream, begin: int, end: int) -> bytes:
        """Give the bytes of a short range in one piece."""
        return b"".join(self.slice(stream, begin, end))

    def slice(self, stream: DiskStream, begin: int, end: int) -> list[Buffer]:
        """Give the bytes of a range as they lie."""
        if begin >= stream.log.start:
            return list(stream.log.slice(begin, end))
        parts: list[list[Buffer]] = []
        # From the end of the range back to its beginning, up the chain of sources.
        while True:
            if end > stream.log.start:
                first = max(begin, stream.log.start)
                parts.append(list(stream.log.slice(first, end)))
                end = first
            if end > stream.start and begin < end:
                first = max(begin, stream.start)
                parts.append(self._from_segments(stream, first, end))
                end = first
            if begin >= end:
                break
            source = self._registry.numbered(stream.source)
            assert source is not None  # noqa: S101 - a source stays while it has forks
            stream = source
        return [part for some in reversed(parts) for part in some]

    def _from_segments(self, stream: DiskStream, begin: int, end: int) -> list[Buffer]:
        parts: list[Buffer] = []
        for extent in self._catalog.extents(stream.number, begin, end):
            if extent.end <= begin:
                continue
            try:
                file = self._files.get(extent.segment)
            except StoreDamaged as damage:
                raise StreamDamaged(damage.file, damage.position, stream.number) from damage
            except FileNotFoundError as missing:
                raise StreamDamaged(missing.filename, 0, stream.number) from missing
            upto = min(end, extent.end)
            parts.append(file.read(extent, begin, upto))
            begin = upto
        if begin < end:
            where = f"{self._catalog.path} (bytes {begin} to {end} of the stream are not listed)"
            raise StreamDamaged(where, 0, stream.number)
        return parts
