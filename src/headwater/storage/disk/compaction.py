"""Compaction: few large segments instead of many small ones, and none that is mostly dead.

Each checkpoint leaves one segment, and each stream that it touched gets one more extent. Segments
of about the same size are merged once there are eight of them, which makes their streams
contiguous; a byte is rewritten a few times in its life. A segment of which less than half is still
needed is rewritten too.

It has a thread of its own, works a quarter of the time unless much is due, and may be called off:
nothing counts before the catalog has it. What it writes stands beside what it replaces for a while,
so it leaves half of the disk's free room to the appends, and takes what it needs beforehand: they
can't use it up meanwhile. Once the disk is full and appends are refused, it may take all there is,
the reserve too, and rewrites whatever frees something.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import Final

from headwater.errors import NewerFormat, StreamDamaged
from headwater.storage.disk.catalog import Catalog
from headwater.storage.disk.disk_space import DISK_FULL_ERRORS, free_bytes
from headwater.storage.disk.faults import NO_FAULTS, Faults
from headwater.storage.disk.fsync import SyncFailed
from headwater.storage.disk.metrics import EngineMetrics
from headwater.storage.disk.segments import (
    BLOCK,
    Extent,
    SegmentFile,
    SegmentWriter,
    max_segment_bytes,
    segment_path,
)

log: Final = logging.getLogger("headwater.disk")

MERGE_AT: Final = 8
_TIER: Final = 4
_LARGE: Final = 256 * 1024 * 1024
MAX_FILES: Final = 32
"""Of one round: all of them are open at once, beside those that are read."""
_MAX_ROUND: Final = MERGE_AT * _LARGE
_MAX_EXTENT: Final = 8 * 1024 * 1024
_PIECE: Final = 1024 * 1024
_HURRY_AT: Final = 4 * MERGE_AT
_PAUSE: Final = 3.0
_MAX_PAUSE_SECONDS: Final = 0.5


def choose(segments: list[tuple[int, int, int]], room: int, most: int = MAX_FILES) -> list[int]:
    """Pick segments to rewrite together, at most so many; none if all is well or none fits.

    There is one round for each checkpoint, so it has to take all that is due: one mostly dead
    segment at a time would hold up the merges of all others.
    """
    sparse: list[tuple[int, int]] = []
    tiers: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, size, live in segments:
        if live * 2 < size:
            sparse.append((number, live))
        elif live < _LARGE:
            tiers[_tier(live)].append((number, live))
    crowded = max(tiers.values(), key=len, default=[])
    chosen: list[int] = []
    total = 0
    for number, live in sparse + (crowded if len(crowded) >= MERGE_AT else []):
        if len(chosen) == most or (chosen and total + live > _MAX_ROUND):
            break
        if total + live > room:
            continue  # a smaller one may fit
        chosen.append(number)
        total += live
    # One alone would only be copied, unless that frees something.
    return [] if len(chosen) == 1 and chosen[0] not in dict(sparse) else chosen


def choose_to_free(
    segments: list[tuple[int, int, int]], room: int, most: int = MAX_FILES
) -> list[int]:
    """Pick the segments that give back the most for the room that rewriting them takes."""
    chosen: list[int] = []
    total = 0
    dead = [item for item in segments if item[2] < item[1]]
    for number, _, live in sorted(dead, key=lambda item: item[2] / item[1]):
        if len(chosen) < most and total + live <= room:
            chosen.append(number)
            total += live
    return chosen


def _tier(size: int) -> int:
    tier = 0
    while size >= _TIER:
        size //= _TIER
        tier += 1
    return tier


class CompactionCancelled(Exception):
    """The store closes: what was begun is dropped."""


def compact(
    numbers: list[int],
    folder: Path,
    segment: int,
    catalog: Catalog,
    metrics: EngineMetrics,
    pause: Callable[[], None] = lambda: None,
    faults: Faults = NO_FAULTS,
) -> list[int]:
    """Rewrite what is needed of some segments, in a thread; gives the segments to delete."""
    old = sorted(extent for number in numbers for extent in catalog.extents_in(number))
    files = {number: SegmentFile(segment_path(folder, number)) for number in numbers}
    writer = SegmentWriter(folder, segment, max_segment_bytes(old), faults)
    try:
        for run in _runs(old):
            length = run[-1].end - run[0].start
            if length <= BLOCK:
                pieces = [files[extent.segment].read_short(extent) for extent in run]
                writer.add(run[0].stream, run[0].start, pieces)
            else:
                writer.add_long(run[0].stream, run[0].start, length, _pieces(run, files, pause))
            pause()
        writer.finish()
    except BaseException:
        writer.abandon()
        raise
    faults.reach("compaction-written")
    size = sum(extent.length for extent in writer.extents)
    try:
        unused = catalog.replace_segments(numbers, writer.extents, segment, size)
    except SyncFailed:
        raise  # the catalog may turn out to have it, and then needs the segment
    except BaseException:
        writer.abandon()
        raise
    faults.reach("compaction-committed")
    metrics.compactions += 1
    return unused


def _pieces(
    run: list[Extent], files: dict[int, SegmentFile], pause: Callable[[], None]
) -> Iterator[bytes]:
    """Read a run of extents, checked, with little of it in memory at once."""
    for extent in run:
        file = files[extent.segment]
        file.verify_header(extent)
        for start in range(extent.start, extent.end, _PIECE):
            if start > extent.start:
                pause()
            yield file.read(extent, start, min(start + _PIECE, extent.end))


class Compactor:
    """Does a round now and then, one at a time, beside the checkpoints."""

    def __init__(
        self,
        folder: Path,
        catalog: Catalog,
        metrics: EngineMetrics,
        delete_segments: Callable[[list[int]], None],
        stop: Callable[[OSError], object],
        emergency_bytes: Callable[[], int],
        max_files: int = MAX_FILES,
        faults: Faults = NO_FAULTS,
    ) -> None:
        """Call `delete_segments` with segments to delete, and `stop` where the catalog is in doubt.

        `emergency_bytes` gives what a full disk has left, or nothing while it is not full.
        """
        self._loop = asyncio.get_running_loop()
        self._folder = folder
        self._catalog = catalog
        self._metrics = metrics
        self._delete_segments = delete_segments
        self._stop = stop
        self._emergency_bytes = emergency_bytes
        self._faults = faults
        self._max_files = max(MERGE_AT, min(max_files, MAX_FILES))
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="headwater-compact")
        self._busy = False
        self._closing = Event()
        self._damaged: set[int] = set()

    def begin(self, new_segment: Callable[[], int]) -> None:
        """Look whether there is a round to do, unless one is under way; on the loop."""
        if not self._busy and not self._closing.is_set():
            self._busy = True
            self._worker.submit(self._round, new_segment())

    async def close(self) -> None:
        """Call off what is under way, and wait for that."""
        self._closing.set()
        await self._loop.run_in_executor(None, self._worker.shutdown)

    def _round(self, segment: int) -> None:
        unused: list[int] = []
        try:
            unused = self._compact(segment)
        except CompactionCancelled:
            pass
        except SyncFailed as failure:
            self._loop.call_soon_threadsafe(self._stop, failure)
        except OSError as failure:
            if failure.errno in DISK_FULL_ERRORS:  # the catalog's transaction takes some as well
                log.info("compaction waits for room, all stays as it is")
            else:
                log.error("compaction failed, all stays as it is error=%s", failure)  # noqa: TRY400 - the error says it all
        except Exception:
            log.exception("compaction failed")
        if not self._closing.is_set():
            self._loop.call_soon_threadsafe(self._done, unused)

    def _done(self, unused: list[int]) -> None:
        self._busy = False
        self._delete_segments(unused)

    def _compact(self, segment: int) -> list[int]:
        segments = [item for item in self._catalog.segments() if item[0] not in self._damaged]
        numbers = choose(segments, free_bytes(self._folder) // 2, self._max_files)
        if not numbers:
            numbers = choose_to_free(segments, self._emergency_bytes(), self._max_files)
        if not numbers:
            return []
        pause = self._pause_for(0.0 if len(numbers) >= _HURRY_AT else _PAUSE)
        try:
            return compact(
                numbers, self._folder, segment, self._catalog, self._metrics, pause, self._faults
            )
        except (StreamDamaged, NewerFormat) as error:
            self._skip(error.file, error)
        except FileNotFoundError as error:
            self._skip(error.filename, error)
        return []

    def _skip(self, file: str, error: Exception) -> None:
        """Leave a damaged segment alone from here on: the next round does without it."""
        number = int(Path(file).stem)
        # It may have been dropped by a checkpoint meanwhile: that is no damage.
        if number in {known for known, _, _ in self._catalog.segments()}:
            log.error("compaction skips a damaged segment number=%d error=%s", number, error)
            self._damaged.add(number)

    def _pause_for(self, share: float) -> Callable[[], None]:
        """Make the pause between two steps: a multiple of the time that the last one took."""
        began = perf_counter()

        def pause() -> None:
            nonlocal began
            took = perf_counter() - began
            if self._closing.wait(min(took * share, _MAX_PAUSE_SECONDS)):
                raise CompactionCancelled
            began = perf_counter()

        return pause


def _runs(extents: list[Extent]) -> Iterator[list[Extent]]:
    """Group extents that follow each other in one stream."""
    run: list[Extent] = []
    size = 0
    for extent in extents:
        follows = bool(run) and extent.stream == run[-1].stream and extent.start == run[-1].end
        if run and (not follows or size + extent.length > _MAX_EXTENT):
            yield run
            run, size = [], 0
        run.append(extent)
        size += extent.length
    if run:
        yield run
