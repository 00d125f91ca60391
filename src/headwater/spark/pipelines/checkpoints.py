"""The checkpoint folder of a pipeline: how far it is, whose it is, and who runs on it.

Spark writes `offsets/N` before batch N and `commits/N` behind it. Beside them stands what is ours:
which pipeline the folder belongs to, and a lock that ends with its process, however that ends.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from headwater.errors import CheckpointTaken, CheckpointUnreadable, CheckpointUnwritable
from headwater.spark.pipelines.problems import Problem
from headwater.spark.pipelines.rules import view_names
from headwater.spark.pipelines.values import Pipeline, Scalar, Source, as_text

OWNER: Final = "headwater-pipeline.json"
LOCK: Final = "headwater-pipeline.lock"
STARTING: Final = "startingOffsets"
_NONE: Final = "-"
"""What Spark writes for a source that has no offset yet."""


class Committed(Struct, frozen=True):
    """The last batch that is done."""

    batch: int
    offsets: dict[str, str]
    """Where each stream goes on."""
    began: float
    """Seconds since 1970."""
    is_next_begun: bool = False
    """Whether another batch was begun; it is done again."""


class Owner(Struct, frozen=True):
    """What a checkpoint was written by: as much of a pipeline as must not change under it."""

    name: str
    kind: str
    place: str
    url: str
    steps: list[str] = []
    format: str = ""
    """Of tables or files; empty where there are none, or where an older version has not said it."""
    streams: list[str] = []
    """Paths and globs that are read, for whoever asks how far it is and has no file of it."""
    starting: str = ""
    """Where it has begun, where it was told."""

    @staticmethod
    def of(pipeline: Pipeline) -> "Owner":
        views = view_names(pipeline.transform)
        steps = [
            f"{view}: {step.sql or step.python}"
            for view, step in zip(views, pipeline.transform, strict=True)
        ]
        place = pipeline.target.place
        format_ = getattr(pipeline.target, "format", "")
        url, streams = pipeline.source.url, list(pipeline.source.streams)
        starting = [
            as_text(value)
            for name, value in pipeline.source.options.items()
            if name.lower() == STARTING.lower()
        ]
        told = "".join(starting[-1:])
        return Owner(pipeline.name, pipeline.kind, place, url, steps, format_, streams, told)

    @property
    def source(self) -> Source:
        """Give where its streams are."""
        options: dict[str, Scalar] = {STARTING: self.starting} if self.starting else {}
        return Source(url=self.url, stream=tuple(self.streams), options=options)


def local_folder(checkpoint: str) -> Path | None:
    """Give the folder of a checkpoint; None where it is on no file system of this machine."""
    path = checkpoint.removeprefix("file://")
    return None if "://" in path else Path(path)


def last_committed(folder: Path) -> Committed | None:
    """Read how far the committed batches go; None where there is none."""
    batch = _last(folder / "commits")
    if batch is None:
        return None
    metadata, offsets = _read_offsets(folder / "offsets" / str(batch))
    begun = _last(folder / "offsets")
    return Committed(
        batch,
        offsets,
        float(metadata.get("batchTimestampMs", 0)) / 1000,
        is_next_begun=begun is not None and begun > batch,
    )


def owner(folder: Path) -> Owner | None:
    """Read which pipeline a checkpoint belongs to; None where nobody has said so."""
    file = folder / OWNER
    try:
        return msgspec.json.decode(file.read_bytes(), type=Owner)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointUnreadable(str(file), error.strerror or str(error)) from None
    except msgspec.DecodeError as error:
        raise CheckpointUnreadable(str(file), str(error)) from None


def own(folder: Path, pipeline: Pipeline) -> None:
    """Say which pipeline a checkpoint belongs to."""
    folder.mkdir(parents=True, exist_ok=True)
    before, now = owner(folder), Owner.of(pipeline)
    if before is not None and not before.format:
        # Whether this is the format that it was begun with, the tables alone know.
        now = structs.replace(now, format="")
    told = msgspec.json.encode(now)
    file = folder / OWNER
    if not file.exists() or file.read_bytes() != told:
        new = folder / f".{OWNER}.new"
        new.write_bytes(told)
        new.replace(file)


def mismatches(before: Owner, now: Owner) -> list[Problem]:
    """Tell what has changed since the checkpoint was written, and whether it can go on."""
    found = []
    flag = " (--state of the command)" if now.kind == "publish" else ""
    anew = f"set another checkpoint{flag} to begin anew"
    if before.kind != now.kind:
        what = f"belongs to a pipeline with the target '{before.kind}', not '{now.kind}': {anew}"
        found.append(Problem("checkpoint", what))
    elif before.place != now.place and now.kind == "publish":
        what = (
            f"keeps what was read of the stream {before.place}, not of {now.place}: set another "
            f"checkpoint{flag} for that one, or set the target back"
        )
        found.append(Problem("checkpoint", what))
    elif before.place != now.place:
        what = (
            f"was written for {before.place}, not {now.place}, which would miss everything "
            f"before: {anew}, or set the target back"
        )
        found.append(Problem("checkpoint", what))
    elif before.format not in {"", now.format}:
        what = (
            f"was written for tables of the format {before.format}, not {now.format}, which would "
            f"miss everything before: {anew} in another folder, or set the format back"
        )
        found.append(Problem("checkpoint", what))
    if before.url != now.url:
        what = f"was written with the server {before.url}: this must be the same data"
        found.append(Problem("checkpoint", what, is_warning=True))
    if before.steps != now.steps:
        what = f"the transforms have changed: rows from before stay as they are, or {anew}"
        found.append(Problem("checkpoint", what, is_warning=True))
    return found


def holder(folder: Path) -> str | None:
    """Name the process that runs on a checkpoint; None where there is none."""
    try:
        with (folder / LOCK).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read().decode(errors="replace").strip() or "?"
    except FileNotFoundError:
        pass
    except OSError as error:
        raise CheckpointUnreadable(str(folder / LOCK), error.strerror or str(error)) from None
    return None


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep others off a checkpoint; the system lets go of it when this process ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("a+b")
    except OSError as error:
        raise CheckpointUnwritable(str(folder), error.strerror or str(error)) from None
    with lock as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            who = file.read().decode(errors="replace").strip()
            raise CheckpointTaken(str(folder), who) from None
        file.truncate(0)
        file.write(str(os.getpid()).encode())
        file.flush()
        yield


def _last(folder: Path) -> int | None:
    """Find the highest number among the files; Spark's temporary ones begin with a dot."""
    try:
        numbers = [int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointUnreadable(str(folder), error.strerror or str(error)) from None
    return max(numbers, default=None)


def _read_offsets(file: Path) -> tuple[dict[str, Any], dict[str, str]]:
    try:
        version, metadata, *sources = file.read_text().splitlines()
        if not version.startswith("v"):
            raise CheckpointUnreadable(str(file), f"its first line is {version[:20]!r}")
        offsets: dict[str, str] = {}
        for line in sources:
            if line != _NONE:
                offsets |= msgspec.json.decode(line, type=dict[str, str])
        return msgspec.json.decode(metadata, type=dict[str, Any]), offsets
    except OSError as error:
        raise CheckpointUnreadable(str(file), error.strerror or str(error)) from None
    except (ValueError, msgspec.DecodeError) as error:
        raise CheckpointUnreadable(str(file), str(error)) from None
