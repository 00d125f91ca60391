"""The root, and what any part may raise."""


class HeadwaterError(Exception):
    """The root: catch this to catch everything that Headwater raises."""


class SettingsError(HeadwaterError):
    """An option or environment variable has a value that can't be used."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(f"{name}={value!r} can't be used: expected {expected}.")
        self.name = name
        self.value = value
        self.expected = expected


class CannotListen(HeadwaterError):
    """The address can't be listened on: it is taken, not ours, or not allowed."""

    def __init__(self, host: str, port: int, reason: str, choose: str = "--host or --port") -> None:
        super().__init__(f"Can't listen on {host}:{port}: {reason}. Choose another {choose}.")
        self.host = host
        self.port = port
