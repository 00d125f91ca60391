"""`headwater state`: the state that a stream's events make, to see, to check and to take away."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from headwater.cli.interrupts import EXIT_CODE
from headwater.cli.progress import Progress
from headwater.cli.targets import Target, make_client, reported, target, url_option

if TYPE_CHECKING:
    from headwater.state import Progress as Loaded
    from headwater.state import StreamDB, StreamState


@click.group(short_help="Show, check or export the state that a stream's events make.")
def state() -> None:
    """Read a stream of state events as the tables that they make."""


@state.command(short_help="Print the current state as tables.")
@click.argument("stream")
@click.option("--type", "type_", metavar="TYPE", help="Only entities of this type.")
@click.option("--key", metavar="KEY", help="Only the entity with this key.")
@click.option("--follow", "-f", is_flag=True, help="Print again whenever the state changes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per entity.")
@click.option(
    "--snapshot", metavar="STREAM", help="Start from the last snapshot in this compact stream."
)
@url_option
def show(
    stream: str,
    type_: str | None,
    key: str | None,
    follow: bool,
    as_json: bool,
    snapshot: str | None,
    url: str,
) -> None:
    """Print the current state of STREAM, one table for each type.

    With --follow it stays, and prints the tables anew whenever they change.
    """
    import threading

    at = target(stream, url)
    changed = threading.Event()
    with _loaded(at, changed, snapshot=snapshot) as db:
        changed.clear()
        _print(db, type_, key, as_json=as_json)
        while follow:
            try:
                while not changed.wait(0.5) and not db.status.ended:
                    pass
            except KeyboardInterrupt:
                click.echo(f"The state is as of offset {db.offset}.", err=True)
                sys.exit(EXIT_CODE)
            if not changed.is_set():
                break  # it has ended, and all that it came to is printed
            changed.clear()
            if not as_json and sys.stdout.isatty():
                click.clear()
            _print(db, type_, key, as_json=as_json)
        count = sum(map(len, _chosen(db, type_, key).values()))
        kept = len(db.quarantined())
        aside = (
            f" {kept} messages are no state events: see 'headwater state validate'." if kept else ""
        )
        closed = "closed and ends" if db.status.condition == "closed" else "read"
        click.echo(f"{count:,} entities; {at} is {closed} at offset {db.offset}.{aside}", err=True)


@state.command(short_help="List messages that break a rule or do not fit a schema.")
@click.argument("stream")
@click.option(
    "--schema",
    "schema_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help='JSON file with a JSON Schema for each type: {"user": {...}, ...}.',
)
@url_option
def validate(stream: str, schema_file: Path | None, url: str) -> None:
    """List every message of STREAM that is no state event, or whose value does not fit its schema.

    Each line has the position, which is accepted wherever an offset is, and the reason. The exit
    code is 1 if there is any.
    """
    at = target(stream, url)
    with reported(at):
        schemas = _schemas(schema_file) if schema_file is not None else None
    with _loaded(at, None, schemas) as db:
        found = db.quarantined()
        for each in found:
            click.echo(str(each))
        if not found:
            click.echo(f"Every message of {at} up to offset {db.offset} is valid.", err=True)
            return
        click.echo(f"{len(found):,} messages of {at} are not valid.", err=True)
        sys.exit(1)


@state.command(short_help="Write the current state to a file.")
@click.argument("stream")
@click.option(
    "--to",
    "form",
    type=click.Choice(["sqlite", "parquet", "csv"]),
    required=True,
    help="What to write; parquet needs pip install 'headwater[parquet]'.",
)
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), metavar="PATH",
    help="Where to write: a file, or for several types of parquet or csv a folder.",
)  # fmt: skip
@click.option("--type", "type_", metavar="TYPE", help="Only entities of this type.")
@url_option
def export(
    stream: str,
    form: Literal["sqlite", "parquet", "csv"],
    output: Path | None,
    type_: str | None,
    url: str,
) -> None:
    """Write the current state of STREAM: SQLite with a table, or a Parquet or CSV file, per type.

    Every table has the columns key and value, the value as JSON, and a column for each member that
    the values have.
    """
    from headwater.cli.state_export import write

    at = target(stream, url)
    with _loaded(at, None) as db:
        tables = {
            name: {key: db[name].get(key) for key in keys}
            for name, keys in _chosen(db, type_, None).items()
        }
        if not tables:
            raise click.ClickException(f"{at} holds no state to export.")
        written = write(form, tables, output or Path(at.name.rstrip("/").rpartition("/")[2]))
        count = sum(map(len, tables.values()))
        click.echo(f"Wrote {count:,} entities as of offset {db.offset} to {written}.", err=True)


@contextmanager
def _loaded(
    at: Target, changed: Any, schemas: "StreamState | None" = None, snapshot: str | None = None
) -> Iterator["StreamDB"]:
    from headwater.state import Hooks, MemoryBackend, StreamDB, begin_from_snapshot

    progress = Progress()

    def tell(loaded: "Loaded") -> None:
        progress.show(f"{loaded.events:,} events read")

    hooks = Hooks(on_batch=lambda _: changed.set()) if changed is not None else Hooks()
    with reported(at), make_client(at) as client:
        source = client.stream(at.name)
        backend = (
            begin_from_snapshot(client.stream(snapshot), source, schemas)
            if snapshot is not None
            else MemoryBackend()
        )
        with StreamDB(source, schemas, backend=backend, hooks=hooks) as db:
            db.preload(tell)
            progress.clear()
            if changed is not None:
                changed.clear()
            yield db


def _chosen(db: "StreamDB", type_: str | None, key: str | None) -> dict[str, list[str]]:
    """List the keys that are wanted, by type."""
    return {
        name: [each for each in collection if key in (None, each)]
        for name, collection in db.collections.items()
        if type_ in (None, name)
    }


def _print(db: "StreamDB", type_: str | None, key: str | None, *, as_json: bool) -> None:
    import msgspec

    from headwater.cli.state_tables import table

    for name, keys in _chosen(db, type_, key).items():
        values = {each: db[name].get(each) for each in keys}
        if as_json:
            for each, value in values.items():
                row = {"type": name, "key": each, "value": value}
                click.echo(msgspec.json.encode(row).decode())
        elif values:
            click.echo(f"{name} ({len(values):,})")
            click.echo(table(values) + "\n")


def _schemas(file: Path) -> "StreamState":
    import msgspec

    from headwater.errors import SchemaError
    from headwater.state import collection, define_stream_state

    try:
        documents = msgspec.json.decode(file.read_bytes(), type=dict[str, dict[str, Any]])
    except (msgspec.MsgspecError, OSError) as error:
        raise SchemaError(
            f"'{file}' can't be used: {error}. It must hold a JSON Schema for each type."
        ) from None
    return define_stream_state(
        {name: collection(document, type=name) for name, document in documents.items()}
    )
