"""Every error that Headwater raises, as one tree.

    HeadwaterError
    ├── SettingsError          an option or environment variable can't be used
    └── StoreError             the store can't do what it was asked to
        └── StoreNotOpen       it has not been opened, or is closed already

What the protocol refuses (a missing stream, a fenced producer, a closed stream) is not an error but
an answer: see `headwater.protocol.refusals`.
"""


class HeadwaterError(Exception):
    """The root: catch this to catch everything that Headwater raises."""


class SettingsError(HeadwaterError):
    """An option or environment variable has a value that can't be used."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(f"{name}={value!r} can't be used: expected {expected}.")
        self.name = name
        self.value = value
        self.expected = expected


class StoreError(HeadwaterError):
    """The store can't do what it was asked to."""


class StoreNotOpen(StoreError):
    """The store has not been opened, or is closed already."""

    def __init__(self) -> None:
        super().__init__("The store is not open: open it before use, and don't use it once closed.")
