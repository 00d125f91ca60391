"""What there is to read, asked of the server: streams, their ends, and where ranges may be cut."""

import logging
from collections.abc import Iterator
from typing import Final

from headwater.client import START, Client
from headwater.client import listings as calls
from headwater.errors import (
    BadOption,
    OffsetGone,
    RequestRefused,
    StreamGone,
    StreamLost,
    StreamNotFound,
)
from headwater.protocol.globs import matches
from headwater.spark.options import SourceOptions, is_glob
from headwater.spark.ranges import Range, byte_of, epoch_of, pieces_between

log: Final = logging.getLogger("headwater.spark")

_WORDS: Final = {"earliest": START, "latest": "now"}


class Planner:
    """Knows the streams of one query; asks the server through one client."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.client: Client = options.server.client()
        self.tails: dict[str, str] = {}
        """The streams that are there, and where each ends."""
        self._cursor = ""

    @property
    def has_looked(self) -> bool:
        """Tell whether `tails` is known at all."""
        return bool(self._cursor)

    def close(self) -> None:
        """Let go of the connections."""
        self.client.close()

    def matches(self, path: str) -> bool:
        """Tell whether the user asked for a stream."""
        return any(matches(glob, path) for glob in self.options.streams)

    def look_once(self) -> None:
        """Fill `tails`, for whoever will not look again: however many streams were named."""
        self.tails = dict(self._listed())

    def look(self, wait: float = 0.0) -> None:
        """Bring `tails` up to date, waiting for the first change where there was none."""
        changed = self.client.changes(*self.options.streams, after=self._cursor, wait=wait)
        # The cursor is older than the listing: what changes in between is told again.
        self._cursor = changed.cursor
        if changed.streams is None:
            self.look_once()
            return
        self.tails |= {stream.path: stream.tail for stream in changed.streams}
        for path in changed.gone:
            self.tails.pop(path, None)

    def require_named(self) -> None:
        """Refuse a stream that was named and is not there."""
        for path in self.options.streams:
            if not is_glob(path) and path not in self.tails:
                raise BadOption("stream", f"there is no stream '{path}' at this server")

    def starting(self, path: str) -> str:
        """Give the offset at which the user has a stream begin."""
        return self._chosen(path, self.options.starting, START)

    def ending(self, path: str) -> str:
        """Give the offset at which the user has a stream end."""
        chosen = self._chosen(path, self.options.ending, "now")
        return self.tails[path] if chosen == "now" else chosen

    def _chosen(self, path: str, chosen: object, default: str) -> str:
        text = chosen.get(path, default) if isinstance(chosen, dict) else str(chosen)
        offset = _WORDS.get(text, text)
        return self.tails.get(path, START) if offset == "now" else offset

    def pieces(self, path: str, start: str, end: str, size: int) -> list[Range]:
        """Cut a range into pieces of about so many bytes; each lies within one epoch."""
        if start == end:
            return []
        one_epoch = epoch_of(start) == epoch_of(end)
        if one_epoch and byte_of(end) - byte_of(start) <= size:
            return [Range(path, start, end)]
        return pieces_between(path, self.client.splits(path, start, end, size=size))

    def pieces_or_loss(self, path: str, start: str, end: str, size: int) -> list[Range]:
        """Cut a range of a running query, of which the stream may have lost the beginning."""
        try:
            return self.pieces(path, start, end, size)
        except OffsetGone:
            self.lost(path, start, "was deleted and created again")
        except (StreamNotFound, StreamGone):
            self.lost(path, start, "was deleted")
            return []
        try:
            return self.pieces(path, START, end, size)
        except (StreamNotFound, StreamGone, OffsetGone):
            self.lost(path, start, "was deleted")
            return []

    def lost(self, path: str, offset: str, what: str) -> None:
        """Fail because of what is gone, or go on without it, as the user chose."""
        error = StreamLost(path, offset, what)
        if self.options.fail_on_data_loss:
            raise error
        log.warning("stream lost stream=%s offset=%s reason=%s", path, offset, what)

    def is_of_this_incarnation(self, path: str, offset: str) -> bool:
        """Ask whether an offset belongs to the stream that is at a path now."""
        if epoch_of(offset) == epoch_of(self.tails[path]):
            return True
        try:
            self.client.run(calls.splits(self.options.server.url, path, offset, "now", limit=1))
        except (StreamNotFound, StreamGone, OffsetGone):
            return False
        except RequestRefused as refused:
            if refused.code in {"offset-unknown", "offset-beyond-tail"}:
                return False
            raise
        return True

    def first_cut_or_loss(self, path: str, start: str, size: int) -> str | None:
        """Find the end of about `size` bytes, at least one message; None where they are gone."""
        end = self.tails[path]
        try:
            cut = self.client.run(calls.splits(self.options.server.url, path, start, end, size, 1))
        except OffsetGone:
            self.lost(path, start, "was deleted and created again")
        except (StreamNotFound, StreamGone):
            self.lost(path, start, "was deleted")
        else:
            return cut.offsets[-1]
        del self.tails[path]  # a new stream there is a change, and will be told as one
        return None

    def _listed(self) -> Iterator[tuple[str, str]]:
        for glob in self.options.streams:
            for stream in self.client.streams(glob):
                yield stream.path, stream.tail
