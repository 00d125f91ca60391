"""The progress line of a command, as a user sees it on a terminal."""

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

from tests.cli.conftest import wait_until_progress_is_due

BLOCKS: Final = """
import sys, threading
from headwater.cli._progress import Progress

progress = Progress()
progress.show("Opening …")
progress.show("Asking …")
print("begun", flush=True)
sys.stdin.read()
progress.clear()
assert threading.active_count() == 1, threading.enumerate()
print("Done.", file=sys.stderr)
"""
"""A program that shows a text once, and blocks until its input ends."""

BRIEF: Final = """
import sys, threading, time
from headwater.cli._progress import NOTICE_SECONDS, Progress

began = time.monotonic()
progress = Progress()
progress.show("Asking …")
progress.clear()
assert threading.active_count() == 1, threading.enumerate()
print("Done." if time.monotonic() - began < NOTICE_SECONDS else "Late.", file=sys.stderr)
"""

REDIRECTS: Final = """
import os, sys
from headwater.cli._progress import Progress

progress = Progress()
progress.show("Starting …")
kept = os.dup(2)
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
sys.stdin.read()
os.dup2(kept, 2)
progress.clear()
"""

FAILS: Final = """
import sys, click
from headwater.cli._progress import Progress

@click.command()
def command():
    Progress().show("Asking …")
    sys.stdin.read()
    raise click.ClickException("No answer.")

command()
"""

CHANGES: Final = """
import sys, time
from headwater.cli._progress import Progress

progress = Progress()
time.sleep(2.1)  # from now on it shows at once
began = time.monotonic()
progress.show("one")
progress.show("two")
progress.show("three")
said = time.monotonic() - began
sys.stdin.read()
progress.clear()
if said >= 0.2:
    print("Late.", file=sys.stderr)
"""


def shown(program: str, *, columns: int = 80, until: bytes = b"") -> str:
    """Run a program on a terminal, and return all that it has written there.

    Its input ends once it has shown a text, anything by default.
    """
    terminal, its_end = pty.openpty()
    fcntl.ioctl(its_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=its_end,
    ) as process:
        os.close(its_end)
        assert process.stdin is not None
        written = b""
        with suppress(OSError):  # how a terminal reports that no process has it open any more
            while piece := os.read(terminal, 65536):
                written += piece
                if until in written:
                    process.stdin.close()
    os.close(terminal)
    return written.decode()


def shown_in_time(program: str, *, until: bytes = b"") -> str:
    """Run a program on a terminal until it was not held up by a busy machine."""
    while (written := shown(program, until=until)).endswith("Late.\r\n"):
        pass
    return written


def left(written: str) -> list[str]:
    """Return the lines that a user sees in the end."""
    erased = re.sub(r"[^\n]*\r\x1b\[K", "", written)
    return erased.splitlines()


def test_a_text_shown_before_blocking_appears_after_two_seconds() -> None:
    written = shown(BLOCKS)
    assert written.startswith("\r\x1b[KAsking …")
    assert written.count("Asking") == 1
    assert left(written) == ["Done."]


def test_nothing_is_shown_within_two_seconds_and_no_thread_remains() -> None:
    assert shown_in_time(BRIEF) == "Done.\r\n"


def test_nothing_is_shown_without_a_terminal() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BLOCKS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        wait_until_progress_is_due()
        assert process.communicate(timeout=60) == (b"", b"Done.\n")


def test_the_line_is_on_the_terminal_while_standard_error_is_redirected() -> None:
    assert shown(REDIRECTS) == "\r\x1b[KStarting …\r\x1b[K"


def test_an_error_is_printed_on_a_line_of_its_own() -> None:
    written = shown(FAILS)
    assert "Asking …" in written
    assert left(written) == ["Error: No answer."]


def test_the_last_of_several_quick_texts_is_shown() -> None:
    assert shown_in_time(CHANGES, until=b"three") == "\r\x1b[Kone\r\x1b[Kthree\r\x1b[K"


@pytest.mark.parametrize("columns", [6, 80])
def test_a_line_is_truncated_to_the_width_of_the_terminal(columns: int) -> None:
    line = "Asking …"[: columns - 1]
    assert shown(BLOCKS, columns=columns).startswith(f"\r\x1b[K{line}\r\x1b[K")
