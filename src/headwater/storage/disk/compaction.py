"""Compaction: segments are merged or rewritten, so that few remain and most of their bytes live.

Each checkpoint adds one segment, and one extent to each stream that it touched. Eight segments of
about the same size are merged, which makes their streams contiguous; a byte is rewritten a few
times in its life. A segment of which less than half is live is rewritten too.

Compaction has its own thread. It works a quarter of the time unless much is due, and can be
cancelled at any point: nothing counts before the catalog lists it. Its output and its input exist
side by side for a while. So a round uses at most half of the free disk space, and allocates what it
needs beforehand, since appends could use it up meanwhile. Once the disk is full and appends are
refused, a round may use all of the space, with the reserve, and rewrites whatever frees some.
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
"""Segments of one round: all of them are open at once, besides those of readers."""
_MAX_ROUND: Final = MERGE_AT * _LARGE
_MAX_EXTENT: Final = 8 * 1024 * 1024
_PIECE: Final = 1024 * 1024
_HURRY_AT: Final = 4 * MERGE_AT
_PAUSE: Final = 3.0
_MAX_PAUSE_SECONDS: Final = 0.5


def choose(segments: list[tuple[int, int, int]], free: int, most: int = MAX_FILES) -> list[int]:
    """Return up to `most` segments to rewrite together; none if none is due or none fits.

    A checkpoint starts one round, so a round takes all that is due: one sparse segment at a time
    would delay the merges of all others.
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
        if total + live > free:
            continue  # a smaller one may fit
        chosen.append(number)
        total += live
    # One segment alone would only be copied, unless that frees space.
    return [] if len(chosen) == 1 and chosen[0] not in dict(sparse) else chosen


def choose_to_free(
    segments: list[tuple[int, int, int]], free: int, most: int = MAX_FILES
) -> list[int]:
    """Return the segments that free the most space for the space that a rewrite takes."""
    chosen: list[int] = []
    total = 0
    dead = [item for item in segments if item[2] < item[1]]
    for number, _, live in sorted(dead, key=lambda item: item[2] / item[1]):
        if len(chosen) < most and total + live <= free:
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
    """The store closes: the round is abandoned."""


def compact(
    numbers: list[int],
    folder: Path,
    segment: int,
    catalog: Catalog,
    metrics: EngineMetrics,
    pause: Callable[[], None] = lambda: None,
    faults: Faults = NO_FAULTS,
) -> list[int]:
    """Rewrite the live bytes of some segments, in a thread; return the segments to delete."""
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
        raise  # the commit may be on disk, and then needs the segment
    except BaseException:
        writer.abandon()
        raise
    faults.reach("compaction-committed")
    metrics.compactions += 1
    return unused


def _pieces(
    run: list[Extent], files: dict[int, SegmentFile], pause: Callable[[], None]
) -> Iterator[bytes]:
    """Read and verify a run of extents piece by piece."""
    for extent in run:
        file = files[extent.segment]
        file.verify_header(extent)
        for start in range(extent.start, extent.end, _PIECE):
            if start > extent.start:
                pause()
            yield file.read(extent, start, min(start + _PIECE, extent.end))


class Compactor:
    """Runs compaction rounds, one at a time, beside the checkpoints."""

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
        """Pass obsolete segments to `delete_segments`, a failed sync of the catalog to `stop`.

        `delete_segments` is called in the thread of compactions.

        `emergency_bytes` returns the space that a full disk has left, or 0 while it is not full.
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
        """Start a round if one is due and none is running; called on the loop."""
        if not self._busy and not self._closing.is_set():
            self._busy = True
            self._worker.submit(self._round, new_segment())

    async def close(self) -> None:
        """Cancel the running round, and wait for its end."""
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
            if failure.errno in DISK_FULL_ERRORS:  # the catalog's transaction takes space too
                log.info("compaction postponed: not enough disk space")
            else:
                log.error("compaction failed, nothing was changed", extra={"error": failure})  # noqa: TRY400 - the stack adds nothing
        except Exception:
            log.exception("compaction failed")
        self._delete_segments(unused)
        if not self._closing.is_set():
            self._loop.call_soon_threadsafe(self._done)

    def _done(self) -> None:
        self._busy = False

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
        """Exclude a damaged segment from all further rounds."""
        number = int(Path(file).stem)
        # A checkpoint may have deleted it meanwhile: that is no damage.
        if number in {known for known, _, _ in self._catalog.segments()}:
            log.error(
                "compaction skips a damaged segment", extra={"number": number, "error": error}
            )
            self._damaged.add(number)

    def _pause_for(self, share: float) -> Callable[[], None]:
        """Return a function that pauses for a multiple of the time since its last call."""
        began = perf_counter()

        def pause() -> None:
            nonlocal began
            took = perf_counter() - began
            if self._closing.wait(min(took * share, _MAX_PAUSE_SECONDS)):
                raise CompactionCancelled
            began = perf_counter()

        return pause


def _runs(extents: list[Extent]) -> Iterator[list[Extent]]:
    """Group contiguous extents of one stream."""
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
