"""A failure is never a figure, and better is always above one."""

from itertools import repeat

from bench.compare import Comparison, Samples
from bench.loadgen import drive
from bench.measure import Measurement, percentile
from bench.report import failed, is_met, missed, table
from bench.tests.scripted import replying
from bench.wire import build_request
from bench.workloads import WORKLOADS

BY_NAME = {workload.name: workload for workload in WORKLOADS}


def compared(name: str, ours: Measurement, peer: Measurement) -> Comparison:
    return Comparison(BY_NAME[name], Samples([ours]), Samples([peer]))


def driven(reply: bytes, replies: int) -> Measurement:
    with replying([reply] * replies) as (port, _):
        append = build_request("POST", port, "s", "application/json", b"{}")
        return drive(port, [repeat(append)], warmup=0, seconds=2)


def test_an_error_status_is_a_failure() -> None:
    refused = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
    assert "3 x status 503" in driven(refused, 3).failures


def test_a_connection_the_server_closes_is_a_failure() -> None:
    accepted = b"HTTP/1.1 204 No Content\r\n\r\n"
    measurement = driven(accepted, 3)
    assert measurement.value > 0
    assert len(measurement.failures) == 1


def test_higher_throughput_and_lower_latency_both_give_a_ratio_above_one() -> None:
    assert compared("A1", Measurement(400), Measurement(100)).ratio == 4
    assert compared("L3", Measurement(0.5), Measurement(2.0)).ratio == 4


def test_a_target_on_its_border_is_met_and_one_without_a_ratio_is_missed() -> None:
    border = compared("A1", Measurement(400), Measurement(100))
    broken = compared("A1", Measurement(400, ("1 x status 500",)), Measurement(100))
    assert is_met(border, 4) is True
    assert missed([border, broken], {"A1": 4}) == ["A1"]
    assert missed([broken], {}) == []


def test_one_failed_run_takes_the_figure_away_and_is_named() -> None:
    peer = Samples([Measurement(100), Measurement(90, ("2 x status 500",))])
    comparison = Comparison(BY_NAME["A2"], Samples([Measurement(400)]), peer)
    assert comparison.ratio is None
    assert failed([comparison]) == ["A2 on the peer: 2 x status 500"]
    assert "failed" in table([comparison], {})


def test_a_saturated_generator_marks_the_figure() -> None:
    rows = table([compared("A1", Measurement(900, (), 0.99), Measurement(100, (), 0.2))], {})
    assert "900*" in rows
    assert "100*" not in rows


def test_percentiles_are_measured_values() -> None:
    samples = [float(value) for value in range(100, 0, -1)]
    assert percentile(samples, 0.5) == 51
    assert percentile(samples, 0.99) == 100
    assert percentile([7.0], 0.99) == 7
