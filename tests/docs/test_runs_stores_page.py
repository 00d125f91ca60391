"""What the page on run stores shows works on the engines themselves."""

import asyncio
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from headwater.runs import run_store
from headwater.runs.stores import BACKENDS
from tests.suites.run_steps import append, started
from tests.support.engines.postgres import Postgres
from tests.support.engines.redis import Redis
from tests.support.server import ServerProcess

PAGE = (Path(__file__).parents[2] / "docs" / "runs-stores.md").read_text()


def block(language: str) -> str:
    """Give the one block of a language."""
    (text,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(text)


def test_every_url_of_the_page_is_one_of_a_store_and_the_other_way_round() -> None:
    listed = set(re.findall(r"^\| `([a-z+]+)://", PAGE, re.MULTILINE))
    elsewhere = {"memory", "sqlite", "streams+http", "streams+https"}
    assert listed == BACKENDS.keys() - elsewhere


def test_runs_in_postgresql_are_listed_and_asked_for_in_sql(postgres: Postgres) -> None:
    url = f"{postgres.url}&connections=2"
    words = shlex.split(block("bash"))
    assert words == ["headwater", "serve", "--runs-store", "postgresql://user@host/database"]

    async def scenario() -> None:
        async with run_store(url) as store:
            await append(store, started("of-the-page"))

    asyncio.run(scenario())
    with ServerProcess(words[2], url) as server:
        done = subprocess.run(
            [sys.executable, "-m", "headwater", "runs", "list", "--url", server.url],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "of-the-page" in done.stdout
    assert ("of-the-page", 1, "RunStarted") in postgres.execute(block("sql").encode())


def test_the_program_with_the_caches_gives_the_snapshot(
    tmp_path: Path, redis_server: Redis, memcached_url: str, capsys: Any
) -> None:
    scope: dict[str, Any] = {"__name__": "page"}
    exec(compile(block("python"), "page.py", "exec"), scope)
    store_url = f"sqlite:{tmp_path / 'runs.db'}"
    asyncio.run(scope["main"](store_url, redis_server.fresh_url(), memcached_url))
    assert capsys.readouterr().out.count("RunSnapshot(run_id='run-001'") == 2
