"""Errors of state streams and of the databases over them."""

from headwater.errors.base import HeadwaterError


class StateError(HeadwaterError):
    """A state stream, or a database or file built from one, can't be used."""


class NotStateEvents(StateError):
    """A batch is not a JSON array of messages, so its events can't be decoded."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"A batch can't be read as state events: {reason}. A state stream holds JSON: check "
            "that the URL names one."
        )
        self.reason = reason


class InvalidEvent(StateError):
    """A message breaks a rule of the state protocol."""

    def __init__(self, position: str, field: str, reason: str) -> None:
        where = f" at {position}" if position else ""
        what = f"{field} {reason}" if field else reason
        super().__init__(
            f"The message{where} is not a state event: {what}. Correct its writer; to read on "
            "regardless, quarantine or drop such messages."
        )
        self.position = position
        self.field = field
        self.reason = reason


class InvalidValue(StateError):
    """A value does not fit the schema of its type."""

    def __init__(self, type: str, key: str, reason: str) -> None:
        super().__init__(f"The value of {type} '{key}' does not fit its schema: {reason}.")
        self.type = type
        self.key = key
        self.reason = reason


class SchemaError(StateError):
    """Collections or their schemas can't be used."""


class StateNotReady(StateError):
    """The state has not been loaded."""

    def __init__(self) -> None:
        super().__init__("The state has not been loaded: call preload() first.")


class StateStopped(StateError):
    """The database no longer follows its stream; its present state can still be read."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"The database has stopped following its stream: {reason}")
        self.reason = reason


class CollectionStopped(StateError):
    """A collection stopped at an invalid value, as its policy requires; others continue."""

    def __init__(self, type: str, position: str, reason: str) -> None:
        super().__init__(
            f"The collection of '{type}' stopped at {position}: {reason}. Correct the schema or "
            "the data, then restart() the database to load it again."
        )
        self.type = type
        self.position = position
        self.reason = reason


class StateFileError(StateError):
    """A state file can't be used."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(f"'{file}' can't be used for this state: {reason}")
        self.file = file
        self.reason = reason


class TxidTimeout(StateError):
    """A transaction was not seen on the stream in time."""

    def __init__(self, txid: str, seconds: float) -> None:
        super().__init__(
            f"Transaction '{txid}' was not seen within {seconds:g} seconds; it may still arrive."
        )
        self.txid = txid
        self.seconds = seconds
