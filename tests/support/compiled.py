"""The compiled wheel, built once for each state of the sources and unpacked beside the environment.

With `HEADWATER_TEST_BUILD=compiled`, as in `make test`, every server that a test starts runs from
it, as a release does. Otherwise, and on a machine without a compiler, servers run the sources.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from fcntl import LOCK_EX, flock
from functools import cache
from pathlib import Path
from typing import Final
from zipfile import ZipFile

from tests.support.capabilities import can_compile

ROOT: Final = Path(__file__).parents[2]
_BUILDS: Final = Path(sys.prefix) / "compiled"


def server_environment() -> dict[str, str]:
    """Return what the environment of a server has to hold so that it runs the build under test."""
    if os.environ.get("HEADWATER_TEST_BUILD") != "compiled" or not can_compile():
        return {}
    return {"PYTHONPATH": str(compiled_package())}


@cache
def compiled_package() -> Path:
    """Build the wheel as a release is built, unless these sources were built already."""
    _BUILDS.mkdir(exist_ok=True)
    target = _BUILDS / _fingerprint()
    with (_BUILDS / "lock").open("w") as lock:
        flock(lock, LOCK_EX)  # tests run in several processes
        if not target.exists():
            for old in _BUILDS.iterdir():
                if old.is_dir():
                    shutil.rmtree(old)
            _build(target)
    return target


def _build(target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=_BUILDS) as name:
        folder = Path(name)
        run_python("-m", "hatchling", "build", "--target", "sdist", "--directory", name)
        (source,) = folder.glob("*.tar.gz")
        run_python(
            *("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"),
            *("--disable-pip-version-check", "--wheel-dir", name, str(source)),
            HATCH_BUILD_HOOK_ENABLE_MYPYC="1",
        )
        (wheel,) = folder.glob("*.whl")
        with ZipFile(wheel) as archive:
            archive.extractall(folder / "unpacked")
        (folder / "unpacked").rename(target)


def run_python(*arguments: str, **environment: str) -> str:
    """Run Python in the project's folder, without the settings of the tests' own pytest."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**ours, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def _fingerprint() -> str:
    digest = hashlib.sha256(sys.version.encode())
    for file in (ROOT / "pyproject.toml", *_sources()):
        digest.update(f"\0{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def _sources() -> Iterator[Path]:
    return iter(sorted((ROOT / "src").rglob("*.py")))


if __name__ == "__main__":
    if can_compile():
        compiled_package()
