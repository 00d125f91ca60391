"""The suites are not test modules by name: have their assertions explained all the same."""

import pytest

for module in ("store_writing", "store_reading", "store_fire", "steps"):
    pytest.register_assert_rewrite(f"tests.suites.run_{module}")
