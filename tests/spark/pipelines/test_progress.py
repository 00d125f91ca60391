"""Figures from what Spark tells of its batches."""

import json
import shutil
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from headwater.spark.pipelines.metrics import Meter, MetricsFile, metrics_text
from headwater.spark.pipelines.progress import (
    Figures,
    after,
    lasting,
    measured,
    reached,
    sized,
    told,
)


def at(epoch: int, byte: int) -> str:
    return f"{epoch:016d}_{byte:016d}"


def progress(
    batch: int, rows: int, start: Any, end: Any, latest: Any, **more: Any
) -> dict[str, Any]:
    return {
        "batchId": batch,
        "numInputRows": rows,
        "timestamp": "2026-01-01T00:00:00Z",
        "durationMs": {"addBatch": 400, "triggerExecution": 500},
        "sources": [{"startOffset": start, "endOffset": end, "latestOffset": latest}],
        **more,
    }


FIRST: Final = progress(4, 10, None, {"a": at(1, 300), "b": at(2, 50)}, {"a": at(1, 400)})


def test_batches_add_up() -> None:
    figures = after(Figures(ends={"a": at(1, 100)}), FIRST)
    assert (figures.batches, figures.batch, figures.rows) == (1, 4, 10)
    assert figures.bytes == 250  # from where the run began, not from the stream's beginning
    assert figures.lag_bytes == 100
    assert figures.phases == {"addBatch": 0.4, "triggerExecution": 0.5}
    second = progress(5, 3, {"a": at(1, 300)}, {"a": at(1, 400)}, None)
    figures = after(figures, second)
    assert (figures.batches, figures.batch, figures.rows, figures.batch_rows) == (2, 5, 13, 3)
    assert (figures.bytes, figures.lag_bytes) == (350, 0)


def test_a_sign_of_life_is_no_batch() -> None:
    figures = after(Figures(), FIRST)
    idle = progress(
        5, 0, {"a": at(1, 300)}, {"a": at(1, 300)}, None, durationMs={"latestOffset": 1}
    )
    later = after(figures, idle)
    assert (later.batches, later.batch, later.rows) == (1, 4, 10)
    assert later.lag_bytes == 0


def test_what_is_kept_aside_adds_up() -> None:
    packed = progress(0, 1, None, {}, {}, observedMetrics={"headwater": {"rows": 5, "aside": 2}})
    events = progress(1, 3, None, {}, {}, observedMetrics={"headwater_project": {"aside": 1}})
    none = progress(2, 1, None, {}, {}, observedMetrics={"headwater": {"rows": 4, "aside": None}})
    figures = Figures()
    for each in (packed, events, none, FIRST):
        figures = after(figures, each)
    assert (figures.rows, figures.aside) == (22, 3)
    assert 'aside_total{pipeline="p"} 3\n' in metrics_text({"p": (figures, True)})


def test_how_far_tables_of_runs_are_behind_is_told_in_seconds() -> None:
    began = datetime.fromisoformat("2026-01-01T00:00:00Z").timestamp()
    oldest = {"oldest_persisted": (began - 3) * 1e6, "oldest_emitted": (began - 9) * 1e6}
    observed = {"headwater_project": {"events": 2, **oldest}}
    figures = after(Figures(), progress(3, 2, None, {}, {}, observedMetrics=observed))
    assert figures.batch_lag_seconds == 3.5
    nothing = progress(4, 0, None, {}, {}, observedMetrics={"headwater_project": {"events": 0}})
    assert after(figures, nothing).batch_lag_seconds == 3.5
    assert told(figures, 2.0) == "batch 3  2 rows, 0 B, lag 0 B, 3.5 s"
    text = metrics_text({"p": (figures, True), "other": (Figures(), True)})
    assert 'batch_lag_seconds{pipeline="p"} 3.5\n' in text
    assert 'batch_lag_seconds{pipeline="other"}' not in text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (59.0, "59.0 s"), (90, "1.5 min"), (1e6, "11.6 days")]
)
def test_times_are_written_for_people(seconds: float, text: str) -> None:
    assert lasting(seconds) == text


def test_lag_is_what_the_server_tells_between_batches_too() -> None:
    figures = measured(Figures(ends={"a": at(1, 100)}), {"a": at(1, 400), "c": at(3, 5)})
    assert (figures.lag_bytes, figures.streams) == (305, 2)
    # A batch that was planned before the server was asked does not make that undone.
    planned = progress(0, 1, None, {"a": at(1, 300)}, {"a": at(1, 300)})
    assert after(figures, planned).lag_bytes == 100


def test_streams_that_are_gone_are_forgotten() -> None:
    figures = Figures()
    for number in range(5):
        figures = after(figures, progress(number, 1, None, {f"s/{number}": at(1, 10)}, None))
    assert figures.ends == {"s/4": at(1, 10)}
    idle = progress(5, 0, None, None, None, durationMs={})
    assert after(figures, idle).ends == figures.ends


def test_queries_of_others_are_not_remembered_for_ever() -> None:
    meter = Meter()

    def hear(run: str, batch: int) -> None:
        told = SimpleNamespace(json=json.dumps(progress(batch, 1, None, None, None)), runId=run)
        event: Any = SimpleNamespace(progress=told)
        meter.onQueryProgress(event)

    for number in range(150):
        hear(f"query {number}", 0)
    for batch in range(150):
        hear("long query", batch)
    for run, batches in (("query 0", 0), ("query 149", 1), ("long query", 100)):
        meter.expect(run, "p", {})
        assert meter.figures(run).batches == batches


def test_where_figures_go_that_fails_stops_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[int] = []
    (tmp_path / "folder").mkdir()
    file = MetricsFile(tmp_path / "folder" / "figures.prom")
    shutil.rmtree(tmp_path / "folder")
    meter = Meter(file, lambda _name, figures, _is_up: told.append(figures.rows))
    meter.expect("run", "p", {})
    meter.put("run", Figures(rows=1))
    meter.put("run", Figures(rows=2))
    meter.end("run")
    assert told == [1, 2, 2]
    assert meter.await_end("run", 0)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("figures are lost pipeline=p reason=")


def test_a_recreated_stream_counts_no_negative_bytes() -> None:
    shorter = progress(1, 1, {"a": at(1, 900)}, {"a": at(7, 10)}, {"a": at(7, 10)})
    assert after(Figures(), shorter).bytes == 0


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 kB"), (5 << 30, "5.0 GB")]
)
def test_bytes_are_written_for_people(count: int, text: str) -> None:
    assert sized(count) == text


def test_bounded_work_has_a_bar() -> None:
    figures = Figures(batches=1, rows=1234, bytes=512, batch=3, lag_bytes=2048)
    assert (
        told(figures, 2.0, 1024)
        == "[############............]  50%  1,234 rows, 512 B of 1.0 kB (256 B/s)"
    )
    assert told(figures, 2.0, 100).startswith("[########################] 100%")
    assert told(figures, 2.0) == "batch 3  1,234 rows, 512 B (256 B/s), lag 2.0 kB"


def test_the_bar_is_there_before_the_first_batch_and_for_jobs() -> None:
    none = "[........................]   0%  "
    assert told(Figures(), 2.0, 5 << 30) == f"{none}0 B of 5.0 GB"
    assert told(Figures(), 2.0, None, 1000) == f"{none}0 of 1,000 changes"
    assert told(Figures(bytes=1024), 2.0) == "1.0 kB (512 B/s)"


def test_a_job_tells_what_it_is_at_before_anything_is_written() -> None:
    assert reached("looking for controls in 1.0 GB", None, 12.3) == (
        "looking for controls in 1.0 GB, 12.3 s"
    )
    assert reached("looking for controls in 1.0 GB", 0.25, 90) == (
        "[######..................]  25%  looking for controls in 1.0 GB, 1.5 min"
    )
