"""The compiled wheel keeps what the sources promise: the suites of what is compiled pass on it.

All servers of `make test` run on it as well: those of the crash and conformance tests among them.
"""

import tomllib
from pathlib import Path
from typing import Final

import pytest

from tests.support.compiled import ROOT, compiled_package, run_python
from tests.support.effort import EFFORT

pytestmark = pytest.mark.needs_compiler

SUITES: Final = (
    "tests/protocol/test_framing.py",
    "tests/protocol/test_lifecycle.py",
    "tests/protocol/test_offsets.py",
    "tests/server/test_response_cache.py",
    f"tests/storage/test_disk.py{'' if EFFORT > 1 else '::TestDiskStoreWithHardlyAnyMemory'}",
)
"""Those that run in the process of the tests, without a server."""


def test_every_module_that_is_listed_for_compilation_is_compiled() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["mypyc"]["include"]
    names = [file.removeprefix("src/").removesuffix(".py").replace("/", ".") for file in listed]
    look = f"import {', '.join(names)}, sys; print(*(sys.modules[n].__file__ for n in {names}))"
    files = run_python("-c", look, PYTHONPATH=str(compiled_package())).split()
    assert len(files) == len(names) > 10
    wrong = [file for file in files if not (file.endswith(".so") and is_ours(file))]
    assert wrong == []


def is_ours(file: str) -> bool:
    return Path(file).is_relative_to(compiled_package())


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_passes_on_it(suite: str) -> None:
    shown = run_python("-m", "pytest", "-q", suite, PYTHONPATH=str(compiled_package()))
    assert " passed" in shown
