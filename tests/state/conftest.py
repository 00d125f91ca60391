"""The model is not a test module by name: have its assertions explained all the same."""

import pytest

pytest.register_assert_rewrite("tests.state.model")
