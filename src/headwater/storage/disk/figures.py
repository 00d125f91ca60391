"""Figures of a data directory: how much is where, and what the engine measured."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from headwater.errors import NewerFormat, StoreDamaged
from headwater.storage.disk import catalog, journal, segments
from headwater.storage.disk.view import is_running, read_only, require_data


class Figures(msgspec.Struct, frozen=True):
    """What `headwater info` tells; counts are those of the last checkpoint."""

    directory: str
    running: bool
    process: int | None
    streams: int
    deleted_streams: int
    """Deleted, and kept for their forks."""
    closed_streams: int
    forks: int
    stream_bytes: int
    producers: int
    extents: int
    extents_per_stream_mean: float
    extents_per_stream_max: int
    segments: int
    segment_bytes: int
    """What the files hold."""
    segment_live_bytes: int
    """What of it belongs to streams."""
    journal_files: int
    journal_bytes: int
    """What the files take up, with space that is reserved."""
    journal_from: int
    catalog_bytes: int
    formats: dict[str, int]
    metrics: dict[str, Any]
    """As the engine saved them at its last checkpoint."""


def figures(folder: Path) -> Figures:
    """Read the figures of a data directory, whether or not a server runs on it."""
    require_data(folder)
    running = is_running(folder)
    try:
        with closing(read_only(folder, live=running)) as db:
            return _figures(folder, db, running=running)
    except (sqlite3.DatabaseError, KeyError) as error:
        raise StoreDamaged(str(folder / catalog.FILE), 0, f"SQLite says: {error}") from error


def _figures(folder: Path, db: sqlite3.Connection, *, running: bool) -> Figures:
    meta = dict(db.execute("SELECT key, value FROM meta"))
    if meta["version"] > catalog.VERSION:
        raise NewerFormat(str(folder / catalog.FILE), meta["version"], catalog.VERSION)
    streams, deleted, closed, forks, size = db.execute(
        "SELECT count(*), coalesce(sum(deleted), 0), coalesce(sum(closed), 0), "
        "coalesce(sum(source != 0), 0), coalesce(sum(end - start), 0) FROM streams"
    ).fetchone()
    extents, most, owners = db.execute(
        "SELECT coalesce(sum(n), 0), coalesce(max(n), 0), count(*) "
        "FROM (SELECT count(*) AS n FROM extents GROUP BY stream)"
    ).fetchone()
    count, stored, live = db.execute(
        "SELECT count(*), coalesce(sum(bytes), 0), coalesce(sum(live), 0) FROM segments"
    ).fetchone()
    (producers,) = db.execute("SELECT count(*) FROM producers").fetchone()
    journals = _sizes(folder / "journal", "*")
    return Figures(
        directory=str(folder),
        running=running,
        process=_process(folder) if running else None,
        streams=streams - deleted,
        deleted_streams=deleted,
        closed_streams=closed,
        forks=forks,
        stream_bytes=size,
        producers=producers,
        extents=extents,
        extents_per_stream_mean=round(extents / owners, 2) if owners else 0.0,
        extents_per_stream_max=most,
        segments=count,
        segment_bytes=stored,
        segment_live_bytes=live,
        journal_files=len(journals),
        journal_bytes=sum(journals),
        journal_from=int(meta["journal_from"]),
        catalog_bytes=sum(_sizes(folder, f"{catalog.FILE}*")),
        formats={
            "catalog": int(meta["version"]),
            "journal": journal.VERSION,
            "segments": segments.VERSION,
        },
        metrics=json.loads(meta.get("metrics") or "{}"),
    )


def _sizes(folder: Path, pattern: str) -> list[int]:
    """Give the sizes of files, some of which may just be vanishing."""
    sizes = []
    for path in folder.glob(pattern):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:
            continue
    return sizes


def _process(folder: Path) -> int | None:
    text = (folder / "LOCK").read_text(encoding="ascii", errors="replace").strip()
    return int(text) if text.isdecimal() else None
