"""Which Python our server is measured on: `python -m bench.interpreters` names the fastest.

The peer runs on a Node that was built with every optimisation. Pythons of distributions, of
python.org and of container images are built that way too; one that was compiled on the machine
often is not, and the same server is then a fifth slower. No setting tells them apart for certain,
so a short loop does.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_LEAST = (3, 11)
_ROUNDS = 3
_FOLDERS = ("/usr/bin", "/usr/local/bin", "/opt/homebrew/bin")
_LOOP = """
import sys, time

class Point:
    __slots__ = ("x",)
    def __init__(self, x):
        self.x = x
    def plus(self, y):
        return self.x + y

def loop():
    point = Point(1)
    for number in range(300_000):
        kept = {"sum": point.plus(number)}
    return kept

def seconds():
    began = time.process_time()
    loop()
    return time.process_time() - began

print(*sys.version_info[:3], min(seconds() for _ in range(7)))
"""


def measure(python: str) -> tuple[tuple[int, ...], float] | None:
    """Give the version of a Python and the processor seconds of a loop; None if there is none."""
    try:
        told = subprocess.run(
            [python, "-c", _LOOP], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    *version, seconds = told.stdout.split()
    return tuple(map(int, version)), float(seconds)


def fastest() -> str:
    """Choose among this Python and those that are installed."""
    found: dict[str, float] = {}
    for python in (sys.executable, *_others()) * _ROUNDS:
        known = measure(python)
        if known is not None and known[0] >= _LEAST:
            found[python] = min(known[1], found.get(python, known[1]))
    # One that is a little faster by chance is not worth leaving this one for.
    others = {python: seconds * 1.05 for python, seconds in found.items()}
    others[sys.executable] = found[sys.executable]
    return min(others, key=others.__getitem__)


def _others() -> Iterator[str]:
    seen = set()
    for name in ("python3", "python3.11", "python3.12", "python3.13"):
        for place in (shutil.which(name), *(str(Path(folder) / name) for folder in _FOLDERS)):
            if place is not None and (whole := Path(place).resolve()) not in seen:
                seen.add(whole)
                yield place


if __name__ == "__main__":
    print(fastest())
