"""An append-only sequence of bytes in memory, most of which can be read without a copy.

New bytes are added to an open block. Once full, a block is sealed, and is read through views.
"""

from bisect import bisect_right

from headwater.protocol.byte_requests import Buffer

SEAL_AT = 256 * 1024
LARGE = 16 * 1024


class ByteLog:
    """The bytes of a stream from position `start` to position `end`."""

    __slots__ = ("_ends", "_open", "_sealed", "end", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self._sealed: list[bytes | bytearray] = []
        self._ends: list[int] = []
        self._open = bytearray()

    def append(self, data: bytes) -> None:
        """Add bytes at the end."""
        if len(data) >= LARGE:
            # Large data is not copied: it becomes a block of its own.
            if self._open:
                self._seal()
            self.end += len(data)
            self._sealed.append(data)
            self._ends.append(self.end)
            return
        self._open += data
        self.end += len(data)
        if len(self._open) >= SEAL_AT:
            self._seal()

    def _seal(self) -> None:
        self._sealed.append(bytes(self._open))
        self._ends.append(self.end)
        self._open = bytearray()

    def slice(self, start: int, end: int) -> list[Buffer]:
        """Return the bytes of a range within the log, as one or more buffers."""
        if start >= end:
            return []
        buffers: list[Buffer] = []
        index = bisect_right(self._ends, start)
        while index < len(self._sealed) and start < end:
            block = self._sealed[index]
            base = self._ends[index] - len(block)
            upto = min(end, self._ends[index])
            whole = start == base and upto == self._ends[index]
            if whole and isinstance(block, bytes):
                buffers.append(block)
            else:
                buffers.append(memoryview(block)[start - base : upto - base])
            start = upto
            index += 1
        if start < end:
            # A view would prevent the open block from growing: copy.
            base = self.end - len(self._open)
            with memoryview(self._open) as view:
                buffers.append(bytes(view[start - base : end - base]))
        return buffers

    def freeze(self) -> list[Buffer]:
        """Return all bytes without copying any of them: later ones go to a new block."""
        if self._open:
            self._sealed.append(self._open)
            self._ends.append(self.end)
            self._open = bytearray()
        return list(self._sealed)

    def drop_before(self, position: int) -> None:
        """Drop the bytes before a position."""
        count = bisect_right(self._ends, position)
        del self._ends[:count], self._sealed[:count]
        if self._ends:
            block = self._sealed[0]
            surplus = position - (self._ends[0] - len(block))
            if surplus > 0:
                self._sealed[0] = block[surplus:]
        else:
            surplus = position - (self.end - len(self._open))
            if surplus > 0:
                del self._open[:surplus]
        self.start = max(self.start, min(position, self.end))
