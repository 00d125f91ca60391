"""How much the tests try: little by default, more where HEADWATER_TEST_EFFORT says so."""

import os
from typing import Final

EFFORT: Final = int(os.environ.get("HEADWATER_TEST_EFFORT", "1"))
"""1 for every change; `make test-long` sets 10."""


def examples(quick: int, thorough: int) -> int:
    """Give the number of examples for Hypothesis: `thorough` only where time is taken for it."""
    return thorough if EFFORT > 1 else quick
