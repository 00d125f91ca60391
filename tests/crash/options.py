"""The settings of the servers that crash tests kill."""

from typing import Final

BUSY: Final = (
    *("--memory-budget-bytes", "65536", "--journal-bytes", "32768"),
    *("--checkpoint-interval", "0.2", "--chunk-bytes", "32768"),
    *("--max-loaded-streams", "8", "--max-open-segments", "4"),
    *("--long-poll-timeout", "0.3", "--sse-duration", "1"),
)
"""Options with which a server writes checkpoints, compacts and unloads streams all the time."""
