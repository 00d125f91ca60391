"""Compaction: few large segments instead of many small ones, and none that is mostly dead.

Each checkpoint leaves one segment, and each stream that it touched gets one more extent. Segments
of about the same size are merged once there are eight of them, which makes their streams
contiguous; a byte is rewritten a few times in its life. A segment of which less than half is still
needed is rewritten too.
"""

import logging
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from headwater.errors import StoreError
from headwater.protocol.framing import Buffer
from headwater.storage.disk import faults
from headwater.storage.disk.catalog import Catalog, CatalogFull
from headwater.storage.disk.metrics import Metrics
from headwater.storage.disk.segments import Extent, SegmentFile, SegmentWriter, segment_path

log: Final = logging.getLogger("headwater.disk")

MERGE_AT: Final = 8
_TIER: Final = 4
_LARGE: Final = 256 * 1024 * 1024
_MAX_FILES: Final = 32
_MAX_ROUND: Final = MERGE_AT * _LARGE
_MAX_EXTENT: Final = 8 * 1024 * 1024


def choose(segments: list[tuple[int, int, int]]) -> list[int]:
    """Pick the segments to rewrite together; none if all is well.

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
        chosen.append(number)
        total += live
    return chosen


def _tier(size: int) -> int:
    tier = 0
    while size >= _TIER:
        size //= _TIER
        tier += 1
    return tier


def compact(
    numbers: list[int], folder: Path, segment: int, catalog: Catalog, metrics: Metrics
) -> list[int]:
    """Rewrite what is needed of some segments, in a thread; gives the segments to delete."""
    old = sorted(extent for number in numbers for extent in catalog.extents_in(number))
    files = {number: SegmentFile(segment_path(folder, number)) for number in numbers}
    writer = SegmentWriter(folder, segment)
    try:
        for run in _runs(old):
            for extent in run:
                files[extent.segment].verify(extent)
            writer.add(run[0].stream, run[0].start, [_bytes(files, extent) for extent in run])
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


def compact_if_needed(
    folder: Path, segment: int, catalog: Catalog, metrics: Metrics, damaged: set[int]
) -> list[int]:
    """Do one round, if there is one to do; a damaged segment is left as it is."""
    numbers = choose([item for item in catalog.segments() if item[0] not in damaged])
    if not numbers:
        return []
    try:
        return compact(numbers, folder, segment, catalog, metrics)
    except (StoreError, FileNotFoundError) as error:
        log.error("compaction skips damaged segments numbers=%s error=%s", numbers, error)  # noqa: TRY400 - the error says it all
        damaged.update(numbers)
        return []


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


def _bytes(files: dict[int, SegmentFile], extent: Extent) -> Buffer:
    stored = files[extent.segment].read(extent, extent.start, extent.end)
    return stored if isinstance(stored, bytes | bytearray | memoryview) else stored.read()
