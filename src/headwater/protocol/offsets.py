"""Offsets: where a position lies in a stream, and in which incarnation of it.

An offset is `{epoch:016d}_{byte:016d}`. The epoch is the number of the incarnation that wrote the
bytes just before the position. Epochs are drawn from one counter for the whole store, so that

- a stream created again at a path that was deleted has a new epoch, and an old offset can be told
  from a new one (the path needs no memory of its past);
- a fork shares its source's offsets up to the fork point and continues with its own, higher epoch:
  offsets of one stream stay unique and sort as strings (PROTOCOL 8).

`Lineage` is the rule that gives each byte position of a stream its one name.
"""

import re
from typing import Final, NamedTuple

from msgspec import Struct

_FORM: Final = re.compile(r"(\d{16})_(\d{16})", re.ASCII)
MAX_BYTE: Final = 10**16 - 1


class Offset(NamedTuple):
    """One position of one stream."""

    epoch: int
    byte: int

    def __str__(self) -> str:
        return "%016d_%016d" % self  # noqa: UP031 - twice as fast as an f-string on this hot path


class Now(Struct, frozen=True):
    """The `now` sentinel: wherever the tail is."""


class MalformedOffset(Struct, frozen=True):
    """The text is neither a sentinel nor an offset."""

    text: str


START: Final = Offset(0, 0)
"""The beginning of any stream: epoch 0 is never assigned, so `-1` and the zero offset share it."""

NOW: Final = Now()


def parse_offset(text: str) -> Offset | MalformedOffset:
    """Read an offset that the server once minted."""
    match = _FORM.fullmatch(text)
    if match is None:
        return MalformedOffset(text)
    return Offset(int(match[1]), int(match[2]))


def parse_position(text: str | None) -> Offset | Now | MalformedOffset:
    """Read the `offset` query parameter: absent, `-1`, `now` or an offset (PROTOCOL 8)."""
    if text is None or text == "-1":
        return START
    if text == "now":
        return NOW
    return parse_offset(text)


class StaleIncarnation(Struct, frozen=True):
    """The offset belongs to a stream that was deleted, or to another stream."""

    offset: Offset
    epoch: int


class UnknownPosition(Struct, frozen=True):
    """The offset names no position of this stream: beyond the tail, or past a fork point."""

    offset: Offset


class Lineage(Struct, frozen=True):
    """Which epoch names which bytes of a stream.

    `inherited` lists, oldest first, `(up to this byte, epoch)` for what a fork took over; whatever
    lies past the last of them is named by the stream's `own` epoch.
    """

    own: int
    inherited: tuple[tuple[int, int], ...] = ()

    def name(self, byte: int) -> Offset:
        """Name a byte position."""
        if self.inherited:
            for upto, epoch in self.inherited:
                if byte <= upto:
                    return Offset(epoch, byte)
        return Offset(self.own, byte)

    def locate(self, offset: Offset) -> int | StaleIncarnation | UnknownPosition:
        """Find the byte position that an offset names."""
        if offset == START:
            return 0
        if self.name(offset.byte) == offset:
            return offset.byte
        if offset.epoch < self.own and all(offset.epoch != epoch for _, epoch in self.inherited):
            return StaleIncarnation(offset, self.own)
        return UnknownPosition(offset)

    def fork(self, at: int, epoch: int) -> "Lineage":
        """Derive the lineage of a fork that diverges at byte `at` and writes as `epoch`."""
        inherited: list[tuple[int, int]] = []
        for upto, ancestor in self.inherited:
            if upto >= at:
                return Lineage(epoch, (*inherited, (at, ancestor)))
            inherited.append((upto, ancestor))
        return Lineage(epoch, (*inherited, (at, self.own)))


class OffsetBeyondTail(Struct, frozen=True):
    """The offset lies past the end of the stream."""

    offset: Offset
    tail: Offset


class OffsetInsideMessage(Struct, frozen=True):
    """The offset lies between the two ends of a message."""

    offset: Offset


PositionRefusal = StaleIncarnation | UnknownPosition | OffsetBeyondTail | OffsetInsideMessage
