"""Files of a newer format are named as the user knows them, by every command."""

import json
import struct
from pathlib import Path
from typing import Final
from zlib import crc32

import pytest

from tests.storage.disk.offline.conftest import Sample
from tests.storage.disk.offline.stores import journals, segments
from tests.storage.disk.offline.test_check import hashes
from tests.storage.disk.offline.test_commands import run

HEADER: Final = struct.Struct("<8sIIQ")


def make_newer(path: Path, copies: int) -> None:
    """Raise the version in the header of a file by one, checksum included."""
    stored = path.read_bytes()
    magic, version, more, number = HEADER.unpack_from(stored)
    changed = HEADER.pack(magic, version + 1, more, number)
    header = copies * (changed + struct.pack("<I", crc32(changed)))
    path.write_bytes(header + stored[len(header) :])


@pytest.fixture(params=["journal", "segment"])
def newer(request: pytest.FixtureRequest, killed: Sample) -> Path:
    """The newer file of a directory."""
    if request.param == "journal":
        path = journals(killed.folder)[0]
        make_newer(path, copies=2)
    else:
        path = segments(killed.folder)[0]
        make_newer(path, copies=1)
    return path


@pytest.mark.parametrize("command", ["check", "repair", "backup", "backup --copy"])
def test_it_is_refused_by_its_name(newer: Path, command: str, tmp_path: Path) -> None:
    folder, target = newer.parent.parent, tmp_path / "copy"
    before = hashes(folder)
    name, *options = command.split()
    done = run(name, str(folder), *([str(target)] if name == "backup" else []), *options)
    assert done.returncode == 1
    assert done.stderr == (
        f"Error: '{newer}' has format 2, and this version of Headwater reads formats up to 1: "
        "use the version that wrote it, or a newer one.\n"
    )
    assert hashes(folder) == before
    assert not target.exists()


def test_its_format_is_shown(newer: Path) -> None:
    folder = newer.parent.parent
    found = json.loads(run("info", str(folder), "--json").stdout)
    expected = {"catalog": 2, "journal": 1, "segments": 1}
    expected["journal" if newer.suffix == ".log" else "segments"] = 2
    assert found["formats"] == expected


def test_only_files_that_are_there_have_a_format(closed: Sample) -> None:
    for path in segments(closed.folder):
        path.unlink()
    (journal,) = journals(closed.folder)
    journal.write_bytes(b"x" * 100)
    found = json.loads(run("info", str(closed.folder), "--json").stdout)
    assert found["formats"] == {"catalog": 2}


@pytest.mark.parametrize("kind", ["journal", "segment"])
def test_a_damaged_header_is_named_too(killed: Sample, kind: str, tmp_path: Path) -> None:
    path = (journals if kind == "journal" else segments)(killed.folder)[0]
    with path.open("r+b") as file:
        file.write(b"no header")
    done = run("backup", str(killed.folder), str(tmp_path / "copy"))
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: '{path}' is damaged at byte 0: ")
