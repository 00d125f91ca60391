"""The tables, printed for people; read with `deltalake` alone, as anybody could."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow.compute as pc
from deltalake import DeltaTable

from headwater.client import Client

ROWS: Final = 5
_WIDTH: Final = 28

_SHOWN: Final = {
    "shop/customer": ("stream", "key", "name", "city", "points"),
    "shop/order": ("stream", "key", "customer", "status", "total"),
    "workflows/runs": ("run_id", "status", "started_at", "completed_at"),
    "workflows/steps": ("run_id", "step_id", "status", "completed_at"),
}


def show_tables(folder: Path, url: str) -> None:
    """Print the beginning of each table, and of the stream of alerts."""
    for name, columns in _SHOWN.items():
        table = DeltaTable(folder / name).to_pyarrow_table()
        there = [column for column in columns if column in table.column_names]
        table = table.take(pc.sort_indices(table, [(column, "ascending") for column in there[:2]]))
        print_rows(f"tables/{name}", table.num_rows, there, table.select(there).slice(0, ROWS))
    with Client(url) as client:
        alerts = list(client.stream("alerts/large-orders").read().items())
    print(f"stream alerts/large-orders ({len(alerts)} messages)")
    for alert in alerts[:ROWS]:
        print(f"  {alert}")
    print()


def print_rows(title: str, count: int, columns: Sequence[str], rows: Any) -> None:
    """Print some rows below each other."""
    cells = [[_cell(row[column]) for column in columns] for row in rows.to_pylist()]
    widths = [
        max([len(column), *(len(line[at]) for line in cells)]) for at, column in enumerate(columns)
    ]
    print(f"{title} ({count:,} rows)")
    for line in [list(columns), *cells]:
        print("  " + "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)))
    print()


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"
