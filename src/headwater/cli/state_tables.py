"""Entities as a table of text."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

_WIDEST: Final = 40


def columns_of(values: Mapping[str, Any]) -> list[str]:
    """List the members that values have, as they first appear."""
    names: dict[str, None] = {}
    for value in values.values():
        if isinstance(value, Mapping):
            names.update(dict.fromkeys(value))
    return list(names)


def table(values: Mapping[str, Any]) -> str:
    """Draw a table: the key, and a column for each member; values without members in one."""
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
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    # A value from a stream must not be able to steer the terminal.
    text = "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"
