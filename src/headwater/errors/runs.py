"""What run stores raise."""

from headwater.errors.base import HeadwaterError


class RunError(HeadwaterError):
    """The run store can't do what it was asked to."""

    code = "RUN_ERROR"
    """A stable name of the cause, as it is written on the wire."""


class EventRefused(RunError):
    """An event does not keep the contract; nothing of its batch was written."""

    code = "SCHEMA_VALIDATION_FAILED"

    def __init__(self, reason: str, *, run_id: str = "", event_type: str = "") -> None:
        what = f"{event_type} of run '{run_id}'" if event_type and run_id else "the event"
        super().__init__(f"Nothing was written: {what} is refused, since {reason}.")
        self.reason = reason
        self.run_id = run_id
        self.event_type = event_type


class KeyFieldRefused(EventRefused):
    """A field can't be part of an idempotency key."""

    def __init__(self, name: str, value: str) -> None:
        super().__init__(f"{name}={value!r} holds '|', which separates the fields of the key")
        self.name = name
        self.value = value


class UnknownContract(EventRefused):
    """The event was written for another major version of the contract."""

    code = "CONTRACT_VERSION_UNSUPPORTED"

    def __init__(self, version: str, known: str) -> None:
        super().__init__(
            f"its contractVersion is {version!r}, and this Headwater knows {known}: "
            "use a Headwater that knows it"
        )
        self.version = version


class RunQueryRefused(RunError):
    """A question about runs can't be answered as it was asked."""

    code = "BAD_QUERY"

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(f"{name}={value!r} can't be used: expected {expected}.")
        self.name = name
        self.value = value


class RunNotFound(RunError):
    """No such run, or it was deleted."""

    code = "RUN_NOT_FOUND"

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"There is no run '{run_id}': append its first event, or list what is there with "
            "'headwater runs list'."
        )
        self.run_id = run_id


class RunDeleted(RunError):
    """The run was deleted and takes no more events."""

    code = "RUN_DELETED"

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"Run '{run_id}' was deleted, and a deleted run takes no more events: "
            "use another run id."
        )
        self.run_id = run_id


class RunLogDamaged(RunError):
    """A stored event or checkpoint can't be read."""

    code = "RUN_LOG_DAMAGED"

    def __init__(self, run_id: str, place: str, reason: str) -> None:
        super().__init__(
            f"{place} of run '{run_id}' can't be read: {reason}. Other runs are not affected; "
            f"'headwater runs verify {run_id}' says what is left."
        )
        self.run_id = run_id


class RunStoreDamaged(RunError):
    """The file that keeps runs can't be read."""

    code = "RUN_STORE_DAMAGED"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"The runs in '{path}' can't be read: {reason}. Put back the file of a backup, or move "
            "it away, with its -wal and -shm files, to begin without runs; the streams beside it "
            "are not affected."
        )
        self.path = path
        self.reason = reason


class CacheUnavailable(RunError):
    """A cache of snapshots can't be used now; the store behind it still can."""

    code = "CACHE_UNAVAILABLE"

    def __init__(self, cache: str, reason: str) -> None:
        super().__init__(f"The cache at {cache} can't be used now: {reason}. Start it again.")
        self.cache = cache
        self.reason = reason


class RunStoreUnavailable(RunError):
    """The store behind can't be used now; the same call, with the same keys, may be repeated."""

    code = "STORE_UNAVAILABLE"

    def __init__(self, store: str, reason: str) -> None:
        super().__init__(
            f"The run store at {store} can't be used now: {reason}. What was under way may have "
            "been written; repeat it with the same idempotency keys."
        )
        self.store = store
        self.reason = reason
