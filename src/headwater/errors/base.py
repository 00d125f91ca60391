"""The root of the error tree, and the errors that every part may raise."""


class HeadwaterError(Exception):
    """The root of the tree: catches every error that Headwater raises."""


class SettingsError(HeadwaterError):
    """An option or environment variable has a value that can't be used."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(f"{name}={value!r} can't be used: expected {expected}.")
        self.name = name
        self.value = value
        self.expected = expected


class CannotListen(HeadwaterError):
    """The server can't listen on an address: it is in use, not local, or not permitted."""

    def __init__(self, host: str, port: int, reason: str, choose: str = "--host or --port") -> None:
        super().__init__(f"Can't listen on {host}:{port}: {reason}. Choose another {choose}.")
        self.host = host
        self.port = port
