"""What all tests share: engines asked for by name, and the rules by which tests are chosen.

An engine is started by the first test that asks for it, and stopped at the end. Where tests run in
several processes, the tests of a module stay together, and so do all that use the shared Spark,
which takes all cores that there are.
"""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.capabilities import CAPABILITIES, reason_to_skip
from tests.support.engines.dynamodb import Dynamo, start_dynamodb
from tests.support.engines.memcached import start_memcached
from tests.support.engines.object_storage import ObjectStorage, start_object_storage
from tests.support.engines.postgres import Postgres, start_postgres
from tests.support.engines.redis import Redis, start_redis
from tests.support.engines.snowflake import Snowflake, start_snowflake
from tests.support.engines.temporal import start_temporal
from tests.support.java import FOR_SPARK, OPTIONS
from tests.support.small_disk import MountDisk, mounted_below

if os.environ.get("HEADWATER_TEST_SPARK") != "default":
    os.environ.setdefault("SPARK_SUBMIT_OPTS", FOR_SPARK)
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", OPTIONS)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell has whatever it runs in the background ignore Ctrl-C, and what that starts as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)

for suite in sorted((Path(__file__).parent / "suites").glob("*.py")):
    pytest.register_assert_rewrite(f"tests.suites.{suite.stem}")


_SHARED_SPARK: Final = "spark"
_SPARK: Final = frozenset({"spark"})
_ENGINES: Final = frozenset(
    {
        *("postgres", "redis_server", "dynamodb", "memcached_url", "snowflake_server"),
        *("object_storage", "temporal_address"),
    }
)
_NOT_QUICK: Final = frozenset({"starts_spark", "starts_engine", "kills", *CAPABILITIES})
_LONGEST: Final = (
    _SHARED_SPARK,
    "tests/compiled/test_compiled.py",
    "tests/spark/test_kills.py",
    "tests/spark/pipelines/test_processes.py",
    "tests/spark/pipelines/test_elsewhere.py",
    "tests/crash/test_crashes.py",
    "tests/conformance/test_server.py",
    "tests/runs/stores/test_snowflake.py",
)
"""What takes minutes comes first, so that none of it is left to one process in the end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick", action="store_true", help="only tests without Spark, engines and kills"
    )


@pytest.hookimpl(tryfirst=True)  # before they are distributed among processes
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by what they use, choose the quick ones, and keep each module in one process."""
    for item in items:
        fixtures = frozenset(getattr(item, "fixturenames", ()))
        if fixtures & _SPARK:
            item.add_marker("starts_spark")
        if fixtures & _ENGINES:
            item.add_marker("starts_engine")
        if "memcached_url" in fixtures:
            item.add_marker("needs_memcached")
        if "mount_disk" in fixtures:
            item.add_marker("needs_root")
    if config.getoption("--quick"):
        left_out = [item for item in items if _markers(item) & _NOT_QUICK]
        items[:] = [item for item in items if not _markers(item) & _NOT_QUICK]
        config.hook.pytest_deselected(items=left_out)
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    if not config.pluginmanager.has_plugin("randomly"):
        items.sort(key=_rank)


def _markers(item: pytest.Item) -> set[str]:
    return {marker.name for marker in item.iter_markers()}


def _group(item: pytest.Item) -> str:
    """Name what stays in one process: a module, or all tests that use the shared Spark."""
    if frozenset(getattr(item, "fixturenames", ())) & _SPARK:
        return _SHARED_SPARK
    return str(item.path.relative_to(item.config.rootpath))


def _rank(item: pytest.Item) -> int:
    group = _group(item)
    return _LONGEST.index(group) if group in _LONGEST else len(_LONGEST)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that needs what this machine lacks; in CI, where all is promised, fail it."""
    for marker in _markers(item) & CAPABILITIES.keys():
        if reason := reason_to_skip(marker):
            if os.environ.get("CI") == "true":
                pytest.fail(f"CI lacks what {reason}")
            pytest.skip(reason)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say in one line what was skipped for want of something, and how to enable it."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", ())
    )
    lacking = {
        reason: count
        for reason, count in reasons.items()
        if reason.partition(":")[0] in CAPABILITIES
    }
    if lacking:
        parts = (f"{count} test(s) that {reason}" for reason, count in sorted(lacking.items()))
        terminalreporter.write_line(f"Skipped here, and how to enable them: {'; '.join(parts)}.")


@pytest.fixture
def mount_disk(tmp_path: Path) -> Iterator[MountDisk]:
    with mounted_below(tmp_path) as mount:
        yield mount


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
