"""What an archive holds, and the rule by which it grows. No I/O.

An archive is a log of entries. An entry adds files to streams, and is taken only if each file
begins where its stream ends in the archive. So what the archive holds of a stream has no gap and
nothing twice, whoever writes entries and however often.
"""

from collections.abc import Iterable
from hashlib import sha256
from typing import Final

from msgspec import Struct

from headwater.errors import ArchiveDamaged, ArchiveGap, ArchiveOvertaken
from headwater.spark.ranges import byte_of, epoch_of

_NAME_BYTES: Final = 200
"""File systems allow 255."""
_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")

MERGED_FILES: Final = 8
_TIERS: Final = (4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20)


class ArchivedFile(Struct, frozen=True, omit_defaults=True):
    """Some messages of a stream, one after another, in one Parquet file."""

    stream: str
    content_type: str
    name: str
    """Where the file is, from the archive's folder on."""
    start: int
    """The byte position of the stream where the first message begins."""
    last: str
    """The offset behind the last message."""
    rows: int
    size: int
    """Of the file."""
    other_than: str = ""
    """Where the archive had reached, if the stream knows no such offset: it is another one."""

    @property
    def end(self) -> int:
        return byte_of(self.last)


class Seen(Struct, frozen=True):
    """A stream as the server described it."""

    stream: str
    content_type: str
    tail: str
    closed: bool


class Entry(Struct, frozen=True):
    """One step of an archive."""

    added: list[ArchivedFile] = []
    seen: list[Seen] = []
    merged: list[tuple[list[str], ArchivedFile]] = []
    """Files that are one file now."""
    archive: str = ""
    """In the first entry: a name that no other archive has."""


class Incarnation(Struct):
    """A stream from its creation on; one that was deleted and created again has several."""

    content_type: str
    reached: str
    """Everything before this offset is in the archive."""
    closed: bool = False
    """Whether it was closed at that offset."""
    files: list[ArchivedFile] = []

    @property
    def begin(self) -> int:
        return self.files[0].start if self.files else 0


class Contents(Struct):
    """All that an archive holds."""

    archive: str = ""
    entries: int = 0
    """How many entries have made it."""
    streams: dict[str, list[Incarnation]] = {}

    def reached(self, stream: str) -> str:
        """Give the offset up to which a stream is archived; nothing where it is not at all."""
        known = self.streams.get(stream)
        return known[-1].reached if known else ""

    def take(self, entry: Entry) -> None:
        """Apply an entry; where it does not fit, an error is raised, and this is unusable.

        `ArchiveGap` where something is missing before it, `ArchiveOvertaken` where it is here.
        """
        self.archive = entry.archive or self.archive
        for file in entry.added:
            self._add(file)
        for seen in entry.seen:
            self._see(seen)
        for names, file in entry.merged:
            self._merge(names, file)
        self.entries += 1

    def news(self, seen: Iterable[Seen]) -> list[Seen]:
        """Choose what is new: streams without data, and those that were closed."""
        chosen = []
        for stream in seen:
            known = self.streams.get(stream.stream)
            if known is None:
                if byte_of(stream.tail) == 0:
                    chosen.append(stream)
            elif stream.closed and not known[-1].closed and stream.tail == known[-1].reached:
                chosen.append(stream)
        return chosen

    def files(self) -> Iterable[ArchivedFile]:
        """Give every file, by stream and position."""
        for path in sorted(self.streams):
            for incarnation in self.streams[path]:
                yield from incarnation.files

    def _add(self, file: ArchivedFile) -> None:
        known = self.streams.setdefault(file.stream, [])
        if not known or self._is_another(known[-1], file):
            known.append(Incarnation(file.content_type, file.last))
        else:
            last = known[-1]
            if file.start < byte_of(last.reached):
                raise ArchiveOvertaken(file.stream, last.reached)
            if file.start != byte_of(last.reached) or last.closed:
                raise ArchiveGap(
                    file.stream,
                    last.reached,
                    file.last,
                    "Archive it to another folder, or start the query from that offset.",
                )
        if not known[-1].files:
            known[-1].content_type = file.content_type
        known[-1].files.append(file)
        known[-1].reached = file.last

    def _is_another(self, last: Incarnation, file: ArchivedFile) -> bool:
        """Tell a stream that was created again.

        As a fork it may begin in an older epoch. Archives from before a file told what it is none
        of know the others alone: these have a new epoch, and begin anew.
        """
        if file.other_than:
            return file.other_than == last.reached
        goes_on = file.start == byte_of(last.reached)
        return epoch_of(file.last) > epoch_of(last.reached) and (not goes_on or last.closed)

    def _see(self, seen: Seen) -> None:
        known = self.streams.get(seen.stream)
        if known is None:
            empty = Incarnation(seen.content_type, seen.tail, seen.closed)
            self.streams[seen.stream] = [empty]
        elif known[-1].reached == seen.tail:
            known[-1].closed = known[-1].closed or seen.closed

    def _merge(self, names: list[str], file: ArchivedFile) -> None:
        for incarnation in self.streams.get(file.stream, []):
            held = [each.name for each in incarnation.files]
            if names[0] in held:
                at = held.index(names[0])
                old = incarnation.files[at : at + len(names)]
                same = [each.name for each in old] == names and old[0].start == file.start
                if same and old[-1].last == file.last and sum(o.rows for o in old) == file.rows:
                    incarnation.files[at : at + len(names)] = [file]
                    return
        raise ArchiveDamaged(file.name, "it is to replace files that the archive does not have")


def mergeable(sizes: list[int]) -> int:
    """Say how many of a stream's last files are better one file; 0 where none are.

    What they make is larger than the tier that they are from, so a message is written again once
    per tier at most, and a stream has few files of each tier.
    """
    for limit in _TIERS:
        count = total = 0
        for size in reversed(sizes):
            if size >= limit:
                break
            count, total = count + 1, total + size
        if count >= MERGED_FILES and total >= limit:
            return count
    return 0


def folder_name(stream: str) -> str:
    """Write the path of a stream as the name of one folder: `~` and two digits are a byte.

    `stream_name` reads it again. Only a name that file systems would find too long is cut, and told
    from others by a digest; the whole path is in the files, and in the log.
    """
    name = "".join(
        chr(byte) if chr(byte) in _PLAIN and (at or chr(byte) not in "._") else f"~{byte:02X}"
        for at, byte in enumerate(stream.encode())
    )
    if len(name) <= _NAME_BYTES:
        return name
    return f"{name[:100]}~~{sha256(stream.encode()).hexdigest()}"


def stream_name(folder: str) -> str | None:
    """Read the name of a folder; None where it was cut."""
    if "~~" in folder:
        return None
    first, *others = folder.split("~")
    data = first.encode() + b"".join(
        bytes.fromhex(other[:2]) + other[2:].encode() for other in others
    )
    return data.decode()
