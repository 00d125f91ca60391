"""What some tests need from the machine because no wheel holds it.

A test that lacks one is skipped, and the summary says how to enable it. In CI, where all of them
are promised (`CI=true`), it fails instead.
"""

import os
import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

MKFS: Final = shutil.which("mkfs.ext4", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
"""The path of an ordinary user often lacks the folders of system tools."""


class Capability(NamedTuple):
    """Something that a marker `needs_…` asks for."""

    is_there: Callable[[], bool]
    enable: str
    """How to get it, as the end of a sentence."""


def _can_mount() -> bool:
    return os.geteuid() == 0 and MKFS is not None and Path("/dev/loop-control").exists()


def can_compile() -> bool:
    """Report whether this machine can build the compiled wheel."""
    return bool(shutil.which("cc")) and Path(sysconfig.get_path("include"), "Python.h").exists()


CAPABILITIES: Final = {
    "needs_root": Capability(
        _can_mount, "run as root, with mkfs.ext4 (Debian: e2fsprogs) and a free loop device"
    ),
    "needs_memcached": Capability(
        lambda: shutil.which("memcached") is not None, "install memcached (Debian: memcached)"
    ),
    "needs_compiler": Capability(
        can_compile, "install a C compiler and Python's headers (Debian: gcc python3-dev)"
    ),
    "needs_maven": Capability(
        lambda: shutil.which("mvn") is not None, "install Maven (Debian: maven)"
    ),
}


def reason_to_skip(marker: str) -> str:
    """Say what to do so that tests with a marker run here; empty where they can."""
    capability = CAPABILITIES[marker]
    return "" if capability.is_there() else f"{marker}: {capability.enable}"
