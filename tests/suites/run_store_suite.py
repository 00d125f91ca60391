"""Everything that `headwater.runs.store.RunStore` promises, for any backend.

Subclass it, and give it a fixture named `store` that makes a store that is empty and not open yet:

    class TestMemoryRunStore(RunStoreSuite):
        @pytest.fixture
        def store(self) -> RunStore:
            return MemoryRunStore()

A store that several processes can share also passes `SharedFireSuite`, which wants a fixture
named `run_store_url`; every store passes `FireSuite` (both in `run_store_fire`).
"""

from tests.suites.run_store_reading import (
    Changing,
    Checkpointing,
    Fetching,
    Listing,
    Snapshots,
)
from tests.suites.run_store_writing import (
    Appending,
    Batching,
    Deduplicating,
    Deleting,
    Opening,
)


class RunStoreSuite(
    Opening,
    Appending,
    Deduplicating,
    Batching,
    Deleting,
    Fetching,
    Snapshots,
    Listing,
    Changing,
    Checkpointing,
):
    """One class of behaviours after another."""
