"""The DynamoDB store keeps the promises of any run store, and those of its items."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import boto3
import pytest

from headwater.errors import EventRefused, RunLogDamaged, RunStoreUnavailable, SettingsError
from headwater.runs import RunStatus, RunStore, run_store
from headwater.runs.stores import dynamodb as dynamodb_store
from headwater.runs.stores.dynamodb_items import ChangeWindow, Head
from tests.suites.run_steps import append, event, numbered
from tests.suites.run_store_fire import FireSuite, SharedFireSuite
from tests.suites.run_store_suite import RunStoreSuite
from tests.support.engines.dynamodb import Dynamo
from tests.support.engines.process import free_port
from tests.support.patience import PATIENCE_SECONDS
from tests.support.proxy import Proxy


class TestDynamoRunStore(RunStoreSuite, FireSuite):
    """Every promise."""

    @pytest.fixture
    def store(self, dynamodb: Dynamo) -> RunStore:
        return run_store(dynamodb.run_store_url())


class TestDynamoRunStoreOfManyProcesses(SharedFireSuite):
    """The invariants, with many processes whose connections are cut now and then."""

    @pytest.fixture
    def run_store_url(self, dynamodb: Dynamo) -> Iterator[str]:
        self.chance = random.Random(5)
        with Proxy(dynamodb.url) as self.proxy:
            yield dynamodb.run_store_url(self.proxy.url)

    def disturb(self) -> None:
        if self.chance.random() < 0.1:
            self.proxy.cut()
        elif self.chance.random() < 0.1:
            self.proxy.lose_answers(1)


class Outside:
    """The table of a store, as others see it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        options = parse_qs(parts.query)
        self.table = parts.netloc
        self.client: Any = boto3.client(
            "dynamodb", region_name=options["region"][0], endpoint_url=options["endpoint"][0]
        )

    def take(self, run_seq: int) -> dict[str, Any]:
        """Take an event out of the table; gives it."""
        key = {"run": {"S": "run-001"}, "item": {"S": f"e#{run_seq:019d}"}}
        answer = self.client.delete_item(TableName=self.table, Key=key, ReturnValues="ALL_OLD")
        item: dict[str, Any] = answer["Attributes"]
        return item

    def put(self, item: dict[str, Any]) -> None:
        self.client.put_item(TableName=self.table, Item=item)

    def count(self) -> int:
        answer = self.client.scan(TableName=self.table, Select="COUNT")
        return int(answer["Count"])


def test_a_transaction_that_is_seen_in_part_is_waited_for(
    dynamodb: Dynamo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamodb_store, "_HOLE_SECONDS", PATIENCE_SECONDS)
    looks = 0

    async def scenario(proxy: Proxy) -> None:
        url = dynamodb.run_store_url(proxy.url)
        async with run_store(url) as store:
            await append(store, *numbered(5))
            outside = Outside(url.replace(proxy.url, dynamodb.url))
            item = outside.take(3)

            def count_looks(data: bytes) -> None:
                nonlocal looks
                if b".Query" in data:
                    looks += 1
                    if looks == 3:
                        outside.put(item)

            proxy.before_request = count_looks
            assert [each.run_seq for each in await store.fetch_events("run-001")] == [1, 2, 3, 4, 5]

    with Proxy(dynamodb.url) as proxy:
        asyncio.run(scenario(proxy))
    assert looks >= 3


def test_an_event_that_stays_away_is_named(
    dynamodb: Dynamo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamodb_store, "_HOLE_SECONDS", 0.1)

    async def scenario() -> None:
        url = dynamodb.run_store_url()
        async with run_store(url) as store:
            await append(store, *numbered(3))
            Outside(url).take(1)
            with pytest.raises(RunLogDamaged, match="event 1"):
                await store.fetch_events("run-001")
            assert [each.run_seq for each in await store.fetch_events("run-001", 1)] == [2, 3]

    asyncio.run(scenario())


def test_a_deletion_that_was_interrupted_is_hidden_and_finished_by_the_next(
    dynamodb: Dynamo,
) -> None:
    async def scenario() -> None:
        url = dynamodb.run_store_url()
        async with run_store(url) as store:
            await append(store, *numbered(3))
            outside = Outside(url)
            left = outside.take(2)
            outside.put(left)
            assert await store.delete_run("run-001")
            assert outside.count() == 1, "the tombstone"
            outside.put(left)
            assert await store.fetch_events("run-001") == []
            assert not await store.delete_run("run-001")
            assert outside.count() == 1

    asyncio.run(scenario())


def test_what_does_not_fit_into_a_transaction_is_refused_before_it_is_sent(
    dynamodb: Dynamo,
) -> None:
    async def scenario() -> None:
        async with run_store(dynamodb.run_store_url()) as store:
            large = [event("Ticked", "x" * 300_000, step=f"t{number}") for number in range(12)]
            with pytest.raises(EventRefused, match="smaller"):
                await store.append_events(large)
            assert await append(store, *large[:11]) == list(range(1, 12))
            with pytest.raises(EventRefused, match="900"):
                await store.append_event(event("Ticked", run="\N{GRINNING FACE}" * 250))

    asyncio.run(scenario())


def test_a_server_that_is_away_is_said_so(dynamodb: Dynamo) -> None:
    store = run_store(dynamodb.run_store_url(f"http://127.0.0.1:{free_port()}"))
    with pytest.raises(RunStoreUnavailable, match="DynamoDB"):
        asyncio.run(store.open())


@pytest.mark.parametrize("url", ["dynamodb://", "dynamodb://t/x", "dynamodb://table?color=red"])
def test_a_url_that_can_not_be_used_is_refused(url: str) -> None:
    with pytest.raises(SettingsError):
        run_store(url)


def head(run_id: str, changed: str) -> Head:
    return Head(run_id, RunStatus.RUNNING, 1, "t0", changed)


def test_a_change_that_shows_late_within_the_window_is_still_new() -> None:
    window = ChangeWindow().behind([head("a", "t1"), head("b", "t5")], "t3", is_cut=False)
    assert window.since == "t3"
    assert not window.is_new(head("b", "t5"))
    assert window.is_new(head("b", "t6"))
    assert window.is_new(head("c", "t4")), "it came in after we looked"
    assert ChangeWindow.parse(str(window)) == window


def test_an_answer_that_was_cut_off_goes_on_behind_its_last() -> None:
    window = ChangeWindow().behind([head("a", "t1"), head("b", "t2")], "t9", is_cut=True)
    assert window.since == "t2"
    assert window.is_new(head("c", "t2"))
    assert not window.is_new(head("b", "t2"))
