"""The suites are not test modules by name: have their assertions explained all the same."""

from pathlib import Path

import pytest

for suite in sorted((Path(__file__).parent / "suites").glob("*.py")):
    pytest.register_assert_rewrite(f"tests.suites.{suite.stem}")
