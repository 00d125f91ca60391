"""The compiled wheel keeps what the sources promise: the same suites pass on it."""

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
SUITES = (
    "tests/conformance/test_server.py::test_the_disk_store_conforms",
    "tests/crash",
    "tests/protocol/test_framing.py",
    "tests/protocol/test_lifecycle.py",
    "tests/protocol/test_offsets.py",
    "tests/server/test_files.py",
    "tests/server/test_http.py",
    "tests/server/test_limits.py",
    "tests/server/test_read.py",
    "tests/server/test_read_cache.py",
    "tests/server/test_stop.py",
    "tests/storage/test_disk.py",
)
"""Those of the modules that are compiled, and of what holds them all: the public suite, on disk."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel as a release is built, and unpack it."""
    folder = tmp_path_factory.mktemp("wheel")
    _run("-m", "hatchling", "build", "--target", "sdist", "--directory", str(folder))
    (source,) = folder.glob("*.tar.gz")
    build = ("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index")
    _run(
        *(*build, "--disable-pip-version-check", "--wheel-dir", str(folder), str(source)),
        HATCH_BUILD_HOOK_ENABLE_MYPYC="1",
    )
    (wheel,) = folder.glob("*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


def _run(*arguments: str, **environment: str) -> str:
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


def test_what_every_request_passes_through_is_compiled(compiled: Path) -> None:
    names = "headwater.server.http", "headwater.storage.disk.store", "headwater.protocol.framing"
    look = f"import {', '.join(names)}, sys; print(*(sys.modules[n].__file__ for n in {names}))"
    files = _run("-c", look, PYTHONPATH=str(compiled)).split()
    assert len(files) == len(names)
    assert all(file.startswith(str(compiled)) and file.endswith(".so") for file in files)


@pytest.mark.timeout(900)  # they have their own limits
def test_the_suites_pass_on_it(compiled: Path) -> None:
    shown = _run("-m", "pytest", "-q", *SUITES, PYTHONPATH=str(compiled))
    assert " passed" in shown
