"""Where the messages of a batch lie, found without parsing them.

A Headwater server separates messages by a comma and a line break, which no message holds, and an
offset tells a byte position. So the places of the line breaks give the offset behind each message.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from headwater.client import Batch
from headwater.errors import BadData
from headwater.spark.ranges import Range, byte_of

_SEPARATOR: Final = ",\n"
_COMMA, _LINE_BREAK = _SEPARATOR.encode()
_DIGITS: Final = 4
_FOUR_DIGITS: Final = np.frombuffer(b"".join(b"%04d" % n for n in range(10**_DIGITS)), "<u4")
"""Numbers below 10,000 as texts, four characters in one word."""


class Layout(Struct, frozen=True):
    """The messages of a batch that lie within a range."""

    data: bytes
    behind: npt.NDArray[np.int64]
    """For each message, the place in `data` behind its separator, less one."""
    begin: int
    """The byte position of the batch."""
    epoch: str
    """What every offset begins with."""

    def __len__(self) -> int:
        return len(self.behind)

    def parts(self, size: int) -> Iterator["Layout"]:
        """Give the messages in parts of about so many bytes."""
        if len(self.data) <= size:
            yield self
            return
        cuts = np.searchsorted(self.behind, np.arange(size, len(self.data), size))
        for first, last in pairwise((0, *dict.fromkeys(cuts[cuts > 0].tolist()), len(self))):
            if first < last:
                start = 1 if first == 0 else int(self.behind[first - 1]) + 1
                data = b"[%b]" % self.data[start : int(self.behind[last - 1]) - 1]
                behind = self.behind[first:last] - (start - 1)
                yield Layout(data, behind, self.begin + start - 1, self.epoch)

    def text(self, at: int) -> bytes:
        """Give one message as it was written."""
        start = 1 if at == 0 else int(self.behind[at - 1]) + 1
        return self.data[start : int(self.behind[at]) - 1]

    def texts(self) -> pa.BinaryArray:
        """Give the messages as they were written."""
        ends = np.array([1, len(self.data) - 1], np.int32)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(self.data)]
        inner = pa.Array.from_buffers(pa.binary(), 1, buffers)
        return pc.split_pattern(inner, pattern=_SEPARATOR).flatten().slice(0, len(self))

    def offset(self, at: int) -> str:
        """Give the offset behind one message."""
        return f"{self.epoch}{self.begin + int(self.behind[at]):016d}"

    def offsets(self) -> pa.StringArray:
        """Give the offset behind each message."""
        words = np.empty((len(self), 16 // _DIGITS), "<u4")
        left = self.behind + self.begin
        for word in reversed(range(words.shape[1])):
            left, digits = np.divmod(left, 10**_DIGITS)
            words[:, word] = _FOUR_DIGITS[digits]
        width = len(self.epoch) + 16
        texts = np.empty((len(self), width), np.uint8)
        texts[:, : len(self.epoch)] = np.frombuffer(self.epoch.encode(), np.uint8)
        texts[:, len(self.epoch) :] = words.view(np.uint8)
        ends = np.arange(len(self) + 1, dtype=np.int32) * np.int32(width)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(texts)]
        return pa.Array.from_buffers(pa.string(), len(self), buffers)


def lay_out(batch: Batch, piece: Range) -> Layout:
    """Find the messages of a batch that lie within a range."""
    begin = byte_of(batch.start)
    bytes_ = np.frombuffer(batch.data, np.uint8)
    breaks = np.flatnonzero(bytes_ == _LINE_BREAK)
    breaks = breaks[bytes_[breaks - 1] == _COMMA]
    is_empty = len(batch.data) <= len("[]")
    behind = breaks if is_empty else np.append(breaks, len(batch.data))
    if len(behind) and begin + int(behind[-1]) != byte_of(batch.next_offset):
        raise BadData(batch.url, batch.start, "the server does not lay messages out as Headwater")
    count = np.searchsorted(behind, byte_of(piece.end) - begin, side="right")
    return Layout(batch.data, behind[:count], begin, piece.end[:17])
