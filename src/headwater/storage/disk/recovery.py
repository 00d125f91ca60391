"""Recovery: replay the journal over the catalog.

An unfinished write leaves a torn batch at the end, with no intact record after it. It was never
acknowledged, and is cut off. Anything else that is not a record is damage, and the store refuses to
start.

The replayed records may exist in the page cache only, since the last process may have died before
it synced them. They are made durable before a reader sees them (docs/decisions/0047).
"""

import logging
import sqlite3
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Final

from headwater.errors import StoreDamaged
from headwater.protocol.lifecycle import WriterState
from headwater.storage.disk.catalog import Catalog, CatalogFailed
from headwater.storage.disk.faults import NO_FAULTS, Faults
from headwater.storage.disk.fsync import sync, sync_directory
from headwater.storage.disk.journal import journal_numbers, journal_path, make_durable, retire
from headwater.storage.disk.metrics import EngineMetrics
from headwater.storage.disk.registry import Registry
from headwater.storage.disk.replay import (
    Applies,
    TornWrite,
    apply_record,
    path_in,
    replay,
    require_intact,
)
from headwater.storage.disk.segments import segment_numbers, segment_path
from headwater.storage.disk.stream import DiskStream

log: Final = logging.getLogger("headwater.disk")


def recover(
    journals: Path,
    segments: Path,
    catalog: Catalog,
    registry: Registry,
    metrics: EngineMetrics,
    *,
    durable: bool,
    faults: Faults = NO_FAULTS,
) -> int:
    """Bring the registry to the last acknowledged state; return the number of the next journal."""
    faults.reach("recovery-started")
    started = perf_counter()
    first = int(catalog.meta("journal_from"))
    numbers = [number for number in journal_numbers(journals) if number >= first]
    _check_complete(journals, numbers, first, registry)
    files = [journal_path(journals, number) for number in numbers]
    known = {number for number, _, _ in catalog.segments()}
    ends, records = _replay(files, registry, faults)
    if durable and ends:
        for path, end in ends.items():
            make_durable(path, end, faults)
        sync_directory(journals, faults)
    try:
        retire(journals, first)  # the process may have died after a checkpoint, before it did this
    except OSError as error:
        log.warning("could not delete obsolete journal files", extra={"error": error})
    faults.reach("recovery-retired")
    _delete_orphans(segments, known)
    faults.reach("recovery-cleaned")
    # Empty files at the end were prepared but never used. The first of them stays and is
    # overwritten: a start that finds no journal file at all would report it as missing.
    number = first + len(files)
    while number > first and journal_path(journals, number - 1) not in ends:
        number -= 1
        journal_path(journals, number + 1).unlink(missing_ok=True)
    faults.reach("recovery-replayed")
    metrics.recovered_records = records
    metrics.recovery_seconds = perf_counter() - started
    if records:
        log.info(
            "recovered",
            extra={"records": records, "seconds": round(metrics.recovery_seconds, 3)},
        )
        # `headwater info` shows these metrics; a failure to store them must not prevent the start.
        with suppress(CatalogFailed, sqlite3.DatabaseError):
            catalog.put("metrics", metrics.dump())
    return number


def _replay(files: list[Path], registry: Registry, faults: Faults) -> tuple[dict[Path, int], int]:
    """Apply the records of journal files; return the end of each file, and the number of records.

    A file without records has no end.
    """
    ends: dict[Path, int] = {}
    touched: dict[int, DiskStream] = {}
    records = 0
    path_of = partial(path_in, registry)

    def live(number: int) -> WriterState | None:
        stream = registry.by_number(number)
        return None if stream is None or stream.deleted else stream.durable

    for step in replay(files, live):
        if isinstance(step, TornWrite):
            _cut(step.path, step.position, faults)
            log.warning(
                "cut off a torn batch", extra={"file": step.path, "position": step.position}
            )
            continue
        decision = require_intact(step, path_of)
        if isinstance(decision, Applies):
            stream = apply_record(registry, decision.record)
            if stream is not None:
                touched[stream.number] = stream
        records += 1
        ends[step.path] = step.end
    for stream in touched.values():
        registry.replayed(stream)
    registry.changed.clear()
    return ends, records


def _check_complete(journals: Path, numbers: list[int], first: int, registry: Registry) -> None:
    expected = list(range(first, first + len(numbers)))
    if numbers != expected:
        missing = next(number for number in expected if number not in numbers)
        raise StoreDamaged(str(journal_path(journals, missing)), 0, "the file is missing")
    if not numbers and registry.next_epoch > 1:
        raise StoreDamaged(str(journal_path(journals, first)), 0, "the file is missing")


def _cut(path: Path, position: int, faults: Faults) -> None:
    """Truncate a file durably: a torn batch must not reappear once later files have records."""
    with path.open("rb+") as file:
        file.truncate(position)
        sync(file.fileno(), path, faults)


def _delete_orphans(segments: Path, known: set[int]) -> None:
    """Delete the segments of unfinished checkpoints and compactions, and obsolete ones."""
    for number in segment_numbers(segments):
        if number not in known:
            try:
                segment_path(segments, number).unlink()
            except OSError as error:
                log.warning("could not delete an obsolete segment", extra={"error": error})
