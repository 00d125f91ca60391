"""Compaction: few large segments instead of many small ones, and none that is mostly dead.

Each checkpoint leaves one segment, and each stream that it touched gets one more extent. Segments
of about the same size are merged once there are eight of them, which makes their streams
contiguous; a byte is rewritten a few times in its life. A segment of which less than half is still
needed is rewritten too.

It has a thread of its own, works a quarter of the time unless much is due, and may be called off:
nothing counts before the catalog has it. What it writes stands beside what it replaces for a while,
so it leaves half of the disk's free room to the appends.
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

from headwater.errors import StoreError
from headwater.storage.disk import faults
from headwater.storage.disk.catalog import Catalog, CatalogFull
from headwater.storage.disk.files import free_bytes
from headwater.storage.disk.metrics import Metrics
from headwater.storage.disk.segments import Extent, SegmentFile, SegmentWriter, segment_path

log: Final = logging.getLogger("headwater.disk")

MERGE_AT: Final = 8
_TIER: Final = 4
_LARGE: Final = 256 * 1024 * 1024
_MAX_FILES: Final = 32
"""Of one round: all of them are open at once, beside those that are read."""
_MAX_ROUND: Final = MERGE_AT * _LARGE
_MAX_EXTENT: Final = 8 * 1024 * 1024
_HURRY_AT: Final = 4 * MERGE_AT
_PAUSE: Final = 3.0
_MAX_PAUSE_SECONDS: Final = 0.5


def choose(segments: list[tuple[int, int, int]], room: int) -> list[int]:
    """Pick the segments to rewrite together; none if all is well, or nothing fits into the room.

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
        if len(chosen) == _MAX_FILES or (chosen and total + live > _MAX_ROUND):
            break
        if total + live > room:
            continue  # a smaller one may fit
        chosen.append(number)
        total += live
    # One alone would only be copied, unless that frees something.
    return [] if len(chosen) == 1 and chosen[0] not in dict(sparse) else chosen


def _tier(size: int) -> int:
    tier = 0
    while size >= _TIER:
        size //= _TIER
        tier += 1
    return tier


class CalledOff(Exception):
    """The store closes: what was begun is dropped."""


def compact(
    numbers: list[int],
    folder: Path,
    segment: int,
    catalog: Catalog,
    metrics: Metrics,
    pause: Callable[[], None] = lambda: None,
) -> list[int]:
    """Rewrite what is needed of some segments, in a thread; gives the segments to delete."""
    old = sorted(extent for number in numbers for extent in catalog.extents_in(number))
    files = {number: SegmentFile(segment_path(folder, number)) for number in numbers}
    writer = SegmentWriter(folder, segment)
    try:
        for run in _runs(old):
            for extent in run:
                files[extent.segment].verify(extent)
            parts = [files[e.segment].read(e, e.start, e.end) for e in run]
            writer.add(run[0].stream, run[0].start, parts)
            pause()
        writer.finish()
    except BaseException:
        writer.abandon()
        raise
    faults.reach("compaction-written")
    size = sum(extent.length for extent in writer.extents)
    try:
        unused = catalog.replace_extents(old, writer.extents, segment, size)
    except CatalogFull:
        writer.abandon()
        raise
    faults.reach("compaction-committed")
    metrics.compactions += 1
    return unused


class Compactor:
    """Does a round now and then, one at a time, beside the checkpoints."""

    def __init__(
        self,
        folder: Path,
        catalog: Catalog,
        metrics: Metrics,
        forget: Callable[[list[int]], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._folder = folder
        self._catalog = catalog
        self._metrics = metrics
        self._forget = forget
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="headwater-compact")
        self._busy = False
        self._closing = Event()
        self._damaged: set[int] = set()

    def begin(self, segment: int) -> None:
        """Look whether there is a round to do, unless one is under way; on the loop."""
        if not self._busy and not self._closing.is_set():
            self._busy = True
            self._worker.submit(self._round, segment)

    async def close(self) -> None:
        """Call off what is under way, and wait for that."""
        self._closing.set()
        await self._loop.run_in_executor(None, self._worker.shutdown)

    def _round(self, segment: int) -> None:
        unused: list[int] = []
        try:
            unused = self._compact(segment)
        except CalledOff:
            pass
        except OSError as failure:
            log.error("compaction failed, all stays as it is error=%s", failure)  # noqa: TRY400 - the error says it all
        except Exception:
            log.exception("compaction failed")
        if not self._closing.is_set():
            self._loop.call_soon_threadsafe(self._done, unused)

    def _done(self, unused: list[int]) -> None:
        self._busy = False
        self._forget(unused)

    def _compact(self, segment: int) -> list[int]:
        segments = [item for item in self._catalog.segments() if item[0] not in self._damaged]
        numbers = choose(segments, free_bytes(self._folder) // 2)
        if not numbers:
            return []
        pause = self._pause_for(0.0 if len(numbers) >= _HURRY_AT else _PAUSE)
        try:
            return compact(numbers, self._folder, segment, self._catalog, self._metrics, pause)
        except (StoreError, FileNotFoundError) as error:
            # A segment may have been dropped by a checkpoint meanwhile: that is no damage.
            known = {number for number, _, _ in self._catalog.segments()}
            if known.issuperset(numbers):
                log.error("compaction skips damaged segments numbers=%s error=%s", numbers, error)  # noqa: TRY400 - the error says it all
                self._damaged.update(numbers)
            return []

    def _pause_for(self, share: float) -> Callable[[], None]:
        """Make the pause between two steps: a multiple of the time that the last one took."""
        began = perf_counter()

        def pause() -> None:
            nonlocal began
            took = perf_counter() - began
            if self._closing.wait(min(took * share, _MAX_PAUSE_SECONDS)):
                raise CalledOff
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
