"""A state as files: SQLite tables, Parquet or CSV."""

import csv
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

import click
import msgspec

from headwater.cli.state_tables import columns_of

Tables = Mapping[str, Mapping[str, Any]]

_RESERVED: Final = ("key", "value")


def write(form: Literal["sqlite", "parquet", "csv"], tables: Tables, path: Path) -> Path:
    """Write tables under a path, and give where they are; nothing that is there is overwritten."""
    if form == "sqlite":
        path = path if path.suffix else path.with_suffix(".sqlite")
        _whole(path, partial(_sqlite, tables))
        return path
    write_one = _parquet if form == "parquet" else _csv
    if path.suffix and len(tables) == 1:
        (values,) = tables.values()
        _whole(path, partial(write_one, values))
        return path
    path.mkdir(parents=True, exist_ok=True)
    for name, values in tables.items():
        # A type may be called anything, a file may not.
        _whole(path / f"{quote(name, safe=' ')}.{form}", partial(write_one, values))
    return path


def _whole(path: Path, fill: Callable[[Path], None]) -> None:
    """Make a file that is there complete or not at all."""
    if path.exists():
        raise click.ClickException(f"'{path}' exists; choose another --output, or remove it.")
    part = path.with_name(path.name + ".part")
    try:
        part.unlink(missing_ok=True)
        fill(part)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise click.ClickException(
            f"'{path}' can't be written: {error.strerror or error}."
        ) from None


def _rows(values: Mapping[str, Any]) -> tuple[list[str], Iterator[list[Any]]]:
    members = [name for name in columns_of(values) if name not in _RESERVED]

    def rows() -> Iterator[list[Any]]:
        for key, value in values.items():
            held = value if isinstance(value, Mapping) else {}
            yield [key, _json(value), *(_plain(held.get(name)) for name in members)]

    return [*_RESERVED, *members], rows()


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _plain(value: Any) -> Any:
    if isinstance(value, dict | list) or (isinstance(value, int) and abs(value) >= 2**63):
        return _json(value)
    return value


def _sqlite(tables: Tables, path: Path) -> None:
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
    """Tell columns apart that differ only in case, which SQLite does not see."""
    seen: dict[str, int] = {}
    names = []
    for head in heads:
        count = seen[head.lower()] = seen.get(head.lower(), 0) + 1
        names.append(head if count == 1 else f"{head}_{count}")
    return names


def _csv(values: Mapping[str, Any], path: Path) -> None:
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
    """Give a column its type; one of several kinds is kept as JSON."""
    kinds = {type(value) for value in column if value is not None}
    if kinds == {int, float}:
        return pyarrow.array([None if value is None else float(value) for value in column])
    if len(kinds) > 1:
        return pyarrow.array([None if value is None else _json(value) for value in column])
    return pyarrow.array(column)
