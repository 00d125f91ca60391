"""Errors of run stores."""

from headwater.errors.base import HeadwaterError


class RunError(HeadwaterError):
    """The run store can't perform an operation."""

    code = "RUN_ERROR"
    """A stable name of the cause, as sent in a problem document."""


class EventRefused(RunError):
    """An event violates the contract; nothing of its batch was written."""

    code = "SCHEMA_VALIDATION_FAILED"

    def __init__(self, reason: str, *, run_id: str = "", event_type: str = "") -> None:
        what = f"{event_type} of run '{run_id}'" if event_type and run_id else "the event"
        super().__init__(f"Nothing was written: {what} is refused, because {reason}.")
        self.reason = reason
        self.run_id = run_id
        self.event_type = event_type


class KeyFieldRefused(EventRefused):
    """A field can't be part of an idempotency key."""

    def __init__(self, name: str, value: str) -> None:
        super().__init__(f"{name}={value!r} contains '|', which separates the fields of the key")
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
    """A query for runs has a parameter that can't be used."""

    code = "BAD_QUERY"

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(f"{name}={value!r} can't be used: expected {expected}.")
        self.name = name
        self.value = value


class RunNotFound(RunError):
    """The run does not exist, or was deleted."""

    code = "RUN_NOT_FOUND"

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"There is no run '{run_id}': append its first event, or list all runs with "
            "'headwater runs list'."
        )
        self.run_id = run_id


class RunDeleted(RunError):
    """The run was deleted and accepts no more events."""

    code = "RUN_DELETED"

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"Run '{run_id}' was deleted, and a deleted run accepts no more events: "
            "use another run id."
        )
        self.run_id = run_id


class RunLogDamaged(RunError):
    """A stored event or checkpoint can't be read."""

    code = "RUN_LOG_DAMAGED"

    def __init__(self, run_id: str, place: str, reason: str) -> None:
        super().__init__(
            f"{place} of run '{run_id}' can't be read: {reason}. Other runs are not affected; "
            f"'headwater runs verify {run_id}' reports what can still be read."
        )
        self.run_id = run_id


class RunStoreDamaged(RunError):
    """The database file of the run store can't be read."""

    code = "RUN_STORE_DAMAGED"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"The runs in '{path}' can't be read: {reason}. Restore the file from a backup, or "
            "move it away with its -wal and -shm files to start without runs; the streams in the "
            "same directory are not affected."
        )
        self.path = path
        self.reason = reason


class CacheUnavailable(RunError):
    """A cache of snapshots is unavailable; the store that it caches is not affected."""

    code = "CACHE_UNAVAILABLE"

    def __init__(self, cache: str, reason: str) -> None:
        super().__init__(f"The cache at {cache} is unavailable: {reason}. Restart it.")
        self.cache = cache
        self.reason = reason


class RunStoreUnavailable(RunError):
    """The database of the run store is unavailable; repeat the call with the same keys."""

    code = "STORE_UNAVAILABLE"

    def __init__(self, store: str, reason: str) -> None:
        super().__init__(
            f"The run store at {store} is unavailable: {reason}. A call in flight may have been "
            "written; repeat it with the same idempotency keys."
        )
        self.store = store
        self.reason = reason
