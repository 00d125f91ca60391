"""Tables on object storage: written, read and published as those on a disk are."""

from pathlib import Path
from typing import Any

from click.testing import CliRunner
from pyspark.sql import SparkSession

from headwater.cli import main
from headwater.client import Client
from headwater.spark.jobs.publish import publish
from headwater.spark.tables import open_table
from headwater.state import MaterializedState, change, encode_events
from tests.support.server import ServerProcess


def state_of(client: Client, path: str) -> dict[str, Any]:
    state = MaterializedState()
    for batch in client.stream(path).read():
        assert state.apply_json(batch.data) == []
    return dict(state.get_type("user"))


KEYS = [f"key-{number}" for number in range(20)]


def test_a_stream_becomes_a_table_there_and_a_stream_again(
    spark: SparkSession,
    server: ServerProcess,
    client: Client,
    room: str,
    lake: str,
    tmp_path: Path,
) -> None:
    source, copy = f"{room}/source", f"{room}/copy"
    tables, checkpoint, schema = f"{lake}/tables", str(tmp_path / "checkpoint"), "n long not null"
    stream = client.stream(source)
    stream.create()

    def check() -> None:
        expected = state_of(client, source)
        table = open_table(f"{tables}/user").read(spark)
        assert table is not None
        assert {row.key: {"n": row.n} for row in table.collect()} == expected
        told: dict[str, Any] = {"stream": copy, "type": "user", "key": "key", "value": ["n"]}
        publish(spark, table, url=server.url, **told, state=f"{lake}/state")
        assert state_of(client, copy) == expected

    def materialize() -> None:
        command = [
            *("pipeline", "materialize", "--once"),
            *("--url", server.url, "--stream", source, "--schema", f"user={schema}"),
            *("--to", tables, "--checkpoint", checkpoint),
        ]
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 0, done.output

    stream.append(encode_events([change("insert", "user", key, {"n": 1}) for key in KEYS]))
    materialize()
    check()
    updates = [change("update", "user", key, {"n": 2}) for key in KEYS[:5]]
    stream.append(encode_events([*updates, *(change("delete", "user", key) for key in KEYS[5:9])]))
    materialize()
    check()
