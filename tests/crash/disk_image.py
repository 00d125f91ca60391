"""A disk whose power can be cut: an ext4 file system in a file.

`FS_IOC_SHUTDOWN` ends a file system at once: what it has not sent to its device by then, data and
its own journal alike, never gets there, and the next mount replays the journal as after a power
cut. A copy of the file would take its time, and hold blocks of several moments.
"""

import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path
from typing import Final

from tests.support.capabilities import MKFS

_SHUTDOWN: Final = 0x8004587D
_WITHOUT_FLUSHING: Final = struct.pack("I", 2)


class DiskImage:
    """One file system, mounted at `place`."""

    def __init__(self, folder: Path, size: int) -> None:
        self._image = folder / "image"
        self.place = folder / "disk"
        self.place.mkdir()
        with self._image.open("wb") as file:
            file.truncate(size)
        _run(MKFS or "mkfs.ext4", "-q", "-F", "-b", "4096", str(self._image))
        self._mount()

    def _mount(self) -> None:
        _run("mount", "-t", "ext4", "-o", "loop", str(self._image), str(self.place))

    def cut_power(self) -> None:
        """Send nothing more to the device; every use of a file fails from here on."""
        fd = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            ioctl(fd, _SHUTDOWN, _WITHOUT_FLUSHING)
        finally:
            os.close(fd)

    def restore_power(self) -> None:
        """Mount what the device holds; no file may be open."""
        _run("umount", str(self.place))
        self._mount()

    def close(self) -> None:
        """Unmount, which gives the loop device back."""
        if self.place.is_mount():
            _run("umount", "--lazy", str(self.place))


@contextmanager
def disk_image(folder: Path, size: int) -> Iterator[DiskImage]:
    """Make a disk below a folder, for as long as it is used."""
    disk = DiskImage(folder, size)
    try:
        yield disk
    finally:
        disk.close()


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        failure = f"{command[0]}: {done.stderr.strip()}" if done.returncode else ""
    except FileNotFoundError as error:
        failure = str(error)
    assert not failure, (
        "This test needs a disk of its own and can't make one: run it as root, or with the right "
        f"to mount, where there are mkfs.ext4 and a free loop device ({failure})."
    )
