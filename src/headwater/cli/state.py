"""`headwater state`: show, validate and export the current state of a stream of change events.

An export is complete or absent: it is written to a temporary file, which is then renamed.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote

import click

from headwater.cli._io import (
    EXIT_CODE,
    OrderedGroup,
    Target,
    counted,
    make_client,
    reported,
    stream_target,
    url_option,
)
from headwater.cli._progress import Progress

if TYPE_CHECKING:
    from headwater.state import Progress as Loaded
    from headwater.state import StreamDB, StreamState


@click.group(cls=OrderedGroup, short_help="Show, validate or export the state of a stream.")
def state() -> None:
    """Show, validate or export the current state of a stream of change events."""


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

    With --follow the command keeps running and prints the tables again whenever they change.
    """
    import threading

    target = stream_target(stream, url)
    changed = threading.Event()
    with _loaded(target, changed, snapshot=snapshot) as db:
        changed.clear()
        _print(db, type_, key, as_json=as_json)
        while follow:
            try:
                while not changed.wait(0.5) and not db.status.ended:
                    pass
            except KeyboardInterrupt:
                click.echo(f"The state is that of offset {db.offset}.", err=True)
                sys.exit(EXIT_CODE)
            if not changed.is_set():
                break  # the stream has ended, and its last state was printed
            changed.clear()
            if not as_json and sys.stdout.isatty():
                click.clear()
            _print(db, type_, key, as_json=as_json)
        count = sum(map(len, _chosen(db, type_, key).values()))
        invalid = len(db.quarantined())
        hint = (
            f" {counted(invalid, 'messages')} quarantined: see 'headwater state validate'."
            if invalid
            else ""
        )
        end = "is closed and ends at" if db.status.condition == "closed" else "was read up to"
        entities = counted(count, "entities", "entity")
        click.echo(f"{entities}; {target} {end} offset {db.offset}.{hint}", err=True)


@state.command(short_help="List messages that break a rule or do not match a schema.")
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
    """List each message of STREAM that is not a state event, or whose value fails its schema.

    Each line has the position, which is accepted wherever an offset is, and the reason. The exit
    code is 1 if any message is listed.
    """
    target = stream_target(stream, url)
    with reported(target):
        schemas = _schemas(schema_file) if schema_file is not None else None
    with _loaded(target, None, schemas) as db:
        found = db.quarantined()
        for each in found:
            click.echo(str(each))
        if not found:
            click.echo(f"Every message of {target} up to offset {db.offset} is valid.", err=True)
            return
        click.echo(f"{counted(len(found), 'invalid messages')} in {target}.", err=True)
        sys.exit(1)


@state.command(short_help="Write the current state to a file.")
@click.argument("stream")
@click.option(
    "--to",
    "form",
    type=click.Choice(["sqlite", "parquet", "csv"]),
    required=True,
    help="Format of the export; parquet needs pip install 'headwater[parquet]'.",
)
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), metavar="PATH",
    help="A file; a directory for several types as parquet or csv.",
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
    """Write the current state of STREAM: per type an SQLite table, a Parquet file or a CSV file.

    Each table has the columns key and value, the value as JSON, and one column for each member of
    the values.
    """
    target = stream_target(stream, url)
    with _loaded(target, None) as db:
        tables = {
            name: {key: db[name].get(key) for key in keys}
            for name, keys in _chosen(db, type_, None).items()
        }
        if not tables:
            raise click.ClickException(f"{target} holds no state to export.")
        written = write(form, tables, output or Path(target.name.rstrip("/").rpartition("/")[2]))
        count = sum(map(len, tables.values()))
        entities = counted(count, "entities", "entity")
        click.echo(f"Wrote {entities} as of offset {db.offset} to {written}.", err=True)


@contextmanager
def _loaded(
    target: Target, changed: Any, schemas: "StreamState | None" = None, snapshot: str | None = None
) -> Iterator["StreamDB"]:
    from headwater.state import Hooks, MemoryBackend, StreamDB, begin_from_snapshot

    progress = Progress()
    progress.show("Waiting for the server …")

    def show(loaded: "Loaded") -> None:
        progress.show(f"{loaded.events:,} events read")

    hooks = Hooks(on_batch=lambda _: changed.set()) if changed is not None else Hooks()
    with reported(target), make_client(target, progress) as client:
        source = client.stream(target.name)
        backend = (
            begin_from_snapshot(client.stream(snapshot), source, schemas)
            if snapshot is not None
            else MemoryBackend()
        )
        with StreamDB(source, schemas, backend=backend, hooks=hooks) as db:
            db.preload(show)
            progress.clear()
            if changed is not None:
                changed.clear()
            yield db


def _chosen(db: "StreamDB", type_: str | None, key: str | None) -> dict[str, list[str]]:
    """Return the selected keys by type."""
    return {
        name: [each for each in collection if key in (None, each)]
        for name, collection in db.collections.items()
        if type_ in (None, name)
    }


def _print(db: "StreamDB", type_: str | None, key: str | None, *, as_json: bool) -> None:
    import msgspec

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
            f"Can't use '{file}': {error}. It must hold a JSON Schema for each type."
        ) from None
    return define_stream_state(
        {name: collection(document, type=name) for name, document in documents.items()}
    )


# --- Export to SQLite, Parquet or CSV

Tables = Mapping[str, Mapping[str, Any]]

_RESERVED: Final = ("key", "value")


def write(form: Literal["sqlite", "parquet", "csv"], tables: Tables, path: Path) -> Path:
    """Write tables to a new file or directory, and return its path; never overwrite a file."""
    if form == "sqlite":
        path = path if path.suffix else path.with_suffix(".sqlite")
        _write_whole(path, partial(_sqlite, tables))
        return path
    write_one = _parquet if form == "parquet" else _csv
    if path.suffix and len(tables) == 1:
        (values,) = tables.values()
        _write_whole(path, partial(write_one, values))
        return path
    path.mkdir(parents=True, exist_ok=True)
    for name, values in tables.items():
        # The name of a type may contain characters that file names can't.
        _write_whole(path / f"{quote(name, safe=' ')}.{form}", partial(write_one, values))
    return path


def _write_whole(path: Path, fill: Callable[[Path], None]) -> None:
    """Create a file that is complete as soon as it exists."""
    if path.exists():
        raise click.ClickException(f"'{path}' exists; choose another --output, or remove it.")
    part = path.with_name(path.name + ".part")
    try:
        part.unlink(missing_ok=True)
        fill(part)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise click.ClickException(f"Can't write '{path}': {error.strerror or error}.") from None


def _rows(values: Mapping[str, Any]) -> tuple[list[str], Iterator[list[Any]]]:
    members = [name for name in columns_of(values) if name not in _RESERVED]

    def rows() -> Iterator[list[Any]]:
        for key, value in values.items():
            held = value if isinstance(value, Mapping) else {}
            yield [key, _json(value), *(_plain(held.get(name)) for name in members)]

    return [*_RESERVED, *members], rows()


def _json(value: Any) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()


def _plain(value: Any) -> Any:
    if isinstance(value, dict | list) or (isinstance(value, int) and abs(value) >= 2**63):
        return _json(value)
    return value


def _sqlite(tables: Tables, path: Path) -> None:
    import sqlite3

    database = sqlite3.connect(path)
    try:
        with database:
            for name, values in tables.items():
                heads, rows = _rows(values)
                columns = ", ".join(_name(head) for head in _distinct(heads))
                database.execute(f"CREATE TABLE {_name(name)} ({columns})")
                marks = ", ".join("?" for _ in heads)
                database.executemany(f"INSERT INTO {_name(name)} VALUES ({marks})", rows)  # noqa: S608 - quoted
    except sqlite3.Error as error:
        raise OSError(str(error)) from error
    finally:
        database.close()


def _name(text: str) -> str:
    return '"' + text.replace('"', '""').replace("\0", "") + '"'


def _distinct(heads: list[str]) -> list[str]:
    """Number columns whose names differ only in case, since SQLite ignores case."""
    seen: dict[str, int] = {}
    names = []
    for head in heads:
        count = seen[head.lower()] = seen.get(head.lower(), 0) + 1
        names.append(head if count == 1 else f"{head}_{count}")
    return names


def _csv(values: Mapping[str, Any], path: Path) -> None:
    import csv

    heads, rows = _rows(values)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(heads)
        writer.writerows(rows)


def _parquet(values: Mapping[str, Any], path: Path) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError:
        raise click.ClickException(
            "Parquet needs pyarrow: pip install 'headwater[parquet]'."
        ) from None
    heads, rows = _rows(values)
    columns = list(zip(*rows, strict=True)) or [() for _ in heads]
    arrays = [_array(pa, list(column)) for column in columns]
    pa.parquet.write_table(pa.table(arrays, names=heads), path)


def _array(pyarrow: Any, column: list[Any]) -> Any:
    """Build a column; values of several types are stored as JSON."""
    kinds = {type(value) for value in column if value is not None}
    if kinds == {int, float}:
        return pyarrow.array([None if value is None else float(value) for value in column])
    if len(kinds) > 1:
        return pyarrow.array([None if value is None else _json(value) for value in column])
    return pyarrow.array(column)


# --- Tables of text

_WIDEST: Final = 40


def columns_of(values: Mapping[str, Any]) -> list[str]:
    """Return the members of the values, in order of first appearance."""
    names: dict[str, None] = {}
    for value in values.values():
        if isinstance(value, Mapping):
            names.update(dict.fromkeys(value))
    return list(names)


def table(values: Mapping[str, Any]) -> str:
    """Format a table: the key, one column per member, and one for values without members."""
    names = columns_of(values)
    plain = any(not isinstance(value, Mapping) for value in values.values())
    heads = ["key", *names, *(["value"] if plain else [])]
    lines = [heads]
    for key, value in values.items():
        is_object = isinstance(value, Mapping)
        cells = [_cell(value[name]) if is_object and name in value else "" for name in names]
        lines.append([_cell(key), *cells, *(["" if is_object else _cell(value)] if plain else [])])
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    drawn = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    drawn.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(drawn)


def _cell(value: Any) -> str:
    import msgspec

    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    # A value must not send control sequences to the terminal.
    text = "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"
