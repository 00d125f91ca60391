"""A live database over a real server."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headwater.client import AsyncClient, Client, Stream
from headwater.errors import (
    CollectionStopped,
    StateError,
    StateFileError,
    StateNotReady,
    StateStopped,
    StreamNotFound,
    StreamRecreated,
    TxidTimeout,
)
from headwater.state import (
    AsyncStreamDB,
    Hooks,
    Progress,
    StateEvent,
    Status,
    StreamDB,
    change,
    collection,
    control,
    define_stream_state,
    encode_events,
    field,
    is_change_event,
)
from tests.support.patience import PATIENCE_SECONDS, until, wait_until
from tests.support.server import ServerProcess


class User(msgspec.Struct):
    id: str
    name: str
    age: int = 0


USERS = collection(User, type="user", key="id", indexes=["name"])
NOTES = collection(type="note")
STATE = define_stream_state({"users": USERS, "notes": NOTES})


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess() as server:
        yield server


@pytest.fixture
def stream(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Stream]:
    with Client(server.url) as client:
        stream = client.stream(f"state/{abs(hash(request.node.nodeid))}")
        stream.create()
        yield stream


@pytest.fixture(params=["memory", "sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    return str(tmp_path / "state.db") if request.param == "sqlite" else None


def user(number: int, name: str = "Al") -> StateEvent:
    return USERS.insert(User(str(number), name, number))


def append(stream: Stream, *events: StateEvent) -> str:
    return stream.append(encode_events(events)).next_offset


def test_preload_reads_to_the_end_and_then_stays_live(stream: Stream, backend: str | None) -> None:
    append(stream, *map(user, range(5)))
    progress: list[Progress] = []
    with StreamDB(stream, STATE, backend=backend) as db:
        with pytest.raises(StateNotReady, match=r"call preload\(\) first"):
            db.users.get("1")
        db.preload(progress.append)
        assert progress[-1].events == 5
        assert progress[-1].up_to_date
        assert db.users.get("3") == User("3", "Al", 3)
        assert len(db.users) == 5
        append(stream, user(5), USERS.delete("0"))
        wait_until(lambda: "5" in db.users)
        assert list(db.users) == ["1", "2", "3", "4", "5"]
        assert db.status == Status("live")


def test_a_stream_that_is_empty_is_an_empty_state(stream: Stream, backend: str | None) -> None:
    with StreamDB(stream, STATE, backend=backend) as db:
        assert db.preload().users.all() == {}
        assert db.ready


def test_a_file_goes_on_where_it_was_and_reads_nothing_again(
    stream: Stream, tmp_path: Path
) -> None:
    append(stream, user(1))
    with StreamDB(stream, STATE, backend=tmp_path / "s") as db:
        db.preload()
        offset = db.offset
    append(stream, user(2))
    seen: list[StateEvent] = []
    with StreamDB(stream, STATE, backend=tmp_path / "s", hooks=Hooks(on_event=seen.append)) as db:
        assert db.offset == offset
        assert list(db.users) == ["1"], "what was saved can be read before the stream is"
        db.preload()
        assert list(db.users) == ["1", "2"]
    assert [event.key for event in seen if is_change_event(event)] == ["2"]


def test_a_file_of_another_stream_is_refused(stream: Stream, tmp_path: Path) -> None:
    with StreamDB(stream, STATE, backend=tmp_path / "s") as db:
        db.preload()
    other = stream.client.stream("state/other")
    other.create()
    with (
        StreamDB(other, STATE, backend=tmp_path / "s") as db,
        pytest.raises(StateFileError, match="holds the state of that stream"),
    ):
        db.preload()


def test_a_file_made_by_other_schemas_is_built_anew(stream: Stream, tmp_path: Path) -> None:
    append(stream, user(1), change("insert", "user", "2", {"id": 2}))
    with StreamDB(stream, STATE, backend=tmp_path / "s") as db:
        assert list(db.preload().users) == ["1"]
    loose = define_stream_state({"users": collection(dict, type="user")})
    with StreamDB(stream, loose, backend=tmp_path / "s") as db:
        assert list(db.preload().users) == ["1", "2"]
        assert db.quarantined() == []


def test_where_filters_orders_limits_and_uses_an_index(stream: Stream, backend: str | None) -> None:
    append(stream, *(user(n, "AB"[n % 2]) for n in range(6)), NOTES.insert("a", key="n"))
    with StreamDB(stream, STATE, backend=backend) as db:
        db.preload()
        assert [each.id for each in db.users.where(name="B")] == ["1", "3", "5"]
        old = db.users.where(field("age") >= 2, name="A", order_by="-age", limit=1)
        assert [each.id for each in old] == ["4"]
        either = (field("age") == 1) | ~(field("name") == "A") & (field("age") > 4)
        assert [each.id for each in db.users.where(either)] == ["1", "5"]
        assert db.users.where(lambda each: each.age > 4) == [User("5", "B", 5)]
        assert db.notes.all() == {"n": "a"}


def test_changes_are_told_as_they_commit(stream: Stream, backend: str | None) -> None:
    append(stream, user(1))
    told: list[Any] = []
    offsets: list[str] = []
    with StreamDB(stream, STATE, backend=backend, hooks=Hooks(on_batch=offsets.append)) as db:
        db.preload()
        unsubscribe = db.users.subscribe(
            lambda changes: told.append([(c.operation, c.key, c.old, c.new) for c in changes])
        )
        append(stream, user(1, "Bo"), user(2), NOTES.insert(1, key="n"))
        wait_until(lambda: len(told) == 1)
        assert told.pop() == [
            ("update", "1", User("1", "Al", 1), User("1", "Bo", 1)),
            ("insert", "2", None, User("2", "Al", 2)),
        ]
        end = append(stream, control("reset"), user(2))
        wait_until(lambda: len(told) == 1)
        assert told.pop() == [("delete", "1", User("1", "Bo", 1), None)]
        assert db.epoch == 1
        wait_until(lambda: offsets[-1] == end)
        unsubscribe()
        append(stream, user(3))
        wait_until(lambda: "3" in db.users)
        assert told == []


def test_a_callback_that_raises_is_logged_and_the_database_goes_on(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    with StreamDB(stream, STATE) as db:
        db.preload()
        db.users.subscribe(lambda _: 1 / 0)  # type: ignore[arg-type]  # it raises
        append(stream, user(1))
        append(stream, user(2))
        wait_until(lambda: "2" in db.users)
    assert "ZeroDivisionError" in caplog.text


def test_a_snapshot_is_seen_whole_or_not_at_all(stream: Stream, backend: str | None) -> None:
    append(stream, user(1))
    with StreamDB(stream, STATE, backend=backend) as db:
        db.preload()
        seen: set[tuple[str, ...]] = set()
        done = threading.Event()

        def watch() -> None:
            while not done.is_set():
                seen.add(tuple(db.users))

        watcher = threading.Thread(target=watch)
        watcher.start()
        append(stream, control("snapshot-start"), user(2))
        append(stream, user(3))
        append(stream, user(4), control("snapshot-end"))
        wait_until(lambda: "4" in db.users)
        done.set()
        watcher.join()
        assert seen <= {("1",), ("2", "3", "4")}


def test_a_restart_within_a_snapshot_loses_nothing_of_it(stream: Stream, tmp_path: Path) -> None:
    append(stream, user(1), control("snapshot-start"), user(2))
    with StreamDB(stream, STATE, backend=tmp_path / "s") as db:
        assert list(db.preload().users) == ["1"]
    append(stream, user(3), control("snapshot-end"))
    with StreamDB(stream, STATE, backend=tmp_path / "s") as db:
        assert list(db.preload().users) == ["2", "3"]


def test_what_does_not_fit_is_kept_aside_with_reason_and_offset(
    stream: Stream, backend: str | None
) -> None:
    append(stream, user(1))
    append(stream, user(2), change("update", "user", "1", {"id": "1"}), NOTES.insert(1, key="n"))
    stream.append(b'{"no":"event"}')
    with StreamDB(stream, STATE, backend=backend) as db:
        db.preload()
        assert db.users.get("1") == User("1", "Al", 1), "the last value that fits stays"
        (kept,) = db.users.quarantined()
        assert "missing required field `name`" in kept.reason
        (item, _) = next(stream.read(kept.position).items_with_offsets())
        assert item == json.loads(kept.message), "the position leads to the message"
        assert [each.type for each in db.quarantined()] == ["user", ""]
        assert db.notes.get("n") == 1


def test_a_collection_that_stops_says_so_and_others_go_on(
    stream: Stream, backend: str | None
) -> None:
    strict = define_stream_state(
        {"users": collection(User, type="user", on_invalid="stop"), "notes": NOTES}
    )
    append(stream, user(1), change("insert", "user", "2", 5), user(3), NOTES.insert(1, key="n"))
    with StreamDB(stream, strict, backend=backend) as db:
        db.preload()
        with pytest.raises(CollectionStopped, match="'user' stopped at -1,1"):
            db.users.all()
        assert db.notes.get("n") == 1
        append(stream, control("reset"), user(4))
        wait_until(lambda: db.epoch == 1)
        assert list(db.users) == ["4"]


def test_transactions_are_awaited(stream: Stream, backend: str | None) -> None:
    with StreamDB(stream, STATE, backend=backend) as db:
        db.preload()
        append(stream, USERS.insert(User("1", "Al"), txid="tx"))
        db.await_txid("tx", timeout=PATIENCE_SECONDS)
        assert "1" in db.users
        db.await_txid("tx", timeout=PATIENCE_SECONDS)
        with pytest.raises(TxidTimeout, match=r"'other' was not seen within 0\.05 seconds"):
            db.await_txid("other", timeout=0.05)


def test_an_action_is_seen_at_once_and_confirmed(stream: Stream, backend: str | None) -> None:
    append(stream, user(1))
    told: list[Any] = []
    with StreamDB(stream, STATE, backend=backend) as db:
        db.preload()
        db.users.subscribe(lambda changes: told.append([(c.operation, c.key) for c in changes]))

        def send(events: list[Any]) -> None:
            assert list(db.users) == ["2"], "shown before it is appended"
            assert [each.id for each in db.users.where(name="Bo")] == ["2"]
            assert len(db.users) == 1
            append(stream, *events)

        db.act(USERS.insert(User("2", "Bo")), USERS.delete("1"), send=send)
        assert list(db.users) == ["2"]
    assert told == [[("delete", "1"), ("insert", "2")]], "confirming changes nothing that is seen"


def test_an_action_that_fails_is_rolled_back(stream: Stream, backend: str | None) -> None:
    append(stream, user(1))
    with StreamDB(stream, STATE, backend=backend) as db:
        db.preload()

        def fail(_: Any) -> None:
            raise ConnectionError("no")

        with pytest.raises(ConnectionError):
            db.act(USERS.update(User("1", "Bo")), send=fail)
        assert db.users.get("1") == User("1", "Al", 1)
        with pytest.raises(TxidTimeout):
            db.act(USERS.delete("1"), send=lambda _: None, timeout=0.05)
        assert list(db.users) == ["1"]
        with pytest.raises(StateError, match="at least one event"):
            db.act()


def test_the_state_as_of_an_earlier_offset(stream: Stream, backend: str | None) -> None:
    offsets = ["-1", *(append(stream, user(n), user(n, "Bo")) for n in range(4))]
    reset = append(stream, control("reset"))
    append(stream, user(9))
    with StreamDB(stream, STATE, backend=backend) as db:
        db.preload()
        for count, offset in enumerate(offsets):
            past = db.as_of(offset)
            assert list(past.users) == [str(n) for n in range(count)]
        assert db.as_of(f"{offsets[2]},1").users.get("2") == User("2", "Al", 2)
        assert db.as_of("-1,3").users.get("1") == User("1", "Al", 1)
        assert list(db.as_of(reset).users) == []
        assert db.as_of("now").users.all() == db.users.all()
        with pytest.raises(StateError, match="before"):
            db.as_of("9999999999999999_9999999999999999")


def test_the_streams_end_is_told(stream: Stream, backend: str | None) -> None:
    append(stream, user(1))
    told: list[Status] = []
    with StreamDB(stream, STATE, backend=backend, hooks=Hooks(on_status=told.append)) as db:
        db.preload()
        stream.close(encode_events([user(2)]))
        wait_until(lambda: db.status.ended)
        assert [each.condition for each in told] == ["loading", "live", "closed"]
        assert list(db.users) == ["1", "2"]
        with pytest.raises(StateStopped, match="it is closed"):
            db.await_txid("never", timeout=PATIENCE_SECONDS)


def test_a_closed_stream_can_be_loaded(stream: Stream, backend: str | None) -> None:
    stream.close(encode_events([user(1)]))
    with StreamDB(stream, STATE, backend=backend) as db:
        assert list(db.preload().users) == ["1"]


def test_a_stream_that_is_deleted_is_told(stream: Stream) -> None:
    append(stream, user(1))
    with StreamDB(stream, STATE) as db:
        db.preload()
        stream.delete()
        wait_until(lambda: db.status.ended)
        assert db.status.condition == "deleted"
        assert list(db.users) == ["1"], "what is there can still be read"
    with StreamDB(stream, STATE) as db, pytest.raises(StreamNotFound):
        db.preload()


def test_a_stream_that_is_recreated_is_told_and_restart_loads_it(
    stream: Stream, tmp_path: Path
) -> None:
    append(stream, user(1))
    with StreamDB(stream, STATE, backend=tmp_path / "s") as db:
        db.preload()
    stream.delete()
    stream.create()
    append(stream, user(2))
    with StreamDB(stream, STATE, backend=tmp_path / "s") as db:
        with pytest.raises(StreamRecreated):
            db.preload()
        assert list(db.users) == ["1"]
        assert list(db.restart().users) == ["2"]


def test_a_stream_of_other_data_is_refused(server: ServerProcess) -> None:
    with Client(server.url) as client:
        stream = client.stream("state/text")
        stream.create(content_type="text/plain")
        with StreamDB(stream) as db, pytest.raises(StateError, match="application/json"):
            db.preload()


def test_closing_ends_whoever_waits(stream: Stream) -> None:
    db = StreamDB(stream, STATE)
    db.preload()
    failed: list[BaseException] = []

    def wait() -> None:
        try:
            db.await_txid("never", timeout=PATIENCE_SECONDS)
        except StateStopped as error:
            failed.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    # Chance only: most likely it waits by now, and it is told the same where it comes too late.
    time.sleep(0.05)
    db.close()
    db.close()
    waiting.join(PATIENCE_SECONDS)
    assert len(failed) == 1
    with pytest.raises(StateStopped, match="it was closed"):
        db.preload()


def test_without_schemas_every_type_is_a_collection(stream: Stream) -> None:
    append(stream, change("insert", "a", "1", None), change("insert", "b", "1", [1]))
    with StreamDB(stream) as db:
        db.preload()
        assert {name: each.all() for name, each in db.collections.items()} == {
            "a": {"1": None},
            "b": {"1": [1]},
        }


def test_types_without_a_collection_are_counted(stream: Stream) -> None:
    append(stream, change("insert", "a", "1", None), user(1))
    with StreamDB(stream, STATE) as db:
        assert db.preload().dropped == 1
        with pytest.raises(AttributeError, match="there is no collection 'nothing'"):
            _ = db.nothing


def test_the_asynchronous_database_does_the_same(stream: Stream, backend: str | None) -> None:
    append(stream, user(1))
    first = append(stream, user(2))
    append(stream, USERS.delete("1"))

    async def scenario() -> None:
        async with AsyncClient(stream.client.base_url) as client:
            told: list[Any] = []
            async with AsyncStreamDB(client.stream(stream.url), STATE, backend=backend) as db:
                await db.preload()
                assert list(db.users) == ["2"]
                db.users.subscribe(lambda changes: told.extend(c.key for c in changes))
                await db.act(USERS.insert(User("3", "Bo")))
                assert list(db.users) == ["2", "3"]
                assert told == ["3"]

                async def fail(_: Any) -> None:
                    raise ConnectionError("no")

                with pytest.raises(ConnectionError):
                    await db.act(USERS.delete("3"), send=fail)
                assert list(db.users) == ["2", "3"]
                with pytest.raises(TxidTimeout):
                    await db.await_txid("never", timeout=0.05)
                assert list((await db.as_of(first)).users) == ["1", "2"]
                await client.stream(stream.url).close()
                await until(lambda: db.status.ended)
                assert db.status.condition == "closed"

    asyncio.run(scenario())


def test_the_asynchronous_database_restarts_and_tells_what_is_gone(stream: Stream) -> None:
    append(stream, user(1))

    async def scenario() -> None:
        async with AsyncClient(stream.client.base_url) as client:
            async with AsyncStreamDB(client.stream(stream.url), STATE) as db:
                await db.preload()
                await db.restart()
                assert list(db.users) == ["1"]
            async with AsyncStreamDB(client.stream("state/missing"), STATE) as db:
                with pytest.raises(StreamNotFound):
                    await db.preload()

    asyncio.run(scenario())
