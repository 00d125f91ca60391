"""Triggers, as files say them and as Spark is told."""

import pytest

from headwater.spark.pipelines.triggers import is_trigger, limited, spark_trigger
from headwater.spark.pipelines.values import (
    Archive,
    Pipeline,
    Scalar,
    Source,
    StreamTarget,
    TableTarget,
    Target,
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("default", {}),
        ("available-now", {"availableNow": True}),
        ("every 10 seconds", {"processingTime": "10000 milliseconds"}),
        ("every 1 second", {"processingTime": "1000 milliseconds"}),
        ("every 0.5s", {"processingTime": "500 milliseconds"}),
        ("every 2 minutes", {"processingTime": "120000 milliseconds"}),
        ("every 1h", {"processingTime": "3600000 milliseconds"}),
    ],
)
def test_a_trigger_is_told_to_spark(text: str, told: dict[str, object]) -> None:
    assert is_trigger(text)
    assert spark_trigger(text) == told


@pytest.mark.parametrize("text", ["", "10 seconds", "every 0 seconds", "every x", "every -1 s"])
def test_anything_else_is_no_trigger(text: str) -> None:
    assert not is_trigger(text)


@pytest.mark.parametrize(
    ("target", "trigger", "given", "limit"),
    [
        (StreamTarget(stream="x"), "default", {}, "16m"),
        (StreamTarget(stream="x"), "available-now", {"maxbytespertrigger": 5}, None),
        (TableTarget(folder="t"), "available-now", {}, "256m"),
        (TableTarget(folder="t"), "default", {}, "256m"),
        (Archive(folder="a"), "available-now", {}, None),
    ],
)
def test_batches_are_bounded_where_the_file_does_not(
    target: Target, trigger: str, given: dict[str, Scalar], limit: str | None
) -> None:
    source = Source(stream="in", options=given)
    made = limited(Pipeline(name="p", target=target, source=source, trigger=trigger))
    expected = given if limit is None else {"maxBytesPerTrigger": limit}
    assert made.source.options == expected
