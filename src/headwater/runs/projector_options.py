"""What a projector can be told."""

from enum import StrEnum

from msgspec import Struct


class Resync(StrEnum):
    """From where a run is projected again."""

    FULL = "FULL"
    """From its first event."""
    FROM_SNAPSHOT = "FROM_SNAPSHOT"
    """From the last checkpoint at or before the contiguous mark."""


class Options(Struct, frozen=True):
    """What a projector can be told."""

    grace_seconds: float = 5.0
    """How long a missing number may still turn up."""
    lag_alert_seconds: float = 5.0
    lag_resync_seconds: float = 10.0
    resync: Resync = Resync.FROM_SNAPSHOT
    """How a run is resynced that lags or has a gap."""
    wait_seconds: float = 1.0
    """How long to wait for changes before looking anyway."""
    max_loaded_runs: int = 10_000
    """Projections kept in memory; the others are loaded from their checkpoints."""
    concurrency: int = 64
    """Runs that are read at once, and whose checkpoints are kept together."""
    position_seconds: float = 5.0
    """How often it is kept where a projector goes on after a restart."""
    measured_events: int = 10_000
    """Events of which the metrics know how late their snapshots were."""
    retry_seconds: float = 0.5
    """How long to wait after the store could not be used."""
