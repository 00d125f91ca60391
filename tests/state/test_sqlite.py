"""The state in an SQLite file keeps the promises of any backend, and outlives its process."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.errors import StateFileError
from headwater.state.backend import Backend, Row, Saved
from headwater.state.sqlite import SqliteBackend
from tests.suites.state_backend import StateBackendSuite, work


class TestSqliteBackend(StateBackendSuite):
    """Every promise."""

    @pytest.fixture
    def backend(self, tmp_path: Path) -> Iterator[Backend]:
        backend = SqliteBackend(tmp_path / "state.db")
        yield backend
        backend.close()


def test_everything_is_there_again(tmp_path: Path) -> None:
    first = SqliteBackend(tmp_path / "s")
    first.create_index("t", "n")
    first.commit(work(staged_base="empty", staged={"t": {"a": b'{"n":1}'}}))
    first.commit(
        work("staged", staged_base="empty", staged={"t": {"b": b"2"}}, saved=Saved(offset="9"))
    )
    first.close()
    second = SqliteBackend(tmp_path / "s")
    assert second.load() == Saved(offset="9")
    assert list(second.rows("t")) == [Row("a", b'{"n":1}')]
    assert list(second.staged_rows("t")) == [Row("b", b"2")]
    assert list(second.lookup("t", "n", 1) or []) == [Row("a", b'{"n":1}')]
    second.close()


def test_a_commit_that_fails_changes_nothing(tmp_path: Path) -> None:
    backend = SqliteBackend(tmp_path / "s")
    backend.commit(work(changes={"t": {"a": b"1"}}))
    with pytest.raises(UnicodeDecodeError):
        backend.commit(
            work("empty", changes={"t": {"b": b"2", "c": b"\xff"}}, saved=Saved(offset="2"))
        )
    assert list(backend.rows("t")) == [Row("a", b"1")]
    assert backend.load() == Saved(offset="1")
    backend.close()


def test_a_second_one_on_the_same_file_is_told(tmp_path: Path) -> None:
    first = SqliteBackend(tmp_path / "s")
    with pytest.raises(StateFileError, match="stop what uses this one"):
        SqliteBackend(tmp_path / "s")
    first.close()
    SqliteBackend(tmp_path / "s").close()


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE mine (a)")
    other.commit()
    other.close()
    with pytest.raises(StateFileError, match="it holds something else"):
        SqliteBackend(tmp_path / "other.db")
    (tmp_path / "text").write_text("no database, but long enough to be looked at as one" * 20)
    with pytest.raises(StateFileError, match="not a database"):
        SqliteBackend(tmp_path / "text")
    with pytest.raises(StateFileError, match="unable to open"):
        SqliteBackend(tmp_path / "nowhere" / "s")


def test_a_file_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    SqliteBackend(tmp_path / "s").close()
    newer = sqlite3.connect(tmp_path / "s")
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(StateFileError, match="format 99"):
        SqliteBackend(tmp_path / "s")
