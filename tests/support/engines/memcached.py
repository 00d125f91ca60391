"""Memcached, from the system's package: nobody makes a wheel of it."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.engines.process import answers_tcp, free_port, running


@contextmanager
def start_memcached(folder: Path) -> Iterator[str]:
    """Start a server, and give its URL."""
    binary = shutil.which("memcached")
    assert binary is not None  # needs_memcached
    port = free_port()
    command = [binary, "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-m", "64"]
    if os.geteuid() == 0:
        command += ["-u", "nobody"]
    with running("Memcached", command, folder / "memcached.log", lambda: answers_tcp(port)):
        yield f"memcached://127.0.0.1:{port}"
