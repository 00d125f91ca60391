"""What is killed is the server that users run: compiled, where there is a compiler."""

import pytest

from tests.support.compiled import RUNS_COMPILED


@pytest.fixture(autouse=True)
def build(request: pytest.FixtureRequest) -> None:
    if RUNS_COMPILED:
        request.getfixturevalue("serves_compiled")
