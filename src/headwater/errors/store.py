"""Errors of stream stores."""

from headwater.errors.base import HeadwaterError


class StoreError(HeadwaterError):
    """The store can't perform an operation."""


class StoreNotOpen(StoreError):
    """The store has not been opened, or is already closed."""

    def __init__(self) -> None:
        super().__init__(
            "The store is not open: open it before use, and do not use it after closing it."
        )


class StoreLocked(StoreError):
    """Another process uses the data directory."""

    def __init__(self, folder: str, holder: str) -> None:
        who = f"process {holder}" if holder else "another process"
        super().__init__(
            f"'{folder}' is in use by {who}: only one server may write to a data directory. "
            "Stop it, or choose another --store."
        )
        self.folder = folder
        self.holder = holder


class NewerFormat(StoreError):
    """A file was written by a newer version of Headwater."""

    def __init__(self, file: str, version: int, known: int) -> None:
        super().__init__(
            f"'{file}' has format {version}, and this version of Headwater reads formats up to "
            f"{known}: use the version that wrote it, or a newer one."
        )
        self.file = file
        self.version = version


class StoreDamaged(StoreError):
    """A file of the store does not match its checksum."""

    def __init__(self, file: str, position: int, reason: str) -> None:
        super().__init__(
            f"'{file}' is damaged at byte {position}: {reason}. Nothing was changed. List the "
            "damage with 'headwater check DIR', recover the rest with 'headwater repair DIR'."
        )
        self.file = file
        self.position = position
        self.reason = reason


class StreamDamaged(StoreError):
    """Bytes of one stream do not match their checksum; other streams are not affected."""

    def __init__(self, file: str, position: int, stream: int) -> None:
        super().__init__(
            f"stream {stream} can't be read: '{file}' is damaged at byte {position}. "
            "'headwater check DIR' lists all damage, 'headwater repair DIR' removes it."
        )
        self.file = file
        self.position = position
        self.stream = stream
