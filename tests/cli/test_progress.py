"""The line that tells how far a command is, as a person sees it on a terminal."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from typing import Final

import pytest

BLOCKS: Final = """
import os, sys, threading, time
from headwater.cli.progress import Progress

progress = Progress()
progress.show("Opening …")
progress.show("Asking …")
time.sleep(float(sys.argv[1]))
progress.clear()
assert threading.active_count() == 1, threading.enumerate()
print("Done.", file=sys.stderr)
"""
"""What says once what it does, and blocks."""

REDIRECTS: Final = """
import os, time
from headwater.cli.progress import Progress

progress = Progress()
progress.show("Starting …")
kept = os.dup(2)
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
time.sleep(2.5)
os.dup2(kept, 2)
progress.clear()
"""

FAILS: Final = """
import time, click
from headwater.cli.progress import Progress

@click.command()
def command():
    Progress().show("Asking …")
    time.sleep(2.5)
    raise click.ClickException("Nobody answers.")

command()
"""

CHANGES: Final = """
import time
from headwater.cli.progress import Progress

progress = Progress()
time.sleep(2.1)
progress.show("one")
progress.show("two")
progress.show("three")
time.sleep(0.5)
progress.clear()
"""


def shown(program: str, *arguments: str, columns: int = 80) -> str:
    """Run a program on a terminal to its end; gives all that it has written there."""
    terminal, its_end = pty.openpty()
    fcntl.ioctl(its_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with subprocess.Popen([sys.executable, "-c", program, *arguments], stderr=its_end):
        os.close(its_end)
        written = b""
        with suppress(OSError):  # how a terminal says that nobody has it open any more
            while piece := os.read(terminal, 65536):
                written += piece
    os.close(terminal)
    return written.decode()


def left(written: str) -> list[str]:
    """Give the lines that a person sees in the end."""
    erased = re.sub(r"[^\n]*\r\x1b\[K", "", written)
    return erased.splitlines()


def test_what_was_said_before_it_blocks_is_shown_after_two_seconds() -> None:
    written = shown(BLOCKS, "2.5")
    assert written.startswith("\r\x1b[KAsking …")
    assert written.count("Asking") == 1
    assert left(written) == ["Done."]


def test_what_is_over_within_two_seconds_shows_nothing_and_leaves_no_thread() -> None:
    assert shown(BLOCKS, "0.2") == "Done.\r\n"


def test_nothing_is_shown_where_there_is_no_terminal() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS, "2.5"], capture_output=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr) == (b"", b"Done.\n")


def test_the_line_is_on_the_terminal_also_while_java_gets_another_standard_error() -> None:
    assert shown(REDIRECTS) == "\r\x1b[KStarting …\r\x1b[K"


def test_an_error_stands_on_a_line_of_its_own() -> None:
    written = shown(FAILS)
    assert "Asking …" in written
    assert left(written) == ["Error: Nobody answers."]


def test_of_what_is_said_in_a_moment_the_last_stays() -> None:
    assert shown(CHANGES) == "\r\x1b[Kone\r\x1b[Kthree\r\x1b[K"


@pytest.mark.parametrize("columns", [6, 80])
def test_a_line_is_no_longer_than_the_terminal_is_wide(columns: int) -> None:
    line = "Asking …"[: columns - 1]
    assert shown(BLOCKS, "2.5", columns=columns).startswith(f"\r\x1b[K{line}\r\x1b[K")
