"""Options of the disk engine."""

from typing import Final

import msgspec

from headwater.storage.disk.segments import (
    MAX_CHECKED_BLOCKS,
)

MIB: Final = 1024 * 1024


class DiskOptions(msgspec.Struct, frozen=True):
    """How the engine is run."""

    durability: str = "fsync"
    tail_budget: int = 256 * MIB
    """Bytes in memory that no segment has yet: at a quarter of them there is a checkpoint, and at
    all of them appends wait for it."""
    journal_bytes: int = 32 * MIB
    journal_records: int = 150_000
    """A journal file is full with so many: a start replays them one by one, however short."""
    max_dirty_streams: int = 20_000
    """A checkpoint takes note of all of them at once, on the loop."""
    max_loaded_streams: int = 50_000
    max_open_segments: int = 64
    """Of readers; a compaction opens up to half as many, but enough to merge some."""
    max_checked_blocks: int = MAX_CHECKED_BLOCKS
    checkpoint_seconds: float = 30.0
