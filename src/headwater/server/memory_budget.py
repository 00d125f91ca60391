"""What the memory budget of a server on disk is spent on.

Tails, which hold what no segment has yet, and three caches: answers, streams that nobody uses at
present, and the blocks of segments that were checked already. A cache takes what its own setting
says and no more than a quarter of the budget; the tails have what is left.
"""

from typing import Final, NamedTuple

from headwater.server.settings import Settings
from headwater.storage.disk.registry import STREAM_BYTES
from headwater.storage.disk.segments import MAX_CHECKED_BLOCKS

_CHECKED_BLOCK_BYTES: Final = 64


class Budget(NamedTuple):
    """How much each may take; streams and blocks are counted."""

    tail_bytes: int
    answer_bytes: int
    loaded_streams: int
    checked_blocks: int
    """Of each open segment."""


def divide(settings: Settings) -> Budget:
    """Share the budget out."""
    budget, segments = settings.memory_budget_bytes, settings.max_open_segments
    quarter = budget // 4
    answers = min(settings.read_cache_bytes, quarter)
    streams = min(settings.max_loaded_streams, max(1, quarter // STREAM_BYTES))
    blocks = min(MAX_CHECKED_BLOCKS, max(1, quarter // (segments * _CHECKED_BLOCK_BYTES)))
    caches = answers + streams * STREAM_BYTES + segments * blocks * _CHECKED_BLOCK_BYTES
    return Budget(max(quarter, budget - caches), answers, streams, blocks)
