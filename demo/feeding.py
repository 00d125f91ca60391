"""Events that a shop and its workflows might have written, the same in every run."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

from headwater.client import Client
from headwater.runs import NewEvent, new_event, run_store
from headwater.runs.blocking import BlockingRunStore
from headwater.state.events import ChangeEvent, change

CUSTOMERS: Final = 120
ORDERS: Final = 1500
RUNS: Final = 30

_BEGIN: Final = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
_NAMES: Final = ("Ada", "Bob", "Chen", "Dina", "Emil", "Fatou", "Goro", "Hana", "Ivan", "Juno")
_CITIES: Final = ("Oslo", "Porto", "Quito", "Riga", "Split")
_STATES: Final = ("paid", "packed", "shipped", "delivered")
_STEPS: Final = ("extract/orders", "extract/customers", "load/lake", "report/daily")


def feed(url: str) -> tuple[int, int]:
    """Fill the streams; gives the number of changes and of events of runs."""
    changes = 0
    with Client(url) as client:
        for seed, shop in enumerate(("north", "south")):
            stream = client.stream(f"shop/{shop}", content_type="application/json")
            stream.create()
            messages = [each.encode() for each in shop_changes(shop, Random(seed))]
            for start in range(0, len(messages), 500):
                stream.append(b"[" + b",".join(messages[start : start + 500]) + b"]")
            changes += len(messages)
    events = 0
    # Each run is a stream of its own below `workflows/log`.
    store = run_store(f"streams+{url}/workflows")
    with BlockingRunStore(store) as runs:
        for number in range(RUNS):
            log = list(run_events(f"nightly-{number:02}", number, Random(number)))
            runs.append_events(log)
            events += len(log)
    return changes, events


def shop_changes(shop: str, chance: Random) -> Iterator[ChangeEvent]:
    """Tell the story of one shop: customers come, order, move and leave."""
    customers: dict[str, dict[str, Any]] = {}
    orders: dict[str, dict[str, Any]] = {}
    for number in range(CUSTOMERS):
        name, city = chance.choice(_NAMES), chance.choice(_CITIES)
        key = f"{shop}-c{number}"
        customers[key] = {"name": name, "city": city, "points": 0}
        yield change("insert", "customer", key, customers[key])
    for number in range(ORDERS):
        buyer = chance.choice(sorted(customers))
        key = f"{shop}-o{number}"
        total = round(chance.lognormvariate(4, 1), 2)
        orders[key] = {"customer": buyer, "status": "new", "total": total}
        yield change("insert", "order", key, orders[key])
        customers[buyer] = {**customers[buyer], "points": customers[buyer]["points"] + int(total)}
        yield change("update", "customer", buyer, customers[buyer])
        if chance.random() < 0.7:
            key = chance.choice(sorted(orders))
            orders[key] = {**orders[key], "status": chance.choice(_STATES)}
            yield change("update", "order", key, orders[key])
        if chance.random() < 0.02:
            key = chance.choice(sorted(orders))
            del orders[key]
            yield change("delete", "order", key)
    for key in sorted(customers)[::17]:
        yield change("delete", "customer", key)


def run_events(run: str, number: int, chance: Random) -> Iterator[NewEvent]:
    """Tell the story of one run; every seventh fails, and the last ones are not over."""
    now = _BEGIN + timedelta(minutes=10 * number)

    def told(kind: str, data: dict[str, Any], step: str | None = None) -> NewEvent:
        return new_event(
            run,
            kind,
            data,
            plan_version="1.4.0",
            step_id=step,
            logical_attempt_id=1 if step else None,
            emitted_at=now,
        )

    yield told("RunQueued", {})
    yield told("RunStarted", _started(run, now))
    for step in _STEPS:
        now += timedelta(seconds=chance.randrange(1, 20))
        yield told("StepStarted", {"startedAt": _text(now)}, step)
        if number >= RUNS - 2 and step == _STEPS[-1]:
            return
        now += timedelta(seconds=chance.randrange(5, 90))
        if number % 7 == 6 and step == "load/lake":
            error = {"code": "LAKE_FULL", "message": "no space left", "retryable": False}
            failed = {"failedAt": _text(now), "error": error}
            yield told("StepFailed", failed, step)
            yield told("RunFailed", failed)
            return
        yield told("StepCompleted", {"completedAt": _text(now), "artifactRefs": []}, step)
    yield told("RunCompleted", {"completedAt": _text(now)})


def _started(run: str, now: datetime) -> dict[str, Any]:
    return {
        "engineRunRef": {"provider": "demo", "workflowId": run},
        "engineType": "demo",
        "planRef": {
            "uri": "s3://plans/nightly.json",
            "sha256": "0" * 64,
            "schemaVersion": "1",
            "planId": "nightly",
            "planVersion": "1.4.0",
        },
        "context": {"tenantId": "demo", "projectId": "shop", "environmentId": "demo"},
        "startedAt": _text(now),
    }


def _text(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
