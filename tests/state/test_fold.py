"""What a fold makes of a batch: what it keeps, passes over, and says of it."""

import json
from typing import Any

import msgspec
import pytest

from headwater.state import MemoryBackend, StreamState, collection, define_stream_state
from headwater.state.backend import Quarantined, Saved
from headwater.state.fold import Fold, Incoming, MalformedPolicy, Notice
from headwater.state.schemas import DROP, Policy

REASON = "Expected `str`, got `int` - at `$.name`"


class User(msgspec.Struct):
    name: str


def user(key: str, name: object = "Al", **headers: str) -> dict[str, Any]:
    return {
        "type": "user",
        "key": key,
        "value": {"name": name},
        "headers": {"operation": "insert", **headers},
    }


def batch(*messages: object, start: str = "-1", offset: str = "9") -> Incoming:
    return Incoming(json.dumps(messages).encode(), start, offset)


def users(on_invalid: Policy, keys: str | None = None) -> StreamState:
    definition = collection(User, type="user", on_invalid=on_invalid, keys=keys)
    return define_stream_state({"users": definition})


def fold(state: StreamState | None = None, malformed: MalformedPolicy = "quarantine") -> Fold:
    return Fold(Saved(), state, malformed=malformed)


def rows(backend: MemoryBackend) -> dict[str, Any]:
    return {key: json.loads(data) for key, data in backend.rows("user")}


def test_a_value_that_does_not_fit_is_quarantined_with_all_that_is_known_of_it() -> None:
    ours = fold(users("quarantine"))
    bad = user("2", 5, txid="t")
    ours.take(batch(user("1"), bad))
    (kept,) = ours.work().quarantined
    assert kept == Quarantined("-1,1", REASON, "user", "2", kept.message)
    assert json.loads(kept.message) == bad


def test_values_that_are_dropped_are_counted() -> None:
    ours = fold(users("drop"))
    ours.take(batch(user("1", 5), user("2"), user("3", 5)))
    assert (ours.work().saved.dropped, ours.work().quarantined) == (2, [])


def test_a_collection_that_stops_says_where_and_why() -> None:
    ours = fold(users("stop"))
    taken = ours.take(batch(user("1"), user("2", 5), user("3", 5)))
    assert taken.notices == [Notice("stopped", "-1,1", f"user: {REASON}")]
    assert ours.work().saved.stopped == {"user": ("-1,1", f"'2' does not fit: {REASON}")}


@pytest.mark.parametrize(
    ("message", "reason"), [({"a": 1}, "headers: is missing"), (5, "must be a JSON object")]
)
def test_a_message_that_is_no_event_is_quarantined_without_type_or_key(
    message: object, reason: str
) -> None:
    ours = fold()
    ours.take(batch(user("1"), message))
    (kept,) = ours.work().quarantined
    assert kept == Quarantined("-1,1", reason, "", "", json.dumps(message).encode())


def test_messages_that_are_no_events_are_counted_where_they_are_dropped() -> None:
    ours = fold(malformed="drop")
    ours.take(batch({"a": 1}, user("1"), 5))
    assert (ours.work().saved.dropped, ours.work().quarantined) == (2, [])


def test_a_fallback_is_given_the_value_and_the_reason() -> None:
    seen: list[tuple[Any, str]] = []

    def fallback(value: Any, reason: str) -> Any:
        seen.append((value, reason))
        return DROP

    fold(users(fallback)).take(batch(user("1", 5)))
    assert seen == [({"name": 5}, REASON)]


def test_a_fallbacks_value_takes_the_place_of_what_does_not_fit() -> None:
    backend = MemoryBackend()
    ours = Fold(backend.load(), users(lambda value, _: User(str(value["name"])), keys=r"\d+"))
    ours.take(batch(user("1", 5)))
    backend.commit(ours.work())
    assert rows(backend) == {"1": {"name": "5"}}
    assert (ours.work().saved.dropped, ours.work().quarantined) == (0, [])


def test_what_a_fallback_drops_is_counted_and_leaves_the_entity_as_it_was() -> None:
    ours = fold(users(lambda *_: DROP))
    ours.take(batch(user("1"), user("1", 5), user("2", 6)))
    work = ours.work()
    assert {key: json.loads(data or b"null") for key, data in work.changes["user"].items()} == {
        "1": {"name": "Al"}
    }
    assert (work.saved.dropped, work.quarantined) == (2, [])


@pytest.mark.parametrize("wrong", [{"name": 7}, User(7)])  # type: ignore[arg-type]  # that is the point
def test_a_fallback_that_is_no_better_is_quarantined_with_both_reasons(wrong: object) -> None:
    ours = fold(users(lambda *_: wrong))
    bad = user("2", 5)
    ours.take(batch(user("1"), bad))
    (kept,) = ours.work().quarantined
    text = f"{REASON}; the fallback's value does not fit: {REASON}"
    assert kept == Quarantined("-1,1", text, "user", "2", kept.message)
    assert json.loads(kept.message) == bad
    assert list(ours.work().changes["user"]) == ["1"]


def test_a_fallback_that_gives_no_json_value_is_quarantined() -> None:
    ours = fold(users(lambda *_: object()))
    ours.take(batch(user("2", 5)))
    (kept,) = ours.work().quarantined
    assert "the fallback's value does not fit: it is not a JSON value" in kept.reason


def control(name: str) -> dict[str, Any]:
    return {"headers": {"control": name}}


START, END = control("snapshot-start"), control("snapshot-end")


def test_a_reset_empties_the_rows_what_is_staged_and_what_is_quarantined() -> None:
    ours = fold()
    ours.take(batch(user("1"), {"a": 1}, START, user("2"), control("reset")))
    work = ours.work()
    assert (work.base, work.changes, work.staged_base, work.staged) == ("empty", {}, "empty", {})
    assert (work.forget_quarantined, work.quarantined) == (True, [])
    assert not work.saved.snapshot_open


def test_every_reset_begins_an_epoch_of_its_own() -> None:
    ours = fold()
    taken = ours.take(batch(control("reset"), user("1"), control("reset")))
    assert ours.work().saved.epoch == 2
    assert taken.notices == [
        Notice("epoch", "-1", "epoch 1 has begun"),
        Notice("epoch", "-1,2", "epoch 2 has begun"),
    ]


@pytest.mark.parametrize(
    ("messages", "notices"),
    [
        ((START, user("1"), END), [("snapshot", "-1,2")]),
        ((user("1"), END), [("unmatched-snapshot-end", "-1,1")]),
        ((START, user("1"), START), [("abandoned-snapshot", "-1,2")]),
    ],
)
def test_a_snapshots_end_or_the_lack_of_it_is_noticed(
    messages: tuple[object, ...], notices: list[tuple[str, str]]
) -> None:
    taken = fold().take(batch(*messages))
    assert [(notice.kind, notice.position) for notice in taken.notices] == notices
    assert all("snapshot" in notice.text for notice in taken.notices)


def after(*batches: tuple[object, ...]) -> dict[str, Any]:
    """Take batches, each of them committed by itself."""
    backend = MemoryBackend()
    for number, messages in enumerate(batches):
        ours = Fold(backend.load())
        ours.take(batch(*messages, start=ours.offset, offset=str(number)))
        backend.commit(ours.work())
    return rows(backend)


def test_a_snapshot_may_end_in_a_later_batch() -> None:
    assert list(after((user("1"), START, user("2")), (user("3"), END))) == ["2", "3"]


def test_a_snapshot_begun_again_forgets_what_an_earlier_batch_had_staged() -> None:
    assert list(after((START, user("1")), (START, user("2"), END))) == ["2"]
    assert list(after((START, user("1")), (START, user("2")), (END,))) == ["2"]


def test_transactions_before_a_snapshot_and_within_it_are_seen_with_its_end() -> None:
    taken = fold().take(batch(user("1", txid="a"), START, user("2", txid="b"), END))
    assert taken.txids == ["a", "b"]


def test_what_follows_a_stop_is_not_applied_and_other_types_are() -> None:
    other = {**user("1"), "type": "other"}
    state = define_stream_state(
        {"users": collection(User, type="user", on_invalid="stop"), "all": collection(type="other")}
    )
    ours = fold(state)
    ours.take(batch(user("1"), user("2", 5), user("3"), other))
    ours.take(batch(user("4"), start="9", offset="10"))
    changes = ours.work().changes
    assert {name: list(entities) for name, entities in changes.items()} == {
        "user": ["1"],
        "other": ["1"],
    }


def test_types_without_a_collection_are_counted_and_what_follows_is_applied() -> None:
    ours = fold(users("drop"))
    other = {**user("1"), "type": "other"}
    ours.take(batch(other, user("1"), other, user("2")))
    work = ours.work()
    assert work.saved.dropped == 2
    assert list(work.changes["user"]) == ["1", "2"]


def test_a_batch_that_was_taken_before_is_a_duplicate_and_changes_nothing() -> None:
    ours = fold()
    first, second = batch(user("1"), offset="5"), batch(user("1", "Bo"), start="5", offset="9")
    ours.take(first)
    ours.take(second)
    before = ours.work()
    again = ours.take(first)
    assert (again.duplicate, again.events) == (True, 0)
    assert ours.work() == before
    assert ours.offset == "9"


def test_an_empty_batch_at_the_tail_is_none_that_was_taken_before() -> None:
    ours = fold()
    ours.take(batch(user("1"), offset="5"))
    taken = ours.take(Incoming(b"[]", "5", "5", up_to_date=True))
    assert not taken.duplicate
    assert ours.work().saved.complete


def test_a_state_that_was_complete_once_stays_so() -> None:
    ours = Fold(Saved(offset="5", complete=True))
    ours.take(batch(user("1"), start="5"))
    assert ours.work().saved.complete
    ours = fold()
    ours.take(Incoming(b"[]", "-1", "5", up_to_date=True))
    ours.take(batch(user("1"), start="5"))
    assert ours.work().saved.complete


def test_events_and_transactions_add_up_until_they_are_committed() -> None:
    ours = fold()
    ours.take(batch(user("1", txid="a"), user("2"), offset="5"))
    taken = ours.take(batch(user("3", txid="b"), start="5", offset="9"))
    assert (taken.events, taken.txids) == (1, ["b"])
    assert (ours.pending_events, ours.pending_txids) == (3, ["a", "b"])
    assert ours.committed(ours.work()) == ["a", "b"]
    assert (ours.pending_events, ours.pending_txids) == (0, [])


def test_transactions_of_a_snapshot_wait_for_its_end_in_a_later_batch() -> None:
    ours = fold()
    assert ours.take(batch(START, user("1", txid="a"), offset="5")).txids == []
    assert ours.take(batch(user("2", txid="b"), start="5", offset="7")).txids == []
    last = batch(END, user("3", txid="c"), start="7", offset="9")
    assert ours.take(last).txids == ["a", "b", "c"]


def test_there_is_news_until_it_is_committed() -> None:
    ours = fold()
    assert not ours.has_news
    for incoming in (
        batch(user("1"), offset="5"),
        batch(start="5", offset="7"),
        Incoming(b"[]", "7", "7", up_to_date=True),
        batch(user("2"), start="7", offset="7"),
    ):
        ours.take(incoming)
        assert ours.has_news
        ours.committed(ours.work())
        assert not ours.has_news


def test_what_is_committed_says_where_the_state_stands() -> None:
    state = users("drop")
    saved = Saved("http://s", "i1", "before", "5", epoch=2, complete=True, dropped=3)
    ours = Fold(saved, state)
    ours.take(batch(user("1"), user("2", 5), start="5"))
    expected = Saved("http://s", "i1", state.fingerprint, "9", epoch=2, complete=True, dropped=4)
    assert ours.work().saved == expected
    named = ours.work(stream="http://t", incarnation="i2").saved
    assert (named.stream, named.incarnation) == ("http://t", "i2")
    assert fold().work().saved.fingerprint == ""


def test_changes_alone_keep_the_rows_what_is_staged_and_what_is_quarantined() -> None:
    ours = fold()
    ours.take(batch(user("1")))
    work = ours.work()
    assert (work.base, work.staged_base, work.forget_quarantined) == ("keep", "keep", False)


def test_messages_that_were_skipped_count_in_positions_and_in_no_sum() -> None:
    ours = fold()
    taken = ours.take(Incoming(json.dumps([user("1"), {"a": 1}]).encode(), "-1", "9", skipped=3))
    assert taken.events == 2
    assert [kept.position for kept in ours.work().quarantined] == ["-1,4"]


def test_positions_go_on_through_a_batch_that_is_read_in_pieces() -> None:
    good, bad = json.dumps(user("1", "x" * 100)), '{"a":1}'
    texts = [bad if place % 1000 == 7 else good for place in range(5000)]
    ours = fold()
    data = "[" + ",\n".join(texts) + "]"
    taken = ours.take(Incoming(data.encode(), "-1", "9"))
    assert taken.events == 5000
    positions = [kept.position for kept in ours.work().quarantined]
    assert positions == ["-1,7", "-1,1007", "-1,2007", "-1,3007", "-1,4007"]


def test_a_snapshot_begins_with_nothing_or_with_what_was_staged_before() -> None:
    ours = fold()
    ours.take(batch(user("1"), START, user("2"), offset="5"))
    work = ours.work()
    assert (work.base, list(work.changes["user"])) == ("keep", ["1"])
    assert (work.staged_base, list(work.staged["user"])) == ("empty", ["2"])
    ours.take(batch(END, start="5", offset="7"))
    work = ours.work()
    assert (work.base, list(work.changes["user"])) == ("empty", ["2"])
    assert (work.staged_base, work.staged) == ("empty", {})


def test_what_was_staged_by_an_earlier_commit_becomes_the_rows() -> None:
    ours = Fold(Saved(offset="5", snapshot_open=True))
    ours.take(batch(user("2"), END, start="5"))
    work = ours.work()
    assert (work.base, list(work.changes["user"])) == ("staged", ["2"])
    assert (work.staged_base, work.staged) == ("empty", {})
