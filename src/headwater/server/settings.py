"""The settings of the server, from which options, environment variables and docs derive."""

from dataclasses import Field, dataclass, field, fields
from ipaddress import ip_network
from typing import Any, Final

from headwater.errors import SettingsError
from headwater.protocol.paths import DEFAULT_PORT, DEFAULT_ROOT, RESERVED

ENV_PREFIX: Final = "HEADWATER_"
KIB: Final = 1024
MIB: Final = 1024 * KIB


def _setting(
    default: Any,
    text: str,
    *,
    minimum: float | None = None,
    maximum: int | None = None,
    choices: str = "",
) -> Any:
    rules = {"help": text, "minimum": minimum, "maximum": maximum, "choices": choices}
    return field(default=default, metadata=rules)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of `headwater serve`."""

    host: str = _setting("127.0.0.1", "Address to listen on; 0.0.0.0 for all interfaces.")
    port: int = _setting(DEFAULT_PORT, "Port to listen on; 0 for any free port.", minimum=0)
    store: str = _setting(
        "./headwater-data", "Data directory, or 'memory' to keep streams in memory only."
    )
    durability: str = _setting(
        "fsync",
        "When an append is acknowledged: after fsync, after write(), or in memory.",
        choices="fsync os memory",
    )
    runs_store: str = _setting(
        "", "Store of runs, such as 'sqlite:runs.db'; empty for a file in the data directory."
    )
    root: str = _setting(DEFAULT_ROOT, "URL path of the streams.")
    # A journal record is shorter than 2 GiB and a batch than 4 GiB; framing adds up to a half.
    max_body_bytes: int = _setting(
        32 * MIB,
        "Largest request body, at most 1 GiB; a larger one gets 413.",
        minimum=1,
        maximum=1024 * MIB,
    )
    max_header_bytes: int = _setting(
        32 * KIB, "Largest request line with headers; a larger one gets 431.", minimum=256
    )
    max_path_bytes: int = _setting(1024, "Longest stream path; a longer one gets 400.", minimum=16)
    max_connections: int = _setting(
        10_000, "Concurrent connections; one more gets 429 and is closed.", minimum=1
    )
    max_buffered_bytes: int = _setting(
        256 * MIB,
        "Request bodies in memory, decompressed, at most 2 GiB; more gets 429.",
        minimum=1,
        maximum=2048 * MIB,
    )
    memory_limit_bytes: int = _setting(
        4096 * MIB, "Stream data in the memory store; more gets 429.", minimum=1
    )
    memory_budget_bytes: int = _setting(
        256 * MIB,
        "Memory of the disk store for data that is not in segments, and for all caches.",
        minimum=64,
    )
    journal_bytes: int = _setting(
        32 * MIB, "Size of a journal file; a full file starts a checkpoint.", minimum=4096
    )
    checkpoint_interval: float = _setting(
        30.0,
        "Seconds between checkpoints, which move data from the journal to segments.",
        minimum=0.01,
    )
    max_loaded_streams: int = _setting(
        50_000, "Streams that the disk store keeps loaded while they are not in use.", minimum=1
    )
    max_open_segments: int = _setting(
        64,
        "Segment files that are open for reading; a compaction opens up to half as many.",
        minimum=1,
    )
    chunk_bytes: int = _setting(
        16 * MIB, "Largest body of a catch-up response; 1 MiB if it is compressed.", minimum=1
    )
    read_cache_bytes: int = _setting(
        16 * MIB, "Cache of responses to repeated reads; 0 turns it off.", minimum=0
    )
    write_buffer_bytes: int = _setting(
        512 * KIB, "Bytes queued for a connection before it counts as slow.", minimum=1
    )
    long_poll_timeout: float = _setting(
        30.0, "Seconds after which a long-poll is answered with 204.", minimum=0
    )
    sse_duration: float = _setting(60.0, "Seconds after which an SSE response ends.", minimum=0.1)
    header_timeout: float = _setting(
        10.0, "Time limit for the request line and headers.", minimum=0.1
    )
    body_timeout: float = _setting(120.0, "Time limit for the request body.", minimum=0.1)
    idle_timeout: float = _setting(
        75.0, "Seconds after which an idle connection is closed.", minimum=0.1
    )
    write_timeout: float = _setting(
        30.0, "Seconds without progress after which a slow client is disconnected.", minimum=0.1
    )
    shutdown_timeout: float = _setting(
        10.0, "Time limit for requests in progress on SIGTERM.", minimum=0
    )
    reap_interval: float = _setting(
        1.0, "Seconds between two deletions of expired streams.", minimum=0.01
    )
    compression: bool = _setting(
        True, "Compress responses of 1 KiB or more if the client accepts it."
    )
    cache: str = _setting(
        "public", "Who may cache responses to catch-up reads.", choices="public private no-store"
    )
    cors_origin: str = _setting("*", "Value of Access-Control-Allow-Origin.")
    public_url: str = _setting(
        "", "Public URL of the server, for callback URLs; empty to use the Host of each request."
    )
    allow_local_webhooks: bool = _setting(
        False, "Allow webhooks to http://localhost and 127.0.0.x, for development."
    )
    webhook_hosts: str = _setting(
        "", "Hosts that webhooks may call, such as 'a.example *.b.example'; empty for any."
    )
    webhook_networks: str = _setting(
        "", "Private networks that webhooks may call, such as '10.1.0.0/16'."
    )
    webhook_ca_file: str = _setting("", "CA certificates for webhooks; empty for the system's.")
    webhook_timeout: float = _setting(
        10.0, "Time limit for the response to a webhook, at most its lease.", minimum=0.1
    )
    webhook_attempts: int = _setting(
        100, "Failed deliveries of a wake after which its subscription is dead.", minimum=1
    )
    webhook_concurrency: int = _setting(64, "Webhooks in flight.", minimum=1)
    webhook_key_overlap: float = _setting(
        900.0, "Seconds that a replaced signing key stays published.", minimum=0
    )
    log_level: str = _setting(
        "info", "Lowest level of log lines.", choices="debug info warning error"
    )
    log_format: str = _setting("text", "Format of log lines.", choices="text json")

    def __post_init__(self) -> None:
        for item in fields(self):
            check(item, getattr(self, item.name))
        if not (self.root.startswith("/") and self.root.endswith("/")) or "//" in self.root:
            raise SettingsError("root", self.root, f"a path such as {DEFAULT_ROOT}")
        if RESERVED in self.root:
            raise SettingsError("root", self.root, f"a path without '{RESERVED}'")
        if self.port > 65535:
            raise SettingsError("port", self.port, "a port from 0 to 65535")
        for network in self.webhook_networks.split():
            try:
                ip_network(network)
            except ValueError:
                expected = "networks such as '10.1.0.0/16 fd00::/8'"
                raise SettingsError("webhook_networks", network, expected) from None
        if self.public_url and not self.public_url.startswith(("http://", "https://")):
            raise SettingsError("public_url", self.public_url, "a URL such as https://example.com")
        if not self.cors_origin.isprintable() or not self.cors_origin.isascii():
            raise SettingsError("cors_origin", self.cors_origin, "an origin or *")

    @property
    def in_memory(self) -> bool:
        """Whether nothing is stored on disk."""
        return self.store == "memory" or self.durability == "memory"


def check(item: Field[Any], value: object) -> None:
    """Check a value against the limits of its setting."""
    minimum = item.metadata["minimum"]
    if minimum is not None and isinstance(value, int | float) and value < minimum:
        raise SettingsError(item.name, value, f"at least {minimum:g}")
    maximum = item.metadata["maximum"]
    if maximum is not None and isinstance(value, int) and value > maximum:
        raise SettingsError(item.name, value, f"at most {maximum}")
    choices = item.metadata["choices"].split()
    if choices and value not in choices:
        raise SettingsError(item.name, value, f"one of {', '.join(choices)}")


def option_name(item: Field[Any]) -> str:
    """Return the name of a setting's option."""
    return "--" + item.name.replace("_", "-")


def variable_name(item: Field[Any]) -> str:
    """Return the name of a setting's environment variable."""
    return ENV_PREFIX + item.name.upper()
