"""Every normative sentence of the State Protocol 0.1 that 1.0 does not repeat, by its section."""

import json
import logging
from typing import Any

import pytest

from headwater.errors import InvalidEvent, SchemaError
from headwater.state import (
    ControlEvent,
    MaterializedState,
    Violation,
    change,
    check,
    collection,
    control,
    define_stream_state,
    encode_events,
    new_epoch,
)
from headwater.state.backend import Saved
from headwater.state.engine import Engine, Hooks
from headwater.state.fold import Fold, Incoming
from headwater.state.memory import MemoryBackend


def incoming(
    *events: Any, start: str = "-1", offset: str = "5", up_to_date: bool = True
) -> Incoming:
    return Incoming(encode_events(events), start, offset, up_to_date)


def engine_over(*batches: Incoming, **options: Any) -> Engine:
    engine = Engine(
        options.get("state"), MemoryBackend(), options.get("hooks", Hooks()), "quarantine"
    )
    for batch in batches:
        engine.tell(engine.take(batch))
    return engine


def rows(engine: Engine, type_: str = "t") -> dict[str, Any]:
    return {key: json.loads(data) for key, data in engine.view.rows(type_)}


def test_4_every_item_must_be_a_state_event() -> None:
    for item in (b"1", b"null", b"{}", b'{"headers":null}'):
        assert isinstance(check(item), Violation)


def test_4_1_1_insert_and_update_both_set_the_value_whatever_was_there() -> None:
    state = MaterializedState()
    state.apply(change("update", "t", "missing", 1))
    state.apply(change("insert", "t", "there", 1))
    state.apply(change("insert", "t", "there", 2))
    state.apply(change("upsert", "t", "either", 3))
    assert dict(state.get_type("t")) == {"missing": 1, "there": 2, "either": 3}


def test_4_1_1_delete_of_what_is_not_there_changes_nothing() -> None:
    state = MaterializedState()
    state.apply(change("delete", "t", "k"))
    assert state.type_count == 0


def test_4_1_2_materializers_must_ignore_the_value_of_a_delete() -> None:
    state = MaterializedState()
    state.apply_batch([change("insert", "t", "k", 1), change("delete", "t", "k", {"any": "value"})])
    assert ("t", "k") not in state


def test_4_1_2_a_missing_value_is_an_error_and_leaves_the_state_as_it_was() -> None:
    state = MaterializedState()
    state.apply(change("insert", "t", "k", 1))
    with pytest.raises(InvalidEvent, match="value is missing, and update sets it"):
        state.apply(change("update", "t", "k"))
    assert state.get("t", "k") == 1


@pytest.mark.parametrize("old_value", [None, 1, "wrong", {"never": "was"}])
def test_4_1_3_materializers_must_not_depend_on_old_value(old_value: Any) -> None:
    state = MaterializedState()
    state.apply(change("insert", "t", "k", 1))
    state.apply(change("update", "t", "k", 2, old_value=old_value))
    assert state.get("t", "k") == 2


def test_4_1_4_later_events_must_override_earlier_ones_across_batches() -> None:
    engine = engine_over(
        incoming(change("insert", "t", "k", 1), change("update", "t", "k", 2)),
        incoming(change("update", "t", "k", 3), start="5", offset="6"),
    )
    assert rows(engine) == {"k": 3}


def test_4_1_5_a_batch_that_comes_twice_is_applied_once() -> None:
    first = incoming(change("insert", "t", "k", 1))
    second = incoming(control("reset"), change("insert", "t", "k", 2), start="5", offset="6")
    engine = engine_over(first, second, first, second)
    assert rows(engine) == {"k": 2}
    assert engine.saved.epoch == 1
    assert engine.saved.offset == "6"


def test_4_1_6_timestamps_must_not_derive_ordering() -> None:
    engine = engine_over(
        incoming(
            change("insert", "t", "k", "first", timestamp="2030-01-01T00:00:00Z"),
            change("update", "t", "k", "second", timestamp="2020-01-01T00:00:00Z"),
        )
    )
    assert rows(engine) == {"k": "second"}


def test_4_2_an_event_with_both_discriminants_is_neither() -> None:
    outcome = check(
        {
            "type": "t",
            "key": "k",
            "value": 1,
            "headers": {"operation": "insert", "control": "reset"},
        }
    )
    assert outcome == Violation("headers", "has both an operation and a control, so it is neither")


@pytest.mark.parametrize("kind", ["up-to-date", "snapshot-start", "snapshot-end", "reset"])
def test_4_2_an_event_with_a_control_must_be_treated_as_one(kind: str) -> None:
    assert isinstance(check({"headers": {"control": kind}}), ControlEvent)


def test_4_2_1_there_may_be_several_snapshots() -> None:
    engine = engine_over(
        incoming(
            control("snapshot-start"),
            change("insert", "t", "a", 1),
            control("snapshot-end"),
            change("insert", "t", "b", 2),
            control("snapshot-start"),
            change("insert", "t", "c", 3),
            control("snapshot-end"),
            change("insert", "t", "d", 4),
        )
    )
    assert rows(engine) == {"c": 3, "d": 4}


def test_4_2_1_readers_see_the_old_state_until_the_snapshot_ends_in_a_later_batch() -> None:
    engine = engine_over(
        incoming(change("insert", "t", "old", 1)),
        incoming(control("snapshot-start"), change("insert", "t", "a", 1), start="5", offset="6"),
        incoming(change("insert", "t", "b", 2), start="6", offset="7"),
    )
    assert rows(engine) == {"old": 1}
    engine.tell(engine.take(incoming(control("snapshot-end"), start="7", offset="8")))
    assert rows(engine) == {"a": 1, "b": 2}


def test_4_2_2_a_snapshot_that_begins_within_another_replaces_it_and_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    notices: list[Any] = []
    engine = engine_over(
        incoming(
            change("insert", "t", "old", 1),
            control("snapshot-start"),
            change("insert", "t", "half", 1),
            control("snapshot-start"),
            change("insert", "t", "whole", 1),
        ),
        incoming(control("snapshot-end"), start="5", offset="6"),
        hooks=Hooks(on_notice=notices.append),
    )
    assert rows(engine) == {"whole": 1}
    assert [each.kind for each in notices] == ["abandoned-snapshot", "snapshot"]
    assert notices[0].position == "-1,3"


def test_4_2_2_an_end_without_a_start_should_warn_and_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "headwater.state"):
        engine = engine_over(incoming(control("snapshot-end"), change("insert", "t", "k", 1)))
    assert "a snapshot ended that had not begun" in caplog.text
    assert rows(engine) == {"k": 1}


def test_4_2_3_up_to_date_leaves_the_state_alone() -> None:
    engine = engine_over(incoming(change("insert", "t", "k", 1), control("up-to-date")))
    assert rows(engine) == {"k": 1}
    assert engine.quarantined() == []


def test_4_2_4_reset_applies_to_all_before_it_and_begins_an_epoch() -> None:
    notices: list[Any] = []
    engine = engine_over(
        incoming(change("insert", "t", "a", 1)),
        incoming(
            change("insert", "t", "b", 1),
            control("reset"),
            change("insert", "t", "c", 1),
            start="5",
            offset="6",
        ),
        hooks=Hooks(on_notice=notices.append),
    )
    assert rows(engine) == {"c": 1}
    assert engine.saved.epoch == 1
    assert [(each.kind, each.position) for each in notices] == [("epoch", "5,1")]


def test_4_2_4_reset_forgets_an_open_snapshot() -> None:
    engine = engine_over(
        incoming(control("snapshot-start"), change("insert", "t", "a", 1)),
        incoming(control("reset"), change("insert", "t", "b", 1), start="5", offset="6"),
        incoming(control("snapshot-end"), start="6", offset="7"),
    )
    assert rows(engine) == {"b": 1}


def test_4_2_5_an_offset_is_informative_and_moves_nothing() -> None:
    engine = engine_over(
        incoming(
            change("insert", "t", "a", 1),
            control("reset", offset="0"),
            change("insert", "t", "b", 1),
        )
    )
    assert rows(engine) == {"b": 1}
    assert engine.saved.offset == "5"


def test_6_1_apply_accepts_changes_of_every_operation() -> None:
    state = MaterializedState()
    for operation in ("insert", "update", "upsert"):
        state.apply(change(operation, "t", operation, operation))
    assert dict(state.get_type("t")) == {each: each for each in ("insert", "update", "upsert")}


def test_6_2_apply_batch_must_equal_applying_one_by_one() -> None:
    events = [change("insert", "t", str(n % 3), n) for n in range(10)] + [
        change("delete", "t", "1")
    ]
    together, alone = MaterializedState(), MaterializedState()
    together.apply_batch(events)
    for event in events:
        alone.apply(event)
    assert dict(together.get_type("t")) == dict(alone.get_type("t")) == {"0": 9, "2": 8}


def test_6_3_get_must_return_the_value_or_say_that_there_is_none() -> None:
    state = MaterializedState()
    state.apply(change("insert", "t", "null", None))
    nothing = object()
    assert state.get("t", "null", nothing) is None
    assert state.get("t", "k", nothing) is nothing
    assert state.get("u", "k", nothing) is nothing


def test_6_4_get_type_must_give_all_pairs_of_a_type_and_follows_the_state() -> None:
    state = MaterializedState()
    pairs = state.get_type("t")
    assert dict(pairs) == {}
    state.apply(change("insert", "t", "a", [1]))
    state.apply(change("insert", "u", "b", 2))
    assert dict(pairs) == {"a": [1]}


def test_6_what_is_added_respects_the_semantics() -> None:
    state = MaterializedState()
    state.apply_batch([change("insert", "t", "a", 1), change("insert", "u", "a", 2)])
    assert (state.types, state.type_count, len(state)) == (["t", "u"], 2, 2)
    state.clear()
    assert (state.types, state.type_count, len(state)) == ([], 0, 0)


def test_7_1_a_type_must_have_at_most_one_schema() -> None:
    with pytest.raises(SchemaError, match="'user' has two schemas, in 'users' and 'people'"):
        define_stream_state({"users": collection(type="user"), "people": collection(type="user")})


def test_7_3_consumers_must_not_corrupt_their_state_by_invalid_data() -> None:
    for policy in ("drop", "quarantine", lambda _value, _reason: "still no number"):
        state = define_stream_state({"n": collection(int, type="n", on_invalid=policy)})
        engine = engine_over(
            incoming(change("insert", "n", "a", 1), change("update", "n", "a", "one")), state=state
        )
        assert rows(engine, "n") == {"a": 1}


def test_7_4_an_incompatible_schema_is_a_new_epoch() -> None:
    old = define_stream_state({"n": collection(int, type="n", on_invalid="stop")})
    new = define_stream_state({"n": collection(str, type="n", on_invalid="stop")})
    batches = (
        incoming(change("insert", "n", "a", 1)),
        incoming(*new_epoch([new.n.insert("one", key="a")]), start="5", offset="6"),
    )
    assert rows(engine_over(*batches, state=new), "n") == {"a": "one"}
    reader = engine_over(*batches, state=old)
    assert reader.saved.stopped["n"][0] == "5,2"
    assert reader.saved.epoch == 1


def test_9_txid_groups_no_transaction_and_a_value_is_replaced_whole() -> None:
    fold = Fold(Saved())
    taken = fold.take(
        incoming(
            change("insert", "t", "k", {"a": 1, "b": 2}, txid="x"),
            change("update", "t", "k", {"a": 3}, txid="x"),
        )
    )
    assert taken.txids == ["x", "x"]
    assert fold.work().changes == {"t": {"k": b'{"a":3}'}}
