"""The log of an archive, in its folder: a file per entry, which is there as a whole or not at all.

    _log/00000000000000000007.json              an entry
    _log/00000000000000000099.contents.json     what all entries up to this one make
    streams/<path>/<range>-<random>.parquet     messages

A file that no entry names is no part of the archive: a task has failed, or is not done yet. Such
files are removed when they are a day old, and those that were merged a day after they were.
"""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar
from uuid import uuid4

import msgspec

from headwater.errors import ArchiveDamaged, BadOption, NotAnArchive
from headwater.spark.archives.contents import Contents, Entry

T = TypeVar("T")

ENTRIES_PER_SUMMARY: Final = 100
LEFT_OVER_SECONDS: Final = 24 * 3600

_LOG: Final = "_log"
STREAMS: Final = "streams"
_SUMMARY: Final = ".contents.json"
_ENTRIES: Final = msgspec.json.Decoder(Entry)
_CONTENTS: Final = msgspec.json.Decoder(Contents)


def archive_folder(folder: str) -> Path:
    """Find the folder of an archive, as it is called on every machine; a URL of another is refused.

    An entry is taken once because a hard link is made once: object storage has none.
    """
    path = folder.removeprefix("file://")
    if not folder.strip():
        raise BadOption("folder", "it is empty: name the folder of the archive")
    if "://" in path or (path != folder and not path.startswith("/")):
        raise BadOption(
            "folder",
            f"'{folder}' is no folder of this machine. An archive lies in one that the driver and "
            "all executors have mounted: give its path",
        )
    return Path(path).absolute()  # tasks run in another folder


def load(folder: Path) -> Contents:
    """Read what an archive holds; raises `NotAnArchive` where there is none."""
    if not (folder / _LOG).is_dir():
        raise NotAnArchive(str(folder), "it has no log")
    contents = _summary(folder)
    return _read_on(folder, contents)


def load_or_begin(folder: Path) -> Contents:
    """Read what an archive holds; one that is not there yet is begun."""
    (folder / STREAMS).mkdir(parents=True, exist_ok=True)
    (folder / _LOG).mkdir(exist_ok=True)
    try:
        contents = load(folder)
    except NotAnArchive:
        contents = Contents()
    if not contents.entries:
        contents = commit(folder, contents, Entry(archive=uuid4().hex))
    return contents


def commit(folder: Path, contents: Contents, entry: Entry) -> Contents:
    """Add an entry, if it fits behind what the archive holds by now; gives what it holds then.

    Durable when it returns. Where it raises, or the process ends, the archive is as it was.
    """
    data = msgspec.json.encode(entry)
    # From now on they are old files, which readers may be at. After the entry would be too late: a
    # writer that is killed in between would leave them as old as their messages are.
    for names, _ in entry.merged:
        for name in names:
            with suppress(FileNotFoundError, PermissionError):  # executors may be another user
                os.utime(folder / name)
    while True:
        contents.take(entry)
        number = contents.entries - 1
        file = folder / _LOG / f"{number:020d}.json"
        if _write_new(file, data):
            if not _is_summed_up(folder, number):
                break
            # The number was given, and its entry deleted since: nobody would ever read ours.
            file.unlink(missing_ok=True)
        # Somebody else has added this entry's number: what it holds may leave no place for ours.
        contents = load(folder)
        if contents.archive and entry.archive:
            return contents
    if number % ENTRIES_PER_SUMMARY == ENTRIES_PER_SUMMARY - 1:
        _summarise(folder, contents, number)
        sweep(folder, contents)
    return contents


def sweep(folder: Path, contents: Contents, age: float = LEFT_OVER_SECONDS) -> int:
    """Remove old files that are no part of the archive; gives how many."""
    named = {file.name for file in contents.files()}
    before = time.time() - age
    removed = 0
    for file in (folder / STREAMS).glob("*/*"):
        if file.relative_to(folder).as_posix() in named:
            continue
        with suppress(FileNotFoundError):  # a draft has got its name meanwhile
            if file.stat().st_mtime < before:
                file.unlink()
                removed += 1
    return removed


def sync_folder(folder: Path) -> None:
    """Make names durable that were given in a folder."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _summary(folder: Path) -> Contents:
    summaries = sorted((folder / _LOG).glob(f"*{_SUMMARY}"))
    return _decoded(summaries[-1], _CONTENTS) if summaries else Contents()


def _read_on(folder: Path, contents: Contents) -> Contents:
    while True:
        file = folder / _LOG / f"{contents.entries:020d}.json"
        if not file.exists():
            return contents
        contents.take(_decoded(file, _ENTRIES))


def _decoded(file: Path, decoder: "msgspec.json.Decoder[T]") -> T:
    try:
        return decoder.decode(file.read_bytes())
    except msgspec.DecodeError as error:
        raise ArchiveDamaged(str(file), str(error)) from None


def _summarise(folder: Path, contents: Contents, number: int) -> None:
    """Write down what the entries make; of those before, readers may still want the last ones."""
    target = folder / _LOG / f"{number:020d}{_SUMMARY}"
    _write_new(target, msgspec.json.encode(contents))
    *old, _ = sorted((folder / _LOG).glob(f"*{_SUMMARY}"))
    for summary in old[:-1]:
        summary.unlink(missing_ok=True)
    if old:
        for entry in sorted((folder / _LOG).glob("*.json")):
            if entry.name[:20] <= old[-1].name[:20] and not entry.name.endswith(_SUMMARY):
                entry.unlink(missing_ok=True)


def _is_summed_up(folder: Path, number: int) -> bool:
    """Tell whether an entry may have been deleted: two summaries hold it, and neither goes."""
    summaries = sorted((folder / _LOG).glob(f"*{_SUMMARY}"))
    return len(summaries) > 1 and int(summaries[-2].name[:20]) >= number


def _write_new(file: Path, data: bytes) -> bool:
    """Write a file that must not be there yet, in one step; False where it is."""
    draft = file.parent / f".{uuid4().hex}"
    try:
        with draft.open("xb") as opened:
            opened.write(data)
            opened.flush()
            os.fsync(opened.fileno())
        try:
            os.link(draft, file)  # unlike a rename, it never replaces what another writer has put
        except FileExistsError:
            return False
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(file.parent)
    return True
