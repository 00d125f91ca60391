"""The page about storage: its commands run, and its tables are those of the formats."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

from headwater.storage.disk import catalog, journal, segments
from headwater.storage.disk.catalog import StreamRow
from headwater.storage.disk.journal import BATCH_HEADER
from headwater.storage.disk.records import HEADER as RECORD_HEADER
from headwater.storage.disk.segments import EXTENT_HEADER, extent_header

PAGE = Path(__file__).parents[4] / "docs" / "storage.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    parts = [(match[1], match[2]) for match in BLOCK.finditer(PAGE.read_text())]
    script = "set -eu\ntrap 'kill $(jobs -p) 2> /dev/null || true' EXIT\n" + "".join(
        text for language, text in parts if language == "bash"
    )
    done = subprocess.run(
        ["bash", "-c", script.replace("4438", str(free_port()))],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for language, text in parts:
        if language == "output":
            assert text.strip() in done.stdout, done.stdout


def test_the_tables_are_those_of_the_formats() -> None:
    text = PAGE.read_text()
    assert (journal.VERSION, segments.VERSION, catalog.VERSION) == (1, 1, 2)
    assert (journal.START, segments.START) == (56, 28)
    assert "| 56- | batches |" in text
    assert "| 28- | extents |" in text
    assert BATCH_HEADER == 20
    assert "| 20- | records |" in text
    assert RECORD_HEADER.size == 8
    assert "| 8 | kind |" in text
    assert EXTENT_HEADER == len(extent_header(1, 2, 3)) == 32
    assert "| 32- | bytes |" in text
    for column in StreamRow._fields:
        assert f"`{column}`" in text
