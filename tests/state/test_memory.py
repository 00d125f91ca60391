"""The state in memory keeps the promises of any backend."""

import pytest

from headwater.state.backend import Backend
from headwater.state.memory import MemoryBackend
from tests.suites.state_backend import StateBackendSuite


class TestMemoryBackend(StateBackendSuite):
    """Every promise."""

    @pytest.fixture
    def backend(self) -> Backend:
        return MemoryBackend()
