"""What all tests share: suites whose assertions are explained, engines asked for by name.

An engine is started by the first test that asks for it, and stopped at the end. Where tests run in
several processes, those of Spark stay in one, since each Spark takes all cores that there are, and
other files are shared out.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support import spark_classes
from tests.support.engines.dynamodb import Dynamo, start_dynamodb
from tests.support.engines.memcached import start_memcached
from tests.support.engines.object_storage import ObjectStorage, start_object_storage
from tests.support.engines.postgres import Postgres, start_postgres
from tests.support.engines.redis import Redis, start_redis
from tests.support.engines.snowflake import Snowflake, start_snowflake
from tests.support.engines.temporal import start_temporal

os.environ.setdefault("SPARK_SUBMIT_OPTS", spark_classes.FROM_ARCHIVE)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell has whatever it runs in the background ignore Ctrl-C, and what that starts as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)

for suite in sorted((Path(__file__).parent / "suites").glob("*.py")):
    pytest.register_assert_rewrite(f"tests.suites.{suite.stem}")


_SHARED_SPARK: Final = "spark"
_LONGEST: Final = (
    _SHARED_SPARK,
    "tests/compiled/test_compiled.py",
    "tests/spark/test_kills.py",
    "tests/spark/pipelines/test_processes.py",
    "tests/spark/pipelines/test_elsewhere.py",
    "tests/conformance/test_server.py",
    "tests/runs/stores/test_snowflake.py",
)
"""What takes minutes comes first, so that none of it is left to one process in the end."""


@pytest.hookimpl(tryfirst=True)  # before they are shared out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep a module's tests in one process, and in one of them all that use its Spark."""
    groups: dict[pytest.Item, str] = {}
    for item in items:
        uses_spark = "spark" in getattr(item, "fixturenames", ())
        module = str(item.path.relative_to(item.config.rootpath))
        groups[item] = _SHARED_SPARK if uses_spark else module
        item.add_marker(pytest.mark.xdist_group(groups[item]))
    ranks = {group: rank for rank, group in enumerate(_LONGEST)}
    items.sort(key=lambda item: ranks.get(groups[item], len(ranks)))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with start_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    with start_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def dynamodb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dynamo]:
    with start_dynamodb(tmp_path_factory.mktemp("dynamodb")) as server:
        yield server


@pytest.fixture(scope="session")
def memcached_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with start_memcached(tmp_path_factory.mktemp("memcached")) as url:
        yield url


@pytest.fixture(scope="session")
def snowflake_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Snowflake]:
    with start_snowflake(tmp_path_factory.mktemp("snowflake")) as server:
        yield server


@pytest.fixture(scope="session")
def object_storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStorage]:
    with start_object_storage(tmp_path_factory.mktemp("objects")) as server:
        yield server


@pytest.fixture(scope="session")
def temporal_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with start_temporal(tmp_path_factory.mktemp("temporal")) as address:
        yield address
