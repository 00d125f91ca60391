"""When a pipeline looks for new rows and how many it takes, as files say it and Spark is told."""

import re
from typing import Any, Final

from msgspec.structs import replace

from headwater.spark.pipelines.values import (
    AVAILABLE_NOW,
    DEFAULT,
    Archive,
    Pipeline,
    StreamTarget,
)

_EVERY: Final = re.compile(r"every (\d+(?:\.\d+)?) ?(s|seconds?|m|minutes?|h|hours?)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}
_LIMIT: Final = "maxBytesPerTrigger"
_STREAM_BATCH: Final = "16m"
_TABLE_BATCH: Final = "256m"


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


def limited(pipeline: Pipeline) -> Pipeline:
    """Bound the batches of a pipeline whose file does not: so a backlog has many."""
    if isinstance(pipeline.target, StreamTarget):
        most = _STREAM_BATCH  # what a batch writes to a stream is one request
    elif isinstance(pipeline.target, Archive):
        return pipeline  # it bounds itself
    else:
        most = _TABLE_BATCH
    source = pipeline.source
    if any(name.lower() == _LIMIT.lower() for name in source.options):
        return pipeline
    return replace(pipeline, source=replace(source, options={**source.options, _LIMIT: most}))
