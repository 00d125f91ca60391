"""Statistics of a data directory, and the metrics of its engine."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from headwater.errors import NewerFormat, StoreDamaged
from headwater.protocol.paths import DAMAGED_PATH
from headwater.storage.disk import catalog, journal, segments
from headwater.storage.disk.data_directory import HEADER_BYTES, decode_header
from headwater.storage.disk.offline.view import is_running, read_only, require_data


class DirectoryInfo(msgspec.Struct, frozen=True):
    """The output of `headwater info`; counts are as of the last checkpoint."""

    directory: str
    running: bool
    process: int | None
    streams: int
    deleted_streams: int
    """Streams that were deleted but still have forks."""
    cut_streams: int
    """Streams that a repair truncated, and continued under a new number."""
    closed_streams: int
    forks: int
    stream_bytes: int
    producers: int
    extents: int
    extents_per_stream_mean: float
    extents_per_stream_max: int
    segments: int
    segment_bytes: int
    """Bytes of streams in the files."""
    segment_live_bytes: int
    """The part of them that the catalog lists."""
    journal_files: int
    journal_bytes: int
    """The size of the files, with reserved space."""
    journal_from: int
    catalog_bytes: int
    formats: dict[str, int]
    """The newest format version among the files of each kind."""
    metrics: dict[str, Any]
    """The engine's metrics at its last checkpoint, or after its recovery."""


def read_info(folder: Path) -> DirectoryInfo:
    """Read the statistics of a data directory, whether or not a server runs on it."""
    require_data(folder)
    running = is_running(folder)
    try:
        with closing(read_only(folder, live=running)) as db:
            return _read(folder, db, running=running)
    except (sqlite3.DatabaseError, KeyError) as error:
        raise StoreDamaged(str(folder / catalog.FILE), 0, f"SQLite: {error}") from error


def _read(folder: Path, db: sqlite3.Connection, *, running: bool) -> DirectoryInfo:
    meta = dict(db.execute("SELECT key, value FROM meta"))
    if meta["version"] > catalog.VERSION:
        raise NewerFormat(str(folder / catalog.FILE), meta["version"], catalog.VERSION)
    streams, closed, forks = db.execute(
        "SELECT count(*), coalesce(sum(closed), 0), coalesce(sum(origin IS NOT NULL), 0) "
        "FROM streams WHERE NOT deleted"
    ).fetchone()
    deleted, cut = db.execute(
        "SELECT count(*), coalesce(sum(path GLOB ?), 0) FROM streams WHERE deleted",
        (DAMAGED_PATH.format("*"),),
    ).fetchone()
    (size,) = db.execute("SELECT coalesce(sum(length), 0) FROM extents").fetchone()
    extents, most, owners = db.execute(
        "SELECT coalesce(sum(n), 0), coalesce(max(n), 0), count(*) "
        "FROM (SELECT count(*) AS n FROM extents GROUP BY stream)"
    ).fetchone()
    count, stored, live = db.execute(
        "SELECT count(*), coalesce(sum(bytes), 0), coalesce(sum(live), 0) FROM segments"
    ).fetchone()
    (producers,) = db.execute("SELECT count(*) FROM producers").fetchone()
    journals = _sizes(folder / "journal", "*")
    return DirectoryInfo(
        directory=str(folder),
        running=running,
        process=_process(folder) if running else None,
        streams=streams,
        deleted_streams=deleted - cut,
        cut_streams=cut,
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
            **_newest("journal", folder / "journal", "*.log", journal.MAGIC),
            **_newest("segments", folder / "segments", "*.seg", segments.MAGIC),
        },
        metrics=_metrics(meta.get("metrics") or "{}"),
    )


def _metrics(text: str) -> dict[str, Any]:
    """Decode metrics; without them, if the text is damaged, since nothing else depends on it."""
    try:
        metrics: dict[str, Any] = json.loads(text)
    except ValueError:
        return {}
    return metrics


def _sizes(folder: Path, pattern: str) -> list[int]:
    """Return the sizes of files, some of which may be deleted meanwhile."""
    sizes = []
    for path in folder.glob(pattern):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:
            continue
    return sizes


def _newest(kind: str, folder: Path, pattern: str, magic: bytes) -> dict[str, int]:
    """Return the newest format version among the files of a kind, if there is an intact one."""
    versions = [
        version for path in folder.glob(pattern) if (version := _version(path, magic)) is not None
    ]
    return {kind: max(versions)} if versions else {}


def _version(path: Path, magic: bytes) -> int | None:
    """Return the format version of a file; None if its header is damaged."""
    try:
        with path.open("rb") as file:
            header = decode_header(file.read(HEADER_BYTES), magic)
    except FileNotFoundError:
        return None
    return None if header is None else header.version


def _process(folder: Path) -> int | None:
    text = (folder / "LOCK").read_text(encoding="ascii", errors="replace").strip()
    return int(text) if text.isdecimal() else None
