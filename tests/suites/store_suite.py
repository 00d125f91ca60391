"""Everything that `headwater.storage.store.Store` promises, for any backend.

Subclass it, and give it a fixture named `store` that makes a store that is not open yet:

    class TestMemoryStore(StoreSuite):
        @pytest.fixture
        def store(self) -> Store:
            return MemoryStore()
"""

from tests.suites.store_documents import Keeping, Listing, Observing
from tests.suites.store_expiring import Expiring, Reaping
from tests.suites.store_forking import Chaining, Forking, Inheriting, KeepingAlive
from tests.suites.store_reading import Cutting, Reading, Refusing
from tests.suites.store_splitting import Splitting
from tests.suites.store_watching import Watching
from tests.suites.store_writing import Appending, Closing, Creating, Deleting, Opening, Producing


class StoreSuite(
    Opening,
    Creating,
    Appending,
    Producing,
    Closing,
    Deleting,
    Reading,
    Cutting,
    Refusing,
    Splitting,
    Expiring,
    Reaping,
    Watching,
    Forking,
    Chaining,
    KeepingAlive,
    Inheriting,
    Observing,
    Listing,
    Keeping,
):
    """One class of behaviours after another."""
