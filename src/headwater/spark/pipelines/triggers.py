"""When a pipeline looks for new rows, as a file says it and as Spark is told."""

import re
from typing import Any, Final

from headwater.spark.pipelines.values import AVAILABLE_NOW, DEFAULT

_EVERY: Final = re.compile(r"every (\d+(?:\.\d+)?) ?(s|seconds?|m|minutes?|h|hours?)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}


def every(text: str) -> float | None:
    """Give the seconds of `every 10 seconds`; None for anything else."""
    found = _EVERY.fullmatch(text)
    seconds = float(found[1]) * _SECONDS[found[2][0]] if found else 0.0
    return seconds if seconds > 0 else None


def is_trigger(text: str) -> bool:
    """Tell whether a trigger can be used."""
    return text in {AVAILABLE_NOW, DEFAULT} or every(text) is not None


def spark_trigger(text: str) -> dict[str, Any]:
    """Give the keyword arguments of `DataStreamWriter.trigger`; none for the default one."""
    if text == AVAILABLE_NOW:
        return {"availableNow": True}
    seconds = every(text)
    return {} if seconds is None else {"processingTime": f"{round(seconds * 1000)} milliseconds"}
