"""Offsets: positions in a stream, and the incarnations that they belong to.

An offset is `{epoch:016d}_{byte:016d}`. The epoch is the number of the incarnation that wrote the
bytes just before the position. Epochs come from one counter for the whole store, so that

- a stream created again at the path of a deleted one has a new epoch, and old offsets are
  recognised without a record of the deleted stream;
- a fork shares the offsets of its source up to the fork point and continues with its own, higher
  epoch: offsets of one stream stay unique and sort as strings (PROTOCOL 8).

`Lineage` maps each byte position of a stream to its offset.
"""

import re
from typing import Final, NamedTuple

from msgspec import Struct

_FORMAT: Final = re.compile(r"(\d{16})_(\d{16})", re.ASCII)
MAX_BYTE: Final = 10**16 - 1


class Offset(NamedTuple):
    """A position in a stream."""

    epoch: int
    byte: int

    def __str__(self) -> str:
        return "%016d_%016d" % self  # noqa: UP031 - twice as fast as an f-string on this hot path


class Now(Struct, frozen=True):
    """The `now` sentinel: the tail, at the time of the request."""


class MalformedOffset(Struct, frozen=True):
    """The text is neither a sentinel nor an offset."""

    text: str


START: Final = Offset(0, 0)
"""The beginning of any stream, which clients also write as `-1`; no stream has epoch 0."""

NOW: Final = Now()


def parse_offset(text: str) -> Offset | MalformedOffset:
    """Parse an offset that the server returned."""
    match = _FORMAT.fullmatch(text)
    if match is None:
        return MalformedOffset(text)
    return Offset(int(match[1]), int(match[2]))


def parse_position(text: str | None) -> Offset | Now | MalformedOffset:
    """Parse the `offset` query parameter: absent, `-1`, `now` or an offset (PROTOCOL 8)."""
    if text is None or text == "-1":
        return START
    if text == "now":
        return NOW
    return parse_offset(text)


class StaleIncarnation(Struct, frozen=True):
    """The offset belongs to a deleted stream, or to another stream."""

    offset: Offset
    epoch: int


class UnknownPosition(Struct, frozen=True):
    """The offset names no position of this stream: its epoch did not write the bytes before it."""

    offset: Offset


class Lineage(Struct, frozen=True):
    """The epochs that name the bytes of a stream.

    `inherited` lists, oldest first, `(up to this byte, epoch)` for the bytes that a fork inherited.
    Positions after the last of them have the stream's `own` epoch.
    """

    own: int
    inherited: tuple[tuple[int, int], ...] = ()

    def name(self, byte: int) -> Offset:
        """Return the offset of a byte position."""
        if self.inherited:
            for upto, epoch in self.inherited:
                if byte <= upto:
                    return Offset(epoch, byte)
        return Offset(self.own, byte)

    def locate(self, offset: Offset) -> int | StaleIncarnation | UnknownPosition:
        """Return the byte position that an offset names."""
        if offset == START:
            return 0
        if self.name(offset.byte) == offset:
            return offset.byte
        if offset.epoch < self.own and all(offset.epoch != epoch for _, epoch in self.inherited):
            return StaleIncarnation(offset, self.own)
        return UnknownPosition(offset)

    def fork(self, at: int, epoch: int) -> "Lineage":
        """Return the lineage of a fork that diverges at byte `at` and writes as `epoch`."""
        inherited: list[tuple[int, int]] = []
        for upto, ancestor in self.inherited:
            if upto >= at:
                return Lineage(epoch, (*inherited, (at, ancestor)))
            inherited.append((upto, ancestor))
        return Lineage(epoch, (*inherited, (at, self.own)))


class OffsetBeyondTail(Struct, frozen=True):
    """The offset is past the end of the stream."""

    offset: Offset
    tail: Offset


class OffsetInsideMessage(Struct, frozen=True):
    """The offset is inside a message."""

    offset: Offset


PositionRefusal = StaleIncarnation | UnknownPosition | OffsetBeyondTail | OffsetInsideMessage
