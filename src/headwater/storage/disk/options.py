"""Options of the disk engine."""

from typing import Final

import msgspec

from headwater.storage.disk.segments import MAX_CHECKED_BLOCKS

MIB: Final = 1024 * 1024


class DiskOptions(msgspec.Struct, frozen=True):
    """Settings of a disk store."""

    durability: str = "fsync"
    tail_budget: int = 256 * MIB
    """Bytes in memory that no segment has yet: a quarter of it starts a checkpoint, and all of it
    makes appends wait for the checkpoint."""
    journal_bytes: int = 32 * MIB
    journal_records: int = 150_000
    """A journal file is full at this many records: a start replays them one by one."""
    max_dirty_streams: int = 20_000
    """Batches wait while a snapshot of all changed streams is taken, in slices."""
    streams_per_turn: int = 512
    """Streams, and pieces of their bytes, that a checkpoint handles in one turn of the loop."""
    max_loaded_streams: int = 50_000
    max_open_segments: int = 64
    """Open segments of readers. A compaction opens up to half as many, and at least 8."""
    max_checked_blocks: int = MAX_CHECKED_BLOCKS
    checkpoint_seconds: float = 30.0
