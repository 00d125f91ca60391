"""The PostgreSQL store keeps the promises of any run store, and those of its row locks."""

import asyncio
import random
from contextlib import suppress
from urllib.parse import quote

import psycopg
import pytest
from redis import Redis as BlockingRedis

from headwater.errors import RunQueryRefused, RunStoreUnavailable, SettingsError
from headwater.runs import RunStore, run_store
from headwater.runs.projector import Projector
from headwater.runs.reducer import Fold
from headwater.runs.store import Checkpoint, checkpoint_to_json
from tests.suites.run_steps import (
    all_changes,
    all_events,
    append,
    numbered,
    started,
    step_started,
)
from tests.suites.run_store_fire import FireSuite, SharedFireSuite
from tests.suites.run_store_suite import RunStoreSuite
from tests.support.engines.postgres import Postgres
from tests.support.engines.process import free_port
from tests.support.engines.redis import Redis


class TestPostgresRunStore(RunStoreSuite, FireSuite):
    """Every promise."""

    @pytest.fixture
    def store(self, postgres: Postgres) -> RunStore:
        return run_store(postgres.run_store_url())


class CutsConnections(SharedFireSuite):
    """The invariants, with many processes whose connections are cut now and then."""

    @pytest.fixture(autouse=True)
    def _server(self, postgres: Postgres) -> None:
        self.server = postgres
        self.chance = random.Random(3)
        self.cuts = 0

    def disturb(self) -> None:
        if self.chance.random() < 0.2:
            self.cuts += self.server.cut_connections(0.2)


class TestPostgresRunStoreOfManyProcesses(CutsConnections):
    """The invariants."""

    @pytest.fixture
    def run_store_url(self, postgres: Postgres) -> str:
        return postgres.run_store_url()


class TestPostgresSequenceRunStore(RunStoreSuite, FireSuite):
    """Every promise, with a sequence for each run."""

    @pytest.fixture
    def store(self, postgres: Postgres) -> RunStore:
        return run_store(postgres.run_store_url("postgresql+sequence"))


class TestPostgresSequenceRunStoreOfManyProcesses(CutsConnections):
    """The invariants, with a sequence for each run."""

    @pytest.fixture
    def run_store_url(self, postgres: Postgres) -> str:
        return postgres.run_store_url("postgresql+sequence")


class TestPostgresRedisRunStore(RunStoreSuite, FireSuite):
    """Every promise, with a counter in Redis."""

    @pytest.fixture
    def store(self, postgres: Postgres, redis_server: Redis) -> RunStore:
        redis = quote(redis_server.fresh_url())
        return run_store(postgres.run_store_url("postgresql+redis", redis=redis))


class TestPostgresRedisRunStoreOfManyProcesses(CutsConnections):
    """The invariants, with a counter in Redis that forgets everything now and then."""

    @pytest.fixture
    def run_store_url(self, postgres: Postgres, redis_server: Redis) -> str:
        self.redis = redis_server.fresh_url()
        return postgres.run_store_url("postgresql+redis", redis=quote(self.redis))

    def disturb(self) -> None:
        super().disturb()
        if self.chance.random() < 0.2:
            with BlockingRedis.from_url(self.redis) as redis:
                redis.flushdb()


def test_a_schema_keeps_the_authority_that_numbered_it(postgres: Postgres) -> None:
    async def scenario() -> None:
        url = postgres.run_store_url()
        async with run_store(url) as store:
            await append(store, started())
        other = run_store(url.replace("postgresql:", "postgresql+sequence:", 1))
        with pytest.raises(SettingsError, match="'head'"):
            await other.open()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:nothing",
        "postgresql://localhost/x?schema=Robert'); DROP",
        "postgresql://localhost/x?connections=0",
        "postgresql://localhost/x?connections=many",
        "postgresql+redis://localhost/x",
    ],
)
def test_a_url_that_can_not_be_used_is_refused(url: str) -> None:
    with pytest.raises(SettingsError):
        run_store(url)


def test_a_server_that_is_away_is_said_so() -> None:
    store = run_store(f"postgresql://nobody@127.0.0.1:{free_port()}/nothing")
    with pytest.raises(RunStoreUnavailable, match="repeat it"):
        asyncio.run(store.open())


def test_a_store_goes_on_after_all_its_connections_were_cut(postgres: Postgres) -> None:
    async def scenario() -> None:
        async with run_store(postgres.run_store_url()) as store:
            await asyncio.gather(*map(store.append_event, numbered(20)))
            postgres.cut_connections()
            for _ in range(20):
                with suppress(RunStoreUnavailable):
                    assert (await store.append_event(started())).run_seq == 21
                    return
            pytest.fail("it did not come back")

    asyncio.run(scenario())


def test_a_counter_that_has_gone_back_is_raised_to_the_log(
    postgres: Postgres, redis_server: Redis
) -> None:
    async def scenario() -> None:
        redis_url = redis_server.fresh_url()
        url = postgres.run_store_url("postgresql+redis", redis=quote(redis_url))
        async with run_store(url) as store:
            await append(store, *numbered(5))
            with BlockingRedis.from_url(redis_url) as redis:
                (counter,) = redis.keys("*")
                redis.set(counter, 2)
                assert await append(store, started()) == [6]
                redis.flushdb()
                assert await append(store, *numbered(2, first=6)) == [7, 8]

    asyncio.run(scenario())


def test_a_redis_that_is_away_is_said_so(postgres: Postgres) -> None:
    async def scenario() -> None:
        away = quote(f"redis://127.0.0.1:{free_port()}/0")
        store = run_store(postgres.run_store_url("postgresql+redis", redis=away))
        with pytest.raises(RunStoreUnavailable, match="Redis"):
            await store.open()

    asyncio.run(scenario())


def test_transactions_of_another_cluster_are_taken_for_changes_once(postgres: Postgres) -> None:
    async def scenario() -> None:
        url = postgres.run_store_url()
        async with run_store(url) as store:
            await append(store, started())
            await store.save_position('{"mark": "999999999990:999999999999:"}')
        schema = url.rpartition("schema=")[2]
        # As after a restore into a cluster whose transactions are fewer.
        postgres.execute(f"UPDATE {schema}.runs SET changed = '999999999999'::xid8".encode())
        async with run_store(url) as store:
            names, mark = await all_changes(store)
            assert names == ["run-001"]
            assert (await store.changes(mark)).runs == ()
            assert await store.load_position() == ""
            kept = f'{{"mark": "{mark}"}}'
            await store.save_position(kept)
        async with run_store(url) as store:
            assert await store.load_position() == kept

    asyncio.run(scenario())


def test_changes_are_named_in_the_order_of_numbers_and_not_of_texts(postgres: Postgres) -> None:
    async def scenario() -> None:
        url = postgres.run_store_url()
        async with run_store(url) as store:
            schema = url.rpartition("schema=")[2]
            transactions = (8, 9, 10, 11, 99, 100, 101)
            for number in transactions:
                await append(store, started(f"run-{number}"))
                postgres.execute(
                    f"UPDATE {schema}.runs SET changed = '{number}'::xid8 "
                    f"WHERE run_id = 'run-{number}'".encode()
                )
            names, _ = await all_changes(store, limit=2)
            assert names == [f"run-{number}" for number in transactions]

    asyncio.run(scenario())


def test_projectors_that_take_turns_keep_whole_checkpoints(postgres: Postgres) -> None:
    async def scenario() -> None:
        url = postgres.run_store_url()
        async with run_store(url) as one, run_store(url) as other:
            await append(one, *(step_started(f"step-{number}") for number in range(100)))
            folds = [Fold("run-001"), Fold("run-001")]
            for turn, event in enumerate(await all_events(one)):
                # Each of them knows only what it wrote itself.
                for fold in folds:
                    fold.apply(event)
                snapshot = folds[turn % 2].snapshot()
                kept = Checkpoint(snapshot, event.run_seq)
                await (one, other)[turn % 2].save_checkpoints([kept])
                if turn % 10 == 9:
                    assert await one.load_checkpoint("run-001") == kept

    asyncio.run(scenario())


def test_checkpoints_that_were_kept_whole_are_read_and_replaced(postgres: Postgres) -> None:
    async def scenario() -> None:
        url = postgres.run_store_url()
        schema = url.rpartition("schema=")[2]
        async with run_store(url) as store:
            await append(store, *(step_started(f"step-{number}") for number in range(50)))
            snapshot = await store.project_snapshot("run-001")
        whole = Checkpoint(snapshot, snapshot.last_event_seq)
        for statement in (
            f"DROP TABLE {schema}.checkpoint_steps",
            f"ALTER TABLE {schema}.checkpoints DROP COLUMN steps, DROP COLUMN version",
            f"UPDATE {schema}.settings SET value = '1' WHERE name = 'format'",
        ):
            postgres.execute(statement.encode())
        postgres.execute(
            f"INSERT INTO {schema}.checkpoints "
            f"SELECT number, 50, %s::json FROM {schema}.runs".encode(),
            checkpoint_to_json(whole).decode(),
        )
        await asyncio.gather(*(_open_and_close(url) for _ in range(4)))
        async with run_store(url) as store:
            assert await store.load_checkpoint("run-001") == whole
            await append(store, step_started("one-more"))
            await Projector(store).catch_up()
            kept = await store.load_checkpoint("run-001")
            assert kept is not None
            assert kept.snapshot == await store.project_snapshot("run-001")

    asyncio.run(scenario())


def test_a_store_is_opened_beside_a_writer_that_takes_its_time(postgres: Postgres) -> None:
    async def scenario() -> None:
        url = postgres.run_store_url()
        async with run_store(url) as store:
            await append(store, started())
        schema = url.rpartition("schema=")[2]
        with psycopg.connect(postgres.url) as writer:
            writer.execute(f"UPDATE {schema}.runs SET last_seq = last_seq".encode())
            async with asyncio.timeout(60):
                await asyncio.gather(*(_open_and_close(url) for _ in range(4)))

    asyncio.run(scenario())


async def _open_and_close(url: str) -> None:
    async with run_store(url):
        pass


@pytest.mark.parametrize("mark", ["x", "1:2", "1:2:/3", "1:2:/1:2:/x/1", "1:2:/1:2:/1/x"])
def test_a_mark_of_something_else_is_refused(postgres: Postgres, mark: str) -> None:
    async def scenario() -> None:
        async with run_store(postgres.run_store_url()) as store:
            with pytest.raises(RunQueryRefused, match="mark"):
                await store.changes(mark)

    asyncio.run(scenario())
