"""A start, a check, a backup and a repair agree on what is damage."""

import random
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings

from headwater.errors import StoreDamaged
from headwater.storage.disk.offline.backup import backup
from headwater.storage.disk.offline.check import check
from headwater.storage.disk.offline.repair import prepare
from headwater.storage.disk.records import (
    APPEND,
    NOTHING_ELSE,
    AppendExtras,
    CreateMeta,
    encode_append,
    encode_create,
    encode_delete,
    encode_keep,
)
from tests.storage.disk.offline.conftest import Sample
from tests.storage.disk.offline.repairs import repaired
from tests.storage.disk.offline.stores import contents, journals, number_of, with_records
from tests.suites.steps import BINARY
from tests.support.effort import examples

STEPS: Final = st.lists(
    st.tuples(
        st.sampled_from(
            ["create", "fork", "append", "append", "append", "close", "delete", "keep"]
        ),
        st.integers(1, 6),
        st.sampled_from([0] * 12 + [-1, 1]),
    ),
    max_size=12,
)
"""What a record does, to which stream, and how far from the end of the stream."""


def unreadable(stream: int) -> list[bytes]:
    """Encode a record that is too short for its kind."""
    return [bytes([APPEND]) + stream.to_bytes(8, "little")]


def records(steps: list[tuple[str, int, int]]) -> list[list[bytes]]:
    """Encode records, of which few contradict those before them."""
    ends: dict[int, int] = {}
    encoded = []
    for kind, number, shift in steps:
        at = max(0, ends.get(number, 0) + shift)
        if kind in ("create", "fork"):
            created = max(ends, default=0) + 1
            source = min(number, created - 1) if kind == "fork" else 0
            begin = ends.get(source, 0)
            meta = CreateMeta(
                f"s/{created}", BINARY, None, None, None, closed=False, now=0.0,
                source_path=f"s/{source}" if source else None, source=source,
                anchor=(source, begin), at=begin,
            )  # fmt: skip
            encoded.append(encode_create(created, meta, b"new"))
            ends[created] = begin + 3
        elif kind == "append":
            encoded.append(encode_append(number, at, 0.0, NOTHING_ELSE, b"more"))
            ends[number] = max(ends.get(number, 0), at + 4)
        elif kind == "close":
            encoded.append(encode_append(number, at, 0.0, AppendExtras(close=True), b""))
        elif kind == "unreadable":
            encoded.append(unreadable(number))
        elif kind == "delete":
            encoded.append(encode_delete(number, 0.0))
        else:
            encoded.append(encode_keep({str(number): b"1"}))
    return encoded


def starts(folder: Path) -> bool:
    """Return whether a store opens a copy of a directory."""
    copy = folder.with_name(f"{folder.name}-started")
    shutil.copytree(folder, copy)
    try:
        contents(copy)
    except StoreDamaged:
        return False
    finally:
        shutil.rmtree(copy)
    return True


def copies(folder: Path) -> bool:
    """Return whether a backup of a directory is possible."""
    copy = folder.with_name(f"{folder.name}-copied")
    try:
        backup(folder, copy)
    except StoreDamaged:
        return False
    shutil.rmtree(copy)
    return True


def assert_agreement(folder: Path) -> None:
    """A check finds damage where a start and a backup refuse, and a repair removes it."""
    damages = check(folder).damages
    assert starts(folder) == copies(folder) == (not damages), damages
    if damages:
        repaired(folder)
        assert starts(folder)
    else:
        with prepare(folder) as repair:
            assert not repair.needed


@settings(max_examples=examples(12, 400), deadline=None)
@given(STEPS)
def test_about_records_that_contradict_each_other(steps: list[tuple[str, int, int]]) -> None:
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / "data"
        with_records(folder, records(steps))
        assert_agreement(folder)


def harm(path: Path, chance: random.Random) -> None:
    """Damage a file, most often where it holds something."""
    stored = bytearray(path.read_bytes())
    used = len(stored.rstrip(b"\0"))
    if not used:
        return
    at = chance.choice([chance.randrange(60), chance.randrange(used), used - chance.randrange(60)])
    count = chance.choice([1, 20, 500])
    match chance.choice(["flip", "flip", "flip", "zeros", "noise", "page", "cut", "lost"]):
        case "flip":
            stored[at] ^= 1 << chance.randrange(8)
        case "zeros":
            stored[at : at + count] = bytes(count)
        case "noise":
            stored[at : at + count] = chance.randbytes(count)
        case "page":
            stored[at // 4096 * 4096 : at // 4096 * 4096 + 4096] = bytes(4096)
        case "cut":
            del stored[at:]
        case "lost":
            path.unlink()
            return
    path.write_bytes(stored)


@settings(
    max_examples=examples(12, 400),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.integers(0, 2**32))
def test_about_damaged_journal_files(twice_killed: Sample, seed: int) -> None:
    chance = random.Random(seed)
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / "data"
        shutil.copytree(twice_killed.folder, folder)
        for _ in range(chance.choice([1, 1, 2])):
            if files := journals(folder):
                harm(chance.choice(files), chance)
        assert_agreement(folder)
        found = contents(folder)
        for path, data in twice_killed.written.items():
            assert data.startswith(found.get(path, b"")), path


def test_a_stream_that_lost_an_unreadable_record_gets_a_new_number(tmp_path: Path) -> None:
    """What it held is unknown: offsets of what comes must not be those of what is lost."""
    folder = tmp_path / "data"
    with_records(folder, [*records([("create", 1, 0), ("create", 1, 0)]), unreadable(1)])
    assert_agreement(folder)
    assert contents(folder) == {"s/1": b"new", "s/2": b"new"}
    assert number_of(folder, "s/1") > 2
    assert number_of(folder, "s/2") == 2
