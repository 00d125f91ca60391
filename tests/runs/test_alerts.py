"""Alerts reach a stream in their order, also when there are many."""

import asyncio
from datetime import UTC, datetime

from headwater.client import AsyncClient, Client
from headwater.runs.alerts import LAG_HIGH, NON_CONTIGUOUS, Alerts, StreamAlerts, alert
from headwater.runs.projector import Projector
from headwater.runs.stores.memory import MemoryRunStore
from tests.suites.run_steps import append, started, step_completed
from tests.support.server import ServerProcess

NOW = datetime(2026, 2, 11, tzinfo=UTC)


def test_alerts_are_appended_to_a_stream() -> None:
    with ServerProcess() as server:

        async def scenario() -> None:
            async with (
                AsyncClient(server.url) as client,
                StreamAlerts(client.stream("alerts/runs")) as to_stream,
                MemoryRunStore() as store,
            ):
                raise_alert = Alerts(to_stream)
                for number in range(250):
                    code = LAG_HIGH if number % 2 else NON_CONTIGUOUS
                    raise_alert(alert(code, f"r{number}", "text", NOW))
                await append(store, started("x"), step_completed("never", run="x"))
                await Projector(store, on_alert=raise_alert).catch_up()

        asyncio.run(scenario())
        with Client(server.url) as client:
            found = list(client.stream("alerts/runs").read().items())
    assert [each["runId"] for each in found] == [*(f"r{n}" for n in range(250)), "x"]
    assert found[0]["priority"] == "P2"
    assert (found[-1]["code"], found[-1]["priority"]) == ("INVALID_TRANSITION", "P3")
