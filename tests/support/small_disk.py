"""File systems of a chosen size, for tests of a full disk."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

MountDisk = Callable[[str], Path]
"""Mounts a file system in memory of a size such as `16m`, and returns its folder."""


@contextmanager
def mounted_below(folder: Path) -> Iterator[MountDisk]:
    """Mount one file system below a folder on demand, and unmount it at the end."""
    place = folder / "disk"
    place.mkdir()

    def mount(size: str) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
        subprocess.run(command, check=True)
        return place

    try:
        yield mount
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=False)
