"""`headwater pipeline` over the Spark of the tests, which is left running: it was there before."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from headwater.cli import main
from headwater.client import Client
from tests.support.server import ServerProcess

Command = Callable[..., Result]

GOOD: Final = """
[source]
stream = "{room}/in/*"
schema = "n long"

[[transform]]
sql = "SELECT n FROM source"

[target]
kind = "stream"
stream = "{room}/out"
"""


@pytest.fixture
def command(
    spark: SparkSession, server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Command:
    """Runs a command of `headwater pipeline` in the folder of the test."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Result:
        given = ["pipeline", *arguments]
        return CliRunner().invoke(main, given, env={"HEADWATER_URL": server.url})

    return run


def test_a_session_that_was_there_before_is_left_running(
    command: Command, spark: SparkSession, client: Client, room: str, tmp_path: Path
) -> None:
    (tmp_path / "copy.toml").write_text(GOOD.format(room=room))
    client.stream(f"{room}/in/one").create(data=b'[{"n": 1}]')
    for words in (("check", "copy.toml"), ("run", "--once", "copy.toml")):
        done = command(*words)
        assert done.exit_code == 0, done.output
        assert spark.range(3).count() == 3
    assert list(client.stream(f"{room}/out").read().items()) == [{"n": 1}]


@pytest.mark.parametrize(
    ("flags", "value"),
    [(("--value", "doc"), {"a": [1]}), (("--column", "m", "--column", "n"), {"m": 3, "n": 2})],
)
def test_chosen_columns_or_one_of_json_are_published(
    command: Command,
    client: Client,
    room: str,
    tmp_path: Path,
    flags: tuple[str, ...],
    value: dict[str, object],
) -> None:
    rows = pa.table({"key": ["1"], "doc": ['{"a":[1]}'], "n": [2], "m": [3]})
    write_deltalake(str(tmp_path / "table"), rows)
    out = f"{room}/out"
    done = command(
        "publish", "--table", "table", "--to", out, "--type", "t", "--key", "key", *flags
    )
    assert done.exit_code == 0, done.output
    assert list(client.stream(out).read().items())[-1]["value"] == value


def test_chosen_columns_and_one_of_json_exclude_each_other(command: Command, room: str) -> None:
    given = ("publish", "--table", "t", "--to", f"{room}/out", "--type", "t", "--key", "key")
    done = command(*given, "--value", "doc", "--column", "n")
    assert done.exit_code == 2
    assert "--column and --value exclude each other." in done.output


def test_no_pipeline_starts_where_spark_finds_that_another_can_not(
    command: Command, client: Client, room: str, tmp_path: Path
) -> None:
    good = GOOD.format(room=room)
    (tmp_path / "copy.toml").write_text(good)
    bad = good.replace("SELECT n", "SELECT m").replace(f"{room}/out", f"{room}/other")
    (tmp_path / "bad.toml").write_text(bad)
    client.stream(f"{room}/in/one").create(data=b'[{"n": 1}]')
    done = command("run", "--once", "copy.toml", "bad.toml")
    assert done.exit_code == 1, done.output
    assert not client.stream(f"{room}/out").exists()
    lines = done.output.splitlines()
    assert lines[1].startswith("bad.toml: error: transform 1.sql: A column, variable, or function")
    assert lines[2:] == ["Error: Nothing was started: fix the errors above."]
    assert not (tmp_path / "checkpoints" / "copy" / "metadata").exists()


def test_check_looks_at_all_files_with_one_spark(
    command: Command, client: Client, room: str, tmp_path: Path
) -> None:
    (tmp_path / "copy.toml").write_text(GOOD.format(room=room))
    (tmp_path / "bad.toml").write_text(
        f'[source]\nstream = "{room}/in/*"\n[[transform]]\nsql = "SELECT nothing FROM source"\n'
        '[target]\nkind = "stream"\nstream = "other"\n'
    )
    (tmp_path / "worse.toml").write_text("[source]\nstrem = 1\n")
    (tmp_path / "worst.toml").write_text(
        f'[source]\nstream = "{room}/in/*"\nmode = "stat"\nschema = "n lung"\n'
        '[[transform]]\npython = "none.py:f"\n[target]\nkind = "stream"\nstream = "third"\n'
    )
    client.stream(f"{room}/in/one").create(data=b'[{"n":1}]')
    done = command("check", "copy.toml", "bad.toml", "worse.toml", "worst.toml")
    assert done.exit_code == 1
    lines = done.output.splitlines()
    assert "copy.toml: no problems" in lines
    assert any(line.startswith("bad.toml: error: transform 1.sql: A column") for line in lines)
    assert any(line.startswith("worse.toml: error: source.strem: there is no") for line in lines)
    worst = [line.split(": ")[2] for line in lines if line.startswith("worst.toml: error: ")]
    assert worst == ["source.mode", "transform 1.python", "source.schema"]
    assert lines[-1] == "6 errors, 0 warnings."
