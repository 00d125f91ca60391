"""How long to wait for Spark."""

from typing import Final

PATIENCE: Final = 240
"""Seconds after which something hangs: what is waited for is a result, and never a speed."""
