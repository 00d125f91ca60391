"""The backends, one file each; a driver is imported only with the store that needs it."""

from importlib import import_module
from typing import Final, NamedTuple

from headwater.errors import SettingsError
from headwater.runs.store import RunStore


class Backend(NamedTuple):
    """Where a store is, and the extra of the package that it needs."""

    module: str
    name: str
    extra: str = ""


BACKENDS: Final[dict[str, Backend]] = {
    "memory": Backend("headwater.runs.stores.memory", "MemoryRunStore"),
    "sqlite": Backend("headwater.runs.stores.sqlite", "SqliteRunStore"),
    "streams+http": Backend("headwater.runs.stores.streams", "StreamRunStore"),
    "streams+https": Backend("headwater.runs.stores.streams", "StreamRunStore"),
    "postgresql": Backend("headwater.runs.stores.postgres", "PostgresRunStore", "postgres"),
    "postgresql+sequence": Backend(
        "headwater.runs.stores.postgres_sequence", "PostgresSequenceRunStore", "postgres"
    ),
    "postgresql+redis": Backend(
        "headwater.runs.stores.postgres_redis", "PostgresRedisRunStore", "postgres,redis"
    ),
    "dynamodb": Backend("headwater.runs.stores.dynamodb", "DynamoRunStore", "dynamodb"),
    "snowflake": Backend("headwater.runs.stores.snowflake", "SnowflakeRunStore", "snowflake"),
}
"""By the scheme of the URL."""


def run_store(url: str) -> RunStore:
    """Make the store that a URL names, such as `sqlite:runs.db`; it is not open yet."""
    scheme = url.partition(":")[0]
    backend = BACKENDS.get(scheme)
    if backend is None:
        known = ", ".join(f"{name}:" for name in BACKENDS)
        raise SettingsError("run store", url, f"a URL that begins with one of {known}")
    try:
        module = import_module(backend.module)
    except ImportError as error:
        if not backend.extra:
            raise
        expected = f"its driver: pip install 'headwater[{backend.extra}]' ({error})"
        raise SettingsError("run store", url, expected) from None
    store: type[RunStore] = getattr(module, backend.name)
    return store.from_url(url)
