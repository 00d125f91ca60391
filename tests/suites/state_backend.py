"""What every backend of a state promises; a module per backend runs it with its own `backend`."""

from typing import Any

import pytest

from headwater.state.backend import Backend, Quarantined, Row, Saved, Work


def work(base: str = "keep", **given: Any) -> Work:
    """Make work that changes only what is given."""
    return Work(
        base=base,  # type: ignore[arg-type]  # the words are the tests'
        changes=given.get("changes", {}),
        staged_base=given.get("staged_base", "keep"),
        staged=given.get("staged", {}),
        forget_quarantined=given.get("forget", False),
        quarantined=given.get("quarantined", []),
        saved=given.get("saved", Saved(offset="1")),
    )


class StateBackendSuite:
    """One behaviour per test."""

    def test_a_new_one_is_at_the_beginning(self, backend: Backend) -> None:
        assert backend.load() == Saved()
        assert backend.types() == []
        assert list(backend.quarantined()) == []

    def test_rows_are_set_replaced_and_removed(self, backend: Backend) -> None:
        backend.commit(work(changes={"t": {"a": b"1", "b": b'{"x":[null]}'}, "u": {"a": b"2"}}))
        backend.commit(work(changes={"t": {"a": b"3", "c": None, "b": None}}))
        assert backend.get("t", "a") == b"3"
        assert backend.get("t", "b") is None
        assert list(backend.rows("t")) == [Row("a", b"3")]
        assert backend.types() == ["t", "u"]
        assert (backend.count("t"), backend.count("u"), backend.count("v")) == (1, 1, 0)

    def test_rows_come_by_key(self, backend: Backend) -> None:
        backend.commit(work(changes={"t": dict.fromkeys(("b", "a", "é", "Z", "10", "9"), b"1")}))
        assert [row.key for row in backend.rows("t")] == ["10", "9", "Z", "a", "b", "é"]

    def test_rows_and_how_far_they_are_commit_together(self, backend: Backend) -> None:
        saved = Saved(
            stream="http://x/s",
            incarnation="i",
            fingerprint="f",
            offset="7",
            epoch=3,
            complete=True,
            snapshot_open=True,
            stopped={"t": ("7,1", "why")},
            dropped=2,
        )
        backend.commit(work(changes={"t": {"a": b"1"}}, saved=saved))
        assert backend.load() == saved

    def test_staged_rows_are_not_seen_until_they_become_the_rows(self, backend: Backend) -> None:
        backend.commit(work(changes={"t": {"old": b"1"}}))
        backend.commit(work(staged_base="empty", staged={"t": {"a": b"1", "b": b"2"}}))
        backend.commit(work(staged={"t": {"b": None, "c": b"3"}}))
        assert [row.key for row in backend.rows("t")] == ["old"]
        assert [row.key for row in backend.staged_rows("t")] == ["a", "c"]
        backend.commit(work("staged", changes={"t": {"c": b"4", "d": b"5"}}))
        assert list(backend.rows("t")) == [Row("a", b"1"), Row("c", b"4"), Row("d", b"5")]
        assert list(backend.staged_rows("t")) == []

    def test_a_snapshot_may_begin_where_the_last_one_ends(self, backend: Backend) -> None:
        backend.commit(work(staged_base="empty", staged={"t": {"a": b"1"}}))
        backend.commit(work("staged", staged_base="empty", staged={"t": {"b": b"2"}}))
        assert [row.key for row in backend.rows("t")] == ["a"]
        backend.commit(work("staged"))
        assert [row.key for row in backend.rows("t")] == ["b"]

    def test_emptying_leaves_nothing_but_what_follows(self, backend: Backend) -> None:
        backend.commit(work(changes={"t": {"a": b"1"}}, staged={"t": {"b": b"1"}}))
        backend.commit(work("empty", staged_base="empty", changes={"t": {"c": b"1"}}))
        assert [row.key for row in backend.rows("t")] == ["c"]
        assert list(backend.staged_rows("t")) == []

    def test_what_is_kept_aside_stays_in_order_until_it_is_forgotten(
        self, backend: Backend
    ) -> None:
        kept = [Quarantined(str(n), "why", "t", "k", b"\xff{") for n in range(3)]
        backend.commit(work(quarantined=kept[:2]))
        backend.commit(work(quarantined=kept[2:]))
        assert list(backend.quarantined()) == kept
        backend.commit(work(forget=True, quarantined=kept[:1]))
        assert list(backend.quarantined()) == kept[:1]

    @pytest.mark.parametrize("early", [True, False])
    def test_an_index_finds_rows_through_all_changes(self, backend: Backend, early: bool) -> None:
        if early:
            backend.create_index("t", "n")
        backend.commit(
            work(changes={"t": {"a": b'{"n":1}', "b": b'{"n":"1"}', "c": b'{"n":1}', "d": b"[]"}})
        )
        if not early:
            assert backend.lookup("t", "n", 1) is None
            backend.create_index("t", "n")
        backend.create_index("t", "n")
        assert self.found(backend, 1) == ["a", "c"]
        assert self.found(backend, "1") == ["b"]
        assert "d" in self.found(backend, None)
        backend.commit(work(changes={"t": {"a": b'{"n":2}', "c": None}}))
        assert (self.found(backend, 1), self.found(backend, 2)) == ([], ["a"])
        backend.commit(work(staged_base="empty", staged={"t": {"z": b'{"n":2}'}}))
        assert self.found(backend, 2) == ["a"]
        backend.commit(work("staged"))
        assert self.found(backend, 2) == ["z"]
        backend.clear()
        assert self.found(backend, 2) == []

    def test_an_index_reaches_into_members_and_any_name(self, backend: Backend) -> None:
        backend.create_index('it\'s {} "t"', "a.b")
        backend.commit(
            work(changes={'it\'s {} "t"': {"k": b'{"a":{"b":"x\\u00e9\\ud83d\\ude00"}}'}})
        )
        found = backend.lookup('it\'s {} "t"', "a.b", "x\u00e9\U0001f600")
        assert found is not None
        assert [row.key for row in found] == ["k"]

    def test_a_lookup_finds_at_least_what_is_equal_or_says_that_it_cannot(
        self, backend: Backend
    ) -> None:
        backend.create_index("t", "n")
        written = {
            "big": b"123456789012345678901",
            "half": b"0.1",
            "nul": b'"a\\u0000b"',
            "yes": b"true",
        }
        backend.commit(
            work(changes={"t": {key: b'{"n":' + data + b"}" for key, data in written.items()}})
        )
        for key, value in (
            ("big", 123456789012345678901),
            ("half", 0.1),
            ("nul", "a\0b"),
            ("yes", True),
        ):
            found = backend.lookup("t", "n", value)
            assert found is None or key in [row.key for row in found]
        assert backend.lookup("t", "n", [1]) is None

    def test_clearing_forgets_everything(self, backend: Backend) -> None:
        backend.commit(
            work(
                changes={"t": {"a": b"1"}},
                staged={"t": {"a": b"1"}},
                quarantined=[Quarantined("1", "", "", "", b"")],
            )
        )
        backend.clear()
        assert backend.load() == Saved()
        assert backend.types() == []
        assert list(backend.staged_rows("t")) == []
        assert list(backend.quarantined()) == []

    def found(self, backend: Backend, value: Any) -> list[str]:
        rows = backend.lookup("t", "n", value)
        assert rows is not None
        return [row.key for row in rows]
