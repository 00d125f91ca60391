"""What there is to read, asked of the server: streams, their ends, and where ranges may be cut."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Final

from headwater.client import NOW, START, Client, Retry
from headwater.errors import (
    BadOption,
    OffsetGone,
    RequestRefused,
    StreamGone,
    StreamLost,
    StreamNotFound,
)
from headwater.protocol.globs import ANY, ONE, GlobIndex
from headwater.spark.options import Position, SourceOptions, is_glob
from headwater.spark.ranges import Range, byte_of, epoch_of, pieces_between

log: Final = logging.getLogger("headwater.spark")

_WORDS: Final = {"earliest": START, "latest": NOW}
_NOT_ITS_OWN: Final = frozenset({"offset-unknown", "offset-beyond-tail"})
"""What a server says of an offset that the stream at this path has never given."""
_MAX_WATCHED_BYTES: Final = 8 * 1024
"""Globs go with the URL of a request, which servers bound."""
_MAX_WATCHED: Final = 200


def chosen_offset(
    chosen: Position | Mapping[str, str], path: str, tail: str, default: Position
) -> str:
    """Give the offset that the user has chosen for a stream, which ends at `tail`."""
    text = chosen if isinstance(chosen, str) else chosen.get(path, default)
    offset = _WORDS.get(text, text)
    return tail if offset == NOW else offset


def is_of_this_incarnation(client: Client, path: str, offset: str, known: str) -> bool:
    """Ask whether an offset belongs to the stream that is at a path now, which has `known` too."""
    if epoch_of(offset) == epoch_of(known) and byte_of(offset) <= byte_of(known):
        return True
    try:
        client.split_page(path, offset, limit=1)
    except RequestRefused as refused:
        if what_was_lost(refused) is None:
            raise
        return False
    return True


def what_was_lost(refused: RequestRefused) -> str | None:
    """Say what became of a stream that refuses an offset which was read before.

    None where the refusal has another reason. A server that was put back to an older state has
    never given the offset, and neither has the stream of a server that began anew.
    """
    if isinstance(refused, StreamNotFound | StreamGone):
        return "was deleted"
    if isinstance(refused, OffsetGone) or refused.code in _NOT_ITS_OWN:
        return "was deleted and created again"
    return None


def watched(globs: Sequence[str]) -> Sequence[str]:
    """Say what to watch for some globs: those, or where they are too long, all below one folder."""
    if sum(map(len, globs)) <= _MAX_WATCHED_BYTES and len(globs) <= _MAX_WATCHED:
        return globs
    columns = zip(*(glob.split("/") for glob in globs), strict=False)
    shared = takewhile(lambda parts: set(parts) == {parts[0]} - {ONE, ANY}, columns)
    return ("/".join([*(parts[0] for parts in shared), ANY]),)


class Planner:
    """Knows the streams of one query; asks the server through one client."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        # A server that was never reached is told of soon; one that goes away is waited for.
        self.client: Client = options.server.client(Retry())
        self.tails: dict[str, str] = {}
        """The streams that are there, and where each ends."""
        self._cursor = ""
        self._watched = watched(options.streams)
        self._index: GlobIndex[str] = GlobIndex()
        for glob in options.streams:
            self._index.add(glob, glob)

    @property
    def has_looked(self) -> bool:
        """Tell whether `tails` is known at all."""
        return bool(self._cursor)

    def close(self) -> None:
        """Let go of the connections."""
        self.client.close()

    def matches(self, path: str) -> bool:
        """Tell whether the user asked for a stream."""
        return bool(self._index.match(path))

    def look_once(self) -> None:
        """Fill `tails`, for whoever will not look again: however many streams were named."""
        self.tails = dict(self._listed())

    def look(self, wait: float = 0.0) -> None:
        """Bring `tails` up to date, waiting for the first change where there was none."""
        changed = self.client.changes(*self._watched, after=self._cursor, wait=wait)
        if not self.has_looked:
            self.client.close()
            self.client = self.options.server.client()
        # The cursor is older than the listing: what changes in between is told again.
        self._cursor = changed.cursor
        if changed.streams is None:
            self.look_once()
            return
        mine = (stream for stream in changed.streams if self.matches(stream.path))
        self.tails |= {stream.path: stream.tail for stream in mine}
        for path in changed.gone:
            self.tails.pop(path, None)

    @property
    def missing(self) -> list[str]:
        """The streams that were named and are not there."""
        streams = self.options.streams
        return [path for path in streams if not is_glob(path) and path not in self.tails]

    def require_named(self) -> None:
        """Refuse a stream that was named and is not there."""
        for path in self.missing:
            raise BadOption("stream", f"there is no stream '{path}' at this server")

    def require_starts(self) -> None:
        """Refuse to begin behind the end of a stream."""
        for path, tail in self.tails.items():
            if self.starting(path) > tail:
                there = f"'{path}' begins at {self.starting(path)} and ends at {tail}"
                raise BadOption("startingOffsets", f"{there}: it does not have that offset")

    def require_order(self) -> None:
        """Refuse offsets that a stream does not have, or has the other way round."""
        for path, tail in self.tails.items():
            start, end = self.starting(path), self.ending(path)
            if start > end:
                there = f"'{path}' begins at {start} and ends at {end}"
                name = "startingOffsets" if end == tail else "endingOffsets"
                raise BadOption(name, f"{there}: nothing lies between")

    def begins_at_its_end(self, path: str) -> bool:
        """Tell whether the user has a stream begin at its end, wherever that is by then."""
        starting = self.options.starting
        text = starting if isinstance(starting, str) else starting.get(path, "earliest")
        return _WORDS.get(text, text) == NOW

    def starting(self, path: str) -> str:
        """Give the offset at which the user has a stream begin."""
        return chosen_offset(self.options.starting, path, self.tails[path], "earliest")

    def ending(self, path: str) -> str:
        """Give the offset at which the user has a stream end."""
        return chosen_offset(self.options.ending, path, self.tails[path], "latest")

    def pieces(self, path: str, start: str, end: str, size: int) -> list[Range]:
        """Cut a range into pieces of about so many bytes; each lies within one epoch."""
        if start == end:
            return []
        one_epoch = epoch_of(start) == epoch_of(end)
        if one_epoch and 0 <= byte_of(end) - byte_of(start) <= size:
            return [Range(path, start, end)]
        return pieces_between(path, self.client.splits(path, start, end, size=size))

    def pieces_or_loss(self, path: str, start: str, end: str, size: int) -> list[Range]:
        """Cut a range of a running query, of which the stream may have lost the beginning."""
        try:
            return self.pieces(path, start, end, size)
        except RequestRefused as refused:
            if not self._is_replaced(path, start, refused):
                return []
        try:
            return self.pieces(path, START, end, size)
        except RequestRefused as refused:
            self._is_replaced(path, start, refused)
            return []

    def _is_replaced(self, path: str, offset: str, refused: RequestRefused) -> bool:
        """Tell of what is gone; gives whether there is another stream now."""
        what = what_was_lost(refused)
        if what is None:
            raise refused
        self.lost(path, offset, what)
        return not isinstance(refused, StreamNotFound | StreamGone)

    def lost(self, path: str, offset: str, what: str) -> None:
        """Fail because of what is gone, or go on without it, as the user chose."""
        error = StreamLost(path, offset, what)
        if self.options.fail_on_data_loss:
            raise error
        log.warning("stream lost stream=%s offset=%s reason=%s", path, offset, what)

    def is_of_this_incarnation(self, path: str, offset: str) -> bool:
        """Ask whether an offset belongs to the stream that is at a path now."""
        return is_of_this_incarnation(self.client, path, offset, self.tails[path])

    def first_cut_or_loss(self, path: str, start: str, size: int) -> str | None:
        """Find the end of about `size` bytes, at least one message; None where they are gone."""
        end = self.tails[path]
        try:
            cut = self.client.split_page(path, start, end, size=size, limit=1)
        except RequestRefused as refused:
            self._is_replaced(path, start, refused)
        else:
            return cut.offsets[-1]
        del self.tails[path]  # a new stream there is a change, and will be told as one
        return None

    def _listed(self) -> Iterator[tuple[str, str]]:
        for glob in self.options.streams:
            for stream in self.client.streams(glob):
                yield stream.path, stream.tail
