"""The conditions of a list of runs, for stores that speak SQL."""

from collections.abc import Callable
from datetime import datetime

from headwater.runs.values import RunStatus


def conditions(
    status: RunStatus | None,
    created_from: datetime | None,
    created_before: datetime | None,
    *,
    mark: str,
    instant: Callable[[datetime], object],
    living: str = "NOT deleted",
) -> tuple[list[str], list[object]]:
    """Write what runs have to fulfil, with the driver's mark for each value, and the values."""
    where = [living]
    values: list[object] = []
    if status is not None:
        where.append(f"status = {mark}")
        values.append(status.value)
    if created_from is not None:
        where.append(f"created_at >= {mark}")
        values.append(instant(created_from))
    if created_before is not None:
        where.append(f"created_at < {mark}")
        values.append(instant(created_before))
    return where, values
