"""Reading on and on: `spark.readStream.format("headwater")`.

The Spark offset is the map from stream to offset; a stream that is not in it was not read yet, and
begins at its start. Everything else that is kept here may be lost at any time.
"""

import logging
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headwater.client import START
from headwater.spark.columns import Columns
from headwater.spark.options import SourceOptions
from headwater.spark.planning import Planner
from headwater.spark.ranges import Range, byte_of, pack, piece_bytes, share
from headwater.spark.reading import Ranges, read_ranges

log: Final = logging.getLogger("headwater.spark")

Offsets = dict[str, str]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows streams, also those that appear while the query runs."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.columns = Columns.of(options, schema)
        self._planner: Planner | None = None
        self._initial: Offsets | None = None
        self._has_begun = False
        """Whether there was a batch, or the end of one."""
        self._target: Offsets | None = None
        self._last_served = ""

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get a copy: connections stay here.
        return {**self.__dict__, "_planner": None}

    @property
    def planner(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self.options)
        return self._planner

    def initialOffset(self) -> Offsets:
        # Spark asks once to plan the first batch and again to run it.
        if self._initial is None:
            self._initial = self._begin()
        return self._initial

    def _begin(self) -> Offsets:
        if self.options.starting == "earliest":
            return {}
        planner = self.planner
        planner.look()
        planner.require_starts()
        starts = {path: planner.starting(path) for path in planner.tails}
        return {path: start for path, start in starts.items() if start != START}

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self.options.max_bytes
        return ReadAllAvailable() if limit is None else ReadMaxBytes(limit)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        planner = self.planner
        if not planner.has_looked:
            planner.look()
            if missing := planner.missing:
                log.warning(
                    "there is no stream '%s' yet: it is read once it is created count=%d",
                    *(missing[0], len(missing)),
                )
        end = self._reachable(start, limit)
        if not self._has_begun and start == self._initial:
            self._has_begun = True
            if self.options.starting != "earliest":
                return self._pinned(start, end)
        if end == start and self._target is None:
            # Everything that was known is read: this is when to ask, and to wait if need be.
            planner.look(self.options.wait)
            end = self._reachable(start, limit)
        return end

    def reportLatestOffset(self) -> Offsets | None:
        return dict(self.planner.tails) or None

    def prepareForTriggerAvailableNow(self) -> None:
        self.planner.look()
        self._target = dict(self.planner.tails)

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        self._has_begun = True
        ranges = [Range(path, start.get(path, START), end[path]) for path in sorted(end)]
        size = piece_bytes(sum(each.bytes for each in ranges), self.options.split_bytes)
        pieces: list[Range] = []
        for each in ranges:
            if each.start != each.end and not self._is_before_the_first(each):
                pieces += self.planner.pieces_or_loss(each.stream, each.start, each.end, size)
        return [Ranges(packed) for packed in pack(pieces, size)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Ranges)  # noqa: S101 - there are no others
        yield from read_ranges(self.options, self.columns, partition)

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()

    def _pinned(self, start: Offsets, end: Offsets) -> Offsets:
        """Have the first batch read nothing of streams that begin at their end.

        Spark notes the end of a batch, and not where the first one began: a replay after a crash
        asks for that anew, when such a stream has a later end. So the first batch ends where it
        begins, at once, and what comes from then on is the next one's.
        """
        moves = self.planner.begins_at_its_end
        fixed = {path: at for path, at in end.items() if not moves(path)}
        return fixed | {path: at for path, at in start.items() if moves(path)}

    def _is_before_the_first(self, piece: Range) -> bool:
        """Tell a first batch that is run again, after its streams went on: it had nothing."""
        begun = (self._initial or {}).get(piece.stream)
        return piece.start == begun and piece.end <= piece.start

    def _reachable(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """Say how far the next batch goes."""
        planner = self.planner
        tails = planner.tails
        if self._target is not None:
            tails = {path: at for path, at in self._target.items() if path in tails}
        begins = self._begins(start, tails)
        behind = {path: begin for path, begin in begins.items() if begin != tails[path]}
        lags = {path: byte_of(tails[path]) - byte_of(begin) for path, begin in behind.items()}
        lags = {path: lag for path, lag in lags.items() if lag > 0}
        end = {path: at for path, at in start.items() if path in tails}
        if not isinstance(limit, ReadMaxBytes) or sum(lags.values()) <= limit.max_bytes:
            return end | {path: tails[path] for path in lags}
        shares = share(lags, limit.max_bytes, self._last_served)
        self._last_served = max(shares, default="")
        for path, size in shares.items():
            reached: str | None = tails[path]
            if size < lags[path]:
                reached = planner.first_cut_or_loss(path, behind[path], size)
            if reached is None:
                end.pop(path, None)
            else:
                end[path] = reached
        return end

    def _begins(self, start: Offsets, tails: Offsets) -> Offsets:
        """Say where to go on in each stream; what is gone is told, or skipped."""
        planner = self.planner
        begins = {}
        for path, offset in start.items():
            if path not in planner.tails:
                if planner.matches(path):  # else the user asks for other streams by now
                    planner.lost(path, offset, "was deleted")
            elif offset != tails.get(path) and not planner.is_of_this_incarnation(path, offset):
                planner.lost(path, offset, "was deleted and created again")
                begins[path] = START
        return {path: begins.get(path, start.get(path, START)) for path in tails}
