"""The suites are not test modules by name: have their assertions explained all the same."""

import pytest

for module in ("writing", "reading", "expiring", "watching", "forking", "documents", "model"):
    pytest.register_assert_rewrite(f"tests.suites.store_{module}")
pytest.register_assert_rewrite("tests.suites.steps")
