"""The compiled wheel keeps what the sources promise: the suites of what is compiled pass on it.

The crash tests and the conformance tests of the disk store run on it as well.
"""

from pathlib import Path

import pytest

from tests.support.compiled import run_python

pytestmark = pytest.mark.needs_compiler

SUITES = (
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


def test_what_every_request_passes_through_is_compiled(compiled: Path) -> None:
    names = "headwater.server.http", "headwater.storage.disk.store", "headwater.protocol.framing"
    look = f"import {', '.join(names)}, sys; print(*(sys.modules[n].__file__ for n in {names}))"
    files = run_python("-c", look, PYTHONPATH=str(compiled)).split()
    assert len(files) == len(names)
    assert all(file.startswith(str(compiled)) and file.endswith(".so") for file in files)


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_passes_on_it(compiled: Path, suite: str) -> None:
    shown = run_python("-m", "pytest", "-q", suite, PYTHONPATH=str(compiled))
    assert " passed" in shown
