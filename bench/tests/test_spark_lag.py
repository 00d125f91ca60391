"""What the Spark benchmark makes of a query's progress."""

from bench.spark_lag import batches


def test_a_batch_ends_with_its_trigger() -> None:
    progress = [
        {
            "timestamp": "2026-01-02T03:04:05.500Z",
            "durationMs": {"triggerExecution": 250},
            "sources": [{"startOffset": start, "endOffset": end}],
        }
        for start, end in [(None, '{"s": "a"}'), ('{"s": "a"}', '{"s": "b"}'), ('{"s": "b"}',) * 2]
    ]
    done = 1767323045.75
    assert batches(progress, "s") == [("", "a", done), ("a", "b", done)]
