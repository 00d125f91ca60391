"""The SQLite store keeps the promises of any run store, and those of its file."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from headwater.errors import (
    NewerFormat,
    RunDeleted,
    RunStoreDamaged,
    RunStoreUnavailable,
    SettingsError,
)
from headwater.runs import RunStore, run_store
from headwater.runs.projector import Projector
from headwater.runs.reducer import Fold
from headwater.runs.store import Checkpoint, checkpoint_to_json
from headwater.runs.stores.sqlite import SqliteRunStore
from tests.suites.run_steps import all_events, append, event, numbered, started, step_started
from tests.suites.run_store_fire import FireSuite, SharedFireSuite
from tests.suites.run_store_suite import RunStoreSuite


class TestSqliteRunStore(RunStoreSuite, FireSuite):
    """Every promise."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> RunStore:
        return SqliteRunStore(tmp_path / "runs.db")


class TestSqliteRunStoreOfManyProcesses(SharedFireSuite):
    """The invariants, with one file and many processes."""

    @pytest.fixture
    def run_store_url(self, tmp_path: Path) -> str:
        return f"sqlite:{tmp_path / 'runs.db'}"


def test_runs_are_there_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with SqliteRunStore(tmp_path / "deep" / "runs.db") as store:
            await append(store, started(), *numbered(3))
            await store.delete_run("gone")
            await append(store, started("gone"))
            await store.delete_run("gone")
        async with SqliteRunStore(tmp_path / "deep" / "runs.db") as store:
            assert [each.run_seq for each in await all_events(store)] == [1, 2, 3, 4]
            assert (await store.append_event(started())).idempotent
            with pytest.raises(RunDeleted):
                await store.append_event(started("gone"))

    asyncio.run(scenario())


def test_a_file_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with SqliteRunStore(tmp_path / "runs.db"):
            pass
        with sqlite3.connect(tmp_path / "runs.db") as db:
            db.execute("PRAGMA user_version = 99")
        db.close()
        with pytest.raises(NewerFormat):
            await SqliteRunStore(tmp_path / "runs.db").open()

    asyncio.run(scenario())


def test_a_file_of_the_first_version_is_brought_up_to_date(tmp_path: Path) -> None:
    file = tmp_path / "runs.db"

    async def scenario() -> None:
        async with SqliteRunStore(file) as store:
            await append(store, *(step_started(f"step-{number}") for number in range(50)))
            snapshot = await store.project_snapshot("run-001")
        whole = Checkpoint(snapshot, snapshot.last_event_seq)
        with closing(sqlite3.connect(file)) as db, db:
            db.execute("DROP TABLE checkpoint_steps")
            db.execute("DROP TABLE position")
            db.execute("ALTER TABLE checkpoints DROP COLUMN steps")
            db.execute("ALTER TABLE checkpoints DROP COLUMN version")
            db.execute(
                "INSERT INTO checkpoints SELECT number, 50, ? FROM runs",
                (checkpoint_to_json(whole),),
            )
            db.execute("PRAGMA user_version = 1")
        async with SqliteRunStore(file) as store:
            assert await store.load_checkpoint("run-001") == whole
            await append(store, step_started("one-more"))
            await Projector(store).catch_up()
            kept = await store.load_checkpoint("run-001")
            assert kept is not None
            assert kept.snapshot == await store.project_snapshot("run-001")

    asyncio.run(scenario())


def test_projectors_that_take_turns_keep_whole_checkpoints(tmp_path: Path) -> None:
    async def scenario() -> None:
        file = tmp_path / "runs.db"
        async with SqliteRunStore(file) as one, SqliteRunStore(file) as other:
            await append(one, *(step_started(f"step-{number}") for number in range(100)))
            folds = [Fold("run-001"), Fold("run-001")]
            for turn, each in enumerate(await all_events(one)):
                for fold in folds:
                    fold.apply(each)
                kept = Checkpoint(folds[turn % 2].snapshot(), each.run_seq)
                await (one, other)[turn % 2].save_checkpoints([kept])
                if turn % 10 == 9:
                    assert await one.load_checkpoint("run-001") == kept

    asyncio.run(scenario())


def test_another_database_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    with pytest.raises(SettingsError, match="another database"):
        asyncio.run(SqliteRunStore(tmp_path / "other.db").open())


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "runs.db").write_bytes(b"x" * 5000)
    with pytest.raises(RunStoreDamaged, match="not a database"):
        asyncio.run(SqliteRunStore(tmp_path / "runs.db").open())


def test_damage_in_the_middle_of_a_file_is_told(tmp_path: Path) -> None:
    file = tmp_path / "runs.db"

    async def scenario() -> None:
        async with SqliteRunStore(file) as store:
            await append(store, *numbered(200))
        whole = file.read_bytes()
        page = 4096
        # The first page, with the tables' names, stays as it is.
        file.write_bytes(whole[: 8 * page] + b"x" * (len(whole) - 8 * page))
        async with SqliteRunStore(file) as store:
            with pytest.raises(RunStoreDamaged, match="move it away"):
                await all_events(store)

    asyncio.run(scenario())


def test_a_folder_that_can_not_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunStoreUnavailable):
        asyncio.run(SqliteRunStore(tmp_path / "file" / "runs.db").open())


def test_what_does_not_fit_on_the_disk_is_told_and_leaves_no_trace(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with SqliteRunStore(tmp_path / "runs.db") as store:
            await append(store, *numbered(5))
            # SQLite's own limit stands for the disk's: it fails in the same way.
            store.limit_pages(10)
            with pytest.raises(RunStoreUnavailable, match="full"):
                await store.append_events(
                    [event("Ticked", "x" * 10_000, step=f"big-{n}") for n in range(50)]
                )
            assert len(await all_events(store)) == 5
            store.limit_pages(100_000)
            await append(store, *numbered(1, first=6))

    asyncio.run(scenario())


@pytest.mark.parametrize("url", ["sqlite:", "sqlite://", "sqlite::memory:", "nothing:", ""])
def test_a_url_that_names_no_file_is_refused(url: str) -> None:
    with pytest.raises(SettingsError):
        run_store(url)
