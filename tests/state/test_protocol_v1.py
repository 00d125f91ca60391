"""Every normative sentence of the State Protocol 1.0, by its section."""

import json
from typing import Any

import msgspec
import pytest

from headwater.errors import InvalidEvent, InvalidValue
from headwater.state import (
    ChangeEvent,
    ControlEvent,
    MaterializedState,
    MemoryBackend,
    Violation,
    check,
    collection,
    define_stream_state,
    is_change_event,
    is_control_event,
)
from headwater.state.decoding import decode_batch
from headwater.state.fold import Fold, Incoming
from headwater.state.timestamps import is_timestamp

INSERT: dict[str, Any] = {
    "type": "user",
    "key": "user:123",
    "value": {"name": "Alice", "email": "alice@example.com"},
    "headers": {"operation": "insert", "timestamp": "2025-01-15T10:30:00Z"},
}


def without(event: dict[str, Any], name: str) -> dict[str, Any]:
    return {field: value for field, value in event.items() if field != name}


def with_headers(**headers: Any) -> dict[str, Any]:
    return {**INSERT, "headers": {**INSERT["headers"], **headers}}


def both_ways(message: Any) -> tuple[bool, bool]:
    """Whether a message is an event, to the thorough reader and to the quick one."""
    data = json.dumps(message).encode()
    return not isinstance(check(data), Violation), not decode_batch(b"[" + data + b"]").violations


def refuses(message: Any, field: str) -> None:
    outcome = check(json.dumps(message).encode())
    assert isinstance(outcome, Violation), outcome
    assert outcome.field == field
    assert both_ways(message) == (False, False)


def accepts(message: Any) -> ChangeEvent | ControlEvent:
    assert both_ways(message) == (True, True)
    outcome = check(message)
    assert not isinstance(outcome, Violation)
    return outcome


@pytest.mark.parametrize("field", ["type", "key", "headers"])
def test_4_1_change_messages_must_contain_type_key_and_headers(field: str) -> None:
    refuses(without(INSERT, field), field)


@pytest.mark.parametrize("operation", ["insert", "update", "upsert"])
def test_4_1_insert_and_update_must_contain_a_value(operation: str) -> None:
    event = with_headers(operation=operation)
    refuses(without(event, "value"), "value")
    accepts(event)


@pytest.mark.parametrize("value", [None, 1, "x", {"a": 1}])
def test_4_1_delete_may_contain_a_value(value: Any) -> None:
    accepts({**with_headers(operation="delete"), "value": value})


@pytest.mark.parametrize("old_value", [None, 0, "", [], {"name": "Al"}, False])
def test_4_1_any_change_may_include_an_old_value(old_value: Any) -> None:
    event = accepts({**INSERT, "old_value": old_value})
    assert isinstance(event, ChangeEvent)
    assert event.old_value == old_value


def test_4_1_headers_must_contain_an_operation() -> None:
    refuses({**INSERT, "headers": {}}, "headers")
    refuses({**INSERT, "headers": {"txid": "1"}}, "headers")


def test_4_1_headers_may_contain_txid_and_timestamp_and_others_are_kept() -> None:
    event = accepts(with_headers(txid="tx-1", **{"from": "edge", "offset": 5}))
    assert isinstance(event, ChangeEvent)
    assert event.headers.txid == "tx-1"
    assert event.headers.timestamp == "2025-01-15T10:30:00Z"
    assert event.headers.others == {"from": "edge", "offset": 5}
    assert json.loads(event.encode()) == with_headers(txid="tx-1", **{"from": "edge", "offset": 5})


def test_4_1_1_insert_creates_an_entity() -> None:
    assert state_of(INSERT) == {"user": {"user:123": INSERT["value"]}}


def test_4_1_1_an_inserts_old_value_should_not_be_there_and_changes_nothing() -> None:
    assert state_of({**INSERT, "old_value": {"name": "?"}}) == state_of(INSERT)


def test_4_1_2_update_replaces_an_entity_with_or_without_an_old_value() -> None:
    update = {**with_headers(operation="update"), "value": {"name": "Alice"}}
    assert state_of(INSERT, update) == {"user": {"user:123": {"name": "Alice"}}}
    assert state_of(INSERT, {**update, "old_value": INSERT["value"]}) == state_of(INSERT, update)


@pytest.mark.parametrize("more", [{}, {"value": None}, {"value": {"name": "x"}}])
def test_4_1_3_delete_removes_an_entity_whatever_value_it_has(more: dict[str, Any]) -> None:
    delete = {**without(with_headers(operation="delete"), "value"), **more, "old_value": 1}
    assert state_of(INSERT, delete) == {"user": {}}


def test_4_2_control_messages_must_contain_headers_with_a_control() -> None:
    accepts({"headers": {"control": "reset"}})
    refuses({}, "headers")
    refuses({"headers": {"offset": "1"}}, "headers")


def test_4_2_control_headers_may_contain_an_offset() -> None:
    event = accepts({"headers": {"control": "snapshot-start", "offset": "123456_000"}})
    assert is_control_event(event)
    assert event.headers.offset == "123456_000"
    assert json.loads(event.encode()) == {
        "headers": {"control": "snapshot-start", "offset": "123456_000"}
    }


def test_4_2_1_what_lies_between_snapshot_boundaries_replaces_the_state() -> None:
    other = {**INSERT, "key": "user:9"}
    assert database(INSERT, START, other, END) == {"user": {"user:9": INSERT["value"]}}
    assert database(INSERT, START, other) == {"user": {"user:123": INSERT["value"]}}


def test_4_2_2_reset_clears_the_state_and_what_follows_is_the_new_one() -> None:
    other = {**INSERT, "key": "user:9"}
    reset = {"headers": {"control": "reset", "offset": "123456_000"}}
    assert database(INSERT, reset) == {}
    assert database(INSERT, reset, other) == {"user": {"user:9": INSERT["value"]}}


@pytest.mark.parametrize("message", [1, "x", None, True, [], [INSERT]])
def test_5_1_messages_must_be_json_objects(message: Any) -> None:
    refuses(message, "")


@pytest.mark.parametrize("field", ["type", "key"])
@pytest.mark.parametrize("value", ["", None, 1, {}, ["user"]])
def test_5_1_type_and_key_must_be_non_empty_strings(field: str, value: Any) -> None:
    refuses({**INSERT, field: value}, field)


@pytest.mark.parametrize(
    "value", ["", "x", 0, -1.5, 10**30, True, False, None, [], [1, [2]], {}, {"a": {"b": None}}]
)
def test_5_1_value_is_any_json_value(value: Any) -> None:
    accepts({**INSERT, "value": value})
    assert state_of({**INSERT, "value": value}) == {"user": {"user:123": value}}


def test_5_1_value_must_be_valid_json() -> None:
    for value in (b"nul", b"01", b"'x'", b"[1", b'"\\ud800"', b'"\xff"'):
        data = b'{"type":"t","key":"k","value":' + value + b',"headers":{"operation":"insert"}}'
        assert isinstance(check(data), Violation), value


def test_5_1_a_number_that_no_float_holds_is_json_all_the_same() -> None:
    state = MaterializedState()
    data = b'[{"type":"t","key":"k","value":1e400,"headers":{"operation":"insert"}}]'
    assert state.apply_json(data) == []
    assert state.get("t", "k") == float("inf")


@pytest.mark.parametrize("operation", ["", "INSERT", "replace", None, 1, ["insert"], {}])
def test_5_1_operation_must_be_a_known_one(operation: Any) -> None:
    refuses(with_headers(operation=operation), "headers.operation")


@pytest.mark.parametrize("txid", ["", None, 7, {}])
def test_5_1_txid_must_be_a_non_empty_string_if_present(txid: Any) -> None:
    refuses(with_headers(txid=txid), "headers.txid")


@pytest.mark.parametrize(
    "timestamp",
    [
        "2025-01-15T10:30:00Z",
        "2025-01-15t10:30:00.123456789z",
        "2025-01-15T10:30:00+02:00",
        "2016-12-31T23:59:60Z",
        "2024-02-29T00:00:00-00:00",
        "0000-01-01T00:00:00Z",
    ],
)
def test_5_1_timestamp_may_be_any_rfc_3339_timestamp(timestamp: str) -> None:
    accepts(with_headers(timestamp=timestamp))


@pytest.mark.parametrize(
    "timestamp",
    [
        "",
        "yesterday",
        "2025-01-15",
        "2025-01-15T10:30:00",
        "2025-01-15 10:30:00Z",
        "2025-01-15T10:30:00+0200",
        "2025-01-15T10:30Z",
        "2025-02-29T10:30:00Z",
        "2025-13-01T10:30:00Z",
        "2025-01-15T24:00:00Z",
        "2025-01-15T10:30:61Z",
        "2025-01-15T10:30:00.Z",
        "\uff12025-01-15T10:30:00Z",
        1705312200000,
        None,
    ],
)
def test_5_1_timestamp_must_be_valid_if_present(timestamp: Any) -> None:
    is_timestamp("2025-01-15T10:30:00Z")  # halves that are known must not let others through
    refuses(with_headers(timestamp=timestamp), "headers.timestamp")


@pytest.mark.parametrize("control", ["", "Reset", "truncate", None, 1])
def test_5_2_control_must_be_a_known_one(control: Any) -> None:
    refuses({"headers": {"control": control}}, "headers.control")


@pytest.mark.parametrize("offset", ["", None, 12])
def test_5_2_offset_must_be_an_offset_string_if_present(offset: Any) -> None:
    refuses({"headers": {"control": "reset", "offset": offset}}, "headers.offset")


def test_5_2_a_control_may_carry_what_has_rules_only_in_changes() -> None:
    accepts({"type": "", "key": 5, "headers": {"control": "reset", "txid": "", "timestamp": 1}})


def test_6_messages_are_processed_in_order() -> None:
    events = [{**INSERT, "value": number} for number in range(5)]
    assert state_of(*events) == {"user": {"user:123": 4}}
    assert state_of(*reversed(events)) == {"user": {"user:123": 0}}


def test_6_the_example_materialises_as_written() -> None:
    def event(operation: str, key: str, name: str) -> dict[str, Any]:
        return {
            "type": "user",
            "key": key,
            "value": {"name": name},
            "headers": {"operation": operation},
        }

    assert state_of(
        event("insert", "1", "Alice"),
        event("insert", "2", "Bob"),
        event("update", "1", "Alice Smith"),
    ) == {"user": {"1": {"name": "Alice Smith"}, "2": {"name": "Bob"}}}


class User(msgspec.Struct):
    name: str


def test_7_values_are_validated_before_they_are_materialised() -> None:
    users = define_stream_state({"users": collection(User, type="user", on_invalid="drop")})
    bad = {**INSERT, "key": "2", "value": {"name": 5}}
    assert database(INSERT, bad, state=users) == {"user": {"user:123": INSERT["value"]}}


def test_7_invalid_values_do_not_block_other_types() -> None:
    users = define_stream_state(
        {"users": collection(User, type="user", on_invalid="stop"), "all": collection(type="x")}
    )
    bad = {**INSERT, "value": 5}
    fine = {**INSERT, "type": "x"}
    assert database(bad, fine, state=users) == {"x": {"user:123": INSERT["value"]}}


def test_9_1_malformed_messages_are_rejected_and_said_why() -> None:
    backend = MemoryBackend()
    fold = Fold(backend.load())
    fold.take(Incoming(json.dumps([INSERT, {"a": 1}, INSERT]).encode(), "-1", "7"))
    backend.commit(fold.work())
    (kept,) = backend.quarantined()
    assert (kept.position, kept.reason) == ("-1,1", "headers: is missing")
    assert json.loads(kept.message) == {"a": 1}
    assert backend.count("user") == 1


def test_9_1_malformed_messages_stop_the_database_where_that_is_wanted() -> None:
    fold = Fold(MemoryBackend().load(), malformed="stop")
    with pytest.raises(InvalidEvent, match="at -1,1 is not a state event: headers is missing"):
        fold.take(Incoming(json.dumps([INSERT, {"a": 1}]).encode(), "-1", "7"))
    assert fold.work().changes == {}


def test_9_2_producers_validate_too() -> None:
    with pytest.raises(InvalidValue, match="Expected `str`, got `int`"):
        collection(User, type="user").insert({"name": 5}, key="1")  # type: ignore[arg-type]  # that is the point


def test_9_3_stream_contents_are_untrusted_input() -> None:
    hostile = [
        b"[" * 5000 + b"]" * 5000,
        b'[{"type":"__proto__","key":"__class__","value":1,"headers":{"operation":"insert"}}]',
        b'[{"headers":{"operation":{"operation":"insert"}}}]',
    ]
    state = MaterializedState()
    state.apply_json(hostile[1])
    assert state.get("__proto__", "__class__") == 1
    assert len(decode_batch(hostile[2]).violations) == 1


def test_9_4_types_and_keys_that_are_not_expected_are_kept_out() -> None:
    definition = define_stream_state({"users": collection(type="user", keys=r"user:\d+")})
    other_type = {**INSERT, "type": "admin"}
    other_key = {**INSERT, "key": "../etc"}
    assert database(INSERT, other_type, other_key, state=definition) == {
        "user": {"user:123": INSERT["value"]}
    }
    with pytest.raises(InvalidValue, match="the key does not match"):
        definition.users.insert({}, key="x")


def test_9_5_txids_group_nothing() -> None:
    one = {**with_headers(txid="a"), "key": "1"}
    two = {**with_headers(txid="a"), "key": "2"}
    assert database(one, {"headers": {"control": "up-to-date"}}) == {"user": {"1": INSERT["value"]}}
    assert set(database(one, two)["user"]) == {"1", "2"}


def test_guards_tell_changes_from_controls() -> None:
    change, control = accepts(INSERT), accepts({"headers": {"control": "reset"}})
    assert is_change_event(change)
    assert not is_control_event(change)
    assert is_control_event(control)
    assert not is_change_event(control)


START = {"headers": {"control": "snapshot-start", "offset": "123456_000"}}
END = {"headers": {"control": "snapshot-end", "offset": "123456_789"}}


def state_of(*events: dict[str, Any]) -> dict[str, Any]:
    """Materialise events as they come, and as typed events: both must agree."""
    state, typed = MaterializedState(), MaterializedState()
    assert state.apply_json(json.dumps(events).encode()) == []
    for event in events:
        outcome = check(event)
        assert isinstance(outcome, ChangeEvent)
        typed.apply(outcome)
    found = {name: dict(state.get_type(name)) for name in state.types}
    assert {name: dict(typed.get_type(name)) for name in state.types} == found
    return found


def database(*events: dict[str, Any], state: Any = None) -> dict[str, Any]:
    """Give the rows of a database that has read events."""
    backend = MemoryBackend()
    fold = Fold(backend.load(), state)
    fold.take(Incoming(json.dumps(events).encode(), "-1", "9"))
    backend.commit(fold.work())
    return {
        name: {key: json.loads(data) for key, data in backend.rows(name)}
        for name in backend.types()
    }
