"""The division of the memory budget of the disk store.

The budget covers the tails, which hold data that is not in a segment yet, and three caches:
responses, loaded streams that are not in use, and verified blocks of segments. Each cache gets the
size of its setting, but at most a quarter of the budget; the tails get the rest.
"""

from typing import Final, NamedTuple

from headwater.server.settings import Settings
from headwater.storage.disk.registry import STREAM_BYTES
from headwater.storage.disk.segments import MAX_CHECKED_BLOCKS

_CHECKED_BLOCK_BYTES: Final = 64


class Budget(NamedTuple):
    """The share of each part; streams and blocks are counted, not measured."""

    tail_bytes: int
    response_bytes: int
    loaded_streams: int
    checked_blocks: int
    """For each open segment."""


def divide(settings: Settings) -> Budget:
    """Divide the budget."""
    budget, segments = settings.memory_budget_bytes, settings.max_open_segments
    quarter = budget // 4
    responses = min(settings.read_cache_bytes, quarter)
    streams = min(settings.max_loaded_streams, max(1, quarter // STREAM_BYTES))
    blocks = min(MAX_CHECKED_BLOCKS, max(1, quarter // (segments * _CHECKED_BLOCK_BYTES)))
    caches = responses + streams * STREAM_BYTES + segments * blocks * _CHECKED_BLOCK_BYTES
    return Budget(max(quarter, budget - caches), responses, streams, blocks)
