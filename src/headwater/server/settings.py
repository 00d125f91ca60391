"""Every setting of the server, once: the command line, the environment and the docs follow it."""

from dataclasses import Field, dataclass, field, fields
from ipaddress import ip_network
from typing import Any, Final

from headwater.errors import SettingsError
from headwater.protocol.paths import RESERVED

ENV_PREFIX: Final = "HEADWATER_"
KIB: Final = 1024
MIB: Final = 1024 * KIB


def _setting(
    default: Any,
    text: str,
    *,
    least: float | None = None,
    most: int | None = None,
    choices: str = "",
) -> Any:
    rules = {"help": text, "least": least, "most": most, "choices": choices}
    return field(default=default, metadata=rules)


@dataclass(frozen=True, slots=True)
class Settings:
    """What `headwater serve` can be told."""

    host: str = _setting("127.0.0.1", "Address to listen on; 0.0.0.0 for all.")
    port: int = _setting(4437, "Port to listen on; 0 picks a free one.", least=0)
    store: str = _setting(
        "./headwater-data", "Where streams are kept: a directory, or 'memory' for nowhere."
    )
    durability: str = _setting(
        "fsync",
        "When an append counts as done: synced to disk, handed to the system, or in memory.",
        choices="fsync os memory",
    )
    runs_store: str = _setting(
        "", "Where runs are kept, such as 'sqlite:runs.db'; empty keeps them beside the streams."
    )
    root: str = _setting("/v1/stream/", "URL path under which the streams live.")
    # A record of the journal is shorter than 2 GiB, and a batch than 4; framing adds up to a half.
    max_body_bytes: int = _setting(
        32 * MIB, "Largest request body, at most 1 GiB; more gets 413.", least=1, most=1024 * MIB
    )
    max_header_bytes: int = _setting(
        32 * KIB, "Largest request line with headers; more gets 431.", least=256
    )
    max_path_bytes: int = _setting(1024, "Longest stream path; a longer one gets 400.", least=16)
    max_connections: int = _setting(
        10_000, "Connections at once; one more gets 429 and is closed.", least=1
    )
    max_buffered_bytes: int = _setting(
        256 * MIB,
        "Request bodies held in memory at once, at most 2 GiB; more gets 429.",
        least=1,
        most=2048 * MIB,
    )
    memory_limit_bytes: int = _setting(
        4096 * MIB, "Stream data that the memory store holds; more gets 429.", least=1
    )
    memory_budget_bytes: int = _setting(
        256 * MIB, "Memory of a server on disk for unsaved stream data and all caches.", least=64
    )
    journal_bytes: int = _setting(
        32 * MIB, "Size of a journal file; a full one is followed by a checkpoint.", least=4096
    )
    checkpoint_interval: float = _setting(
        30.0, "Seconds after which changes are saved from the journal to segments.", least=0.01
    )
    max_loaded_streams: int = _setting(
        50_000, "Streams that the disk store keeps in memory while nobody uses them.", least=1
    )
    max_open_segments: int = _setting(
        64, "Segment files that readers have open at once; a compaction opens up to half.", least=1
    )
    chunk_bytes: int = _setting(
        16 * MIB, "Size at which a catch-up response is cut; compressed, at 1 MiB.", least=1
    )
    read_cache_bytes: int = _setting(
        16 * MIB, "Answers to repeated reads kept in memory; 0 keeps none.", least=0
    )
    write_buffer_bytes: int = _setting(
        512 * KIB, "Bytes queued for a reader before it counts as slow.", least=1
    )
    long_poll_timeout: float = _setting(30.0, "Seconds until a long-poll answers 204.", least=0)
    sse_duration: float = _setting(
        60.0, "Seconds after which an SSE connection is ended.", least=0.1
    )
    header_timeout: float = _setting(
        10.0, "Seconds for the request line and headers to arrive.", least=0.1
    )
    body_timeout: float = _setting(120.0, "Seconds for the request body to arrive.", least=0.1)
    idle_timeout: float = _setting(75.0, "Seconds that an idle connection is kept open.", least=0.1)
    write_timeout: float = _setting(
        30.0, "Seconds after which a reader that does not read is dropped.", least=0.1
    )
    shutdown_timeout: float = _setting(
        10.0, "Seconds that requests get to finish on SIGTERM.", least=0
    )
    reap_interval: float = _setting(
        1.0, "Seconds between two sweeps for expired streams.", least=0.01
    )
    compression: bool = _setting(True, "Compress responses over 1 KiB that a client accepts so.")
    cache: str = _setting(
        "public", "Who may cache catch-up reads.", choices="public private no-store"
    )
    cors_origin: str = _setting("*", "Value of Access-Control-Allow-Origin.")
    public_url: str = _setting(
        "", "Where clients reach the server, for callback URLs; empty takes it from requests."
    )
    allow_local_webhooks: bool = _setting(
        False, "Let webhooks go to http://localhost and 127.0.0.x, for development."
    )
    webhook_hosts: str = _setting(
        "", "Hosts that webhooks may go to, such as 'a.example *.b.example'; empty for any."
    )
    webhook_networks: str = _setting(
        "", "Private networks that webhooks may go to, such as '10.1.0.0/16'."
    )
    webhook_ca_file: str = _setting(
        "", "Certificates that webhooks are checked against; empty for the system's."
    )
    webhook_timeout: float = _setting(
        10.0, "Seconds that a webhook gets to answer, at most its lease.", least=0.1
    )
    webhook_attempts: int = _setting(
        100, "Failed deliveries of one wake after which a subscription is dead.", least=1
    )
    webhook_concurrency: int = _setting(64, "Webhooks called at once.", least=1)
    webhook_key_overlap: float = _setting(
        900.0, "Seconds that a replaced signing key stays published.", least=0
    )
    log_level: str = _setting(
        "info", "Lowest level that is logged.", choices="debug info warning error"
    )
    log_format: str = _setting("text", "Form of the log lines.", choices="text json")

    def __post_init__(self) -> None:
        for item in fields(self):
            check(item, getattr(self, item.name))
        if not (self.root.startswith("/") and self.root.endswith("/")) or "//" in self.root:
            raise SettingsError("root", self.root, "a path such as /v1/stream/")
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
        """Whether nothing is kept on disk."""
        return self.store == "memory" or self.durability == "memory"


def check(item: Field[Any], value: object) -> None:
    """Hold a value against what its setting allows."""
    least = item.metadata["least"]
    if least is not None and isinstance(value, int | float) and value < least:
        raise SettingsError(item.name, value, f"at least {least:g}")
    most = item.metadata["most"]
    if most is not None and isinstance(value, int) and value > most:
        raise SettingsError(item.name, value, f"at most {most}")
    choices = item.metadata["choices"].split()
    if choices and value not in choices:
        raise SettingsError(item.name, value, f"one of {', '.join(choices)}")


def option_name(item: Field[Any]) -> str:
    """Name the command-line option of a setting."""
    return "--" + item.name.replace("_", "-")


def variable_name(item: Field[Any]) -> str:
    """Name the environment variable of a setting."""
    return ENV_PREFIX + item.name.upper()
