"""The limit on open files: raised to what the settings need, or a warning."""

import resource
from collections.abc import Callable
from pathlib import Path

from tests.support.server import ServerProcess


def limit_files(soft: int, hard: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def soft_limit(server: ServerProcess) -> int:
    return resource.prlimit(server.pid, resource.RLIMIT_NOFILE)[0]


def test_the_limit_is_raised_to_what_the_connections_need(tmp_path: Path) -> None:
    options = ("--max-connections", "1000")
    server = ServerProcess(*options, store=tmp_path / "data", limit=limit_files(256, 4096)).start()
    try:
        assert 1000 < soft_limit(server) < 4096
        assert "open files" not in server.log()
    finally:
        server.kill()


def test_a_limit_that_can_not_be_raised_enough_is_logged(tmp_path: Path) -> None:
    server = ServerProcess(store=tmp_path / "data", limit=limit_files(256, 512)).start()
    try:
        assert soft_limit(server) == 512
        assert "open files are limited to 512" in server.log()
    finally:
        server.kill()


def test_a_limit_that_is_high_enough_is_not_changed(tmp_path: Path) -> None:
    options = ("--max-connections", "100")
    server = ServerProcess(*options, store=tmp_path / "data", limit=limit_files(2048, 4096)).start()
    try:
        assert soft_limit(server) == 2048
    finally:
        server.kill()
