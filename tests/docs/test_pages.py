"""Every command of the documentation does what its page says."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from headwater.client import Client
from tests.support.patience import PATIENCE_SECONDS, wait_until
from tests.support.server import ServerProcess

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[tuple[str, str]]:
    """List the fenced blocks of a page: their language and their text."""
    return [(match[1], match[2]) for match in BLOCK.finditer((ROOT / page).read_text())]


@pytest.mark.parametrize(
    "page", ["README.md", "docs/quick-start.md", "docs/runs.md", "docs/subscriptions.md"]
)
def test_the_commands_of_a_page_run(page: str, tmp_path: Path) -> None:
    parts = blocks(page)
    assert any(language == "bash" for language, _ in parts)
    with ServerProcess() as server:
        # One shell for the whole page, since later commands use what earlier ones set.
        script = "set -eu\n"
        expected = []
        for number, (language, text) in enumerate(parts):
            if language == "bash":
                command = text.replace("http://localhost:4437", server.url)
                wanted = number + 1 < len(parts) and parts[number + 1][0] == "output"
                script += f"echo '>>> {number}'\n{command}echo\n"
                if wanted:
                    expected.append((number, parts[number + 1][1]))
        result = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            env={
                **os.environ,
                "HEADWATER_URL": server.url,
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert result.returncode == 0, result.stderr
    printed = dict(re.findall(r">>> (\d+)\n(.*?)(?=>>> |\Z)", result.stdout, re.DOTALL))
    for number, output in expected:
        assert output.strip() in printed[str(number)], printed[str(number)]


def test_the_mounting_page_shows_an_application_that_starts() -> None:
    (code,) = [text for language, text in blocks("docs/asgi.md") if language == "python"]
    scope: dict[str, object] = {"__name__": "main"}
    exec(compile(code, "main.py", "exec"), scope)
    assert "app" in scope


def test_the_worker_of_the_subscriptions_page_does_what_is_pending_and_waits_for_more() -> None:
    (code,) = [text for language, text in blocks("docs/subscriptions.md") if language == "python"]
    done: list[tuple[str, object]] = []
    with ServerProcess() as server, Client(server.url) as client:
        client.stream("wake/mail").create(content_type="application/json")
        client.subscriptions.create("mailer", pattern="mail/*", wake_stream="wake/mail")
        client.stream("mail/before").create(data=b"[1,2]")
        scope: dict[str, Any] = {"__name__": "worker"}
        exec(compile(code, "worker.py", "exec"), scope)
        scope["process"] = lambda path, message: done.append((path, message))
        worker = threading.Thread(target=scope["work"], args=(client, "mailer"))
        worker.start()
        wait_until(lambda: len(done) == 2)
        for number in range(3):
            client.stream(f"mail/{number}").create(data=b"[3]")
            wait_until(lambda: len(done) == 3 + number)  # noqa: B023 - asked at once
        client.stream("wake/mail").close()
        worker.join(PATIENCE_SECONDS)
        assert not worker.is_alive()
        assert client.subscriptions.claim("mailer", "late") is None
    assert done[:2] == [("mail/before", 1), ("mail/before", 2)]
    assert done[2:] == [(f"mail/{number}", 3) for number in range(3)]


def test_the_python_examples_of_the_readme_run(tmp_path: Path) -> None:
    examples = [text for language, text in blocks("README.md") if language == "python"]
    printed = []
    with ServerProcess() as server:
        for text in examples:
            done = subprocess.run(
                [sys.executable, "-c", text.replace("http://localhost:4437", server.url)],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            printed.append(done.stdout)
    assert printed == ["{'step': 0}\n{'step': 1}\n{'step': 2}\n", "True\n", ""]


CLIENT_OUTPUT = [
    "buy milk\ncall Ada\nsleep\n",
    "A stream is a log that you can read while it is written .\n",
    "step 0\nstep 1\nstep 2\ndone\n",
    "total 21\n",
    "True\n",
    "mail/ada {'subject': 'hello'}\n1 batch done\n",
    "['shop/north', 'shop/south']\n2 pieces\n['shop/south']\n",
]


@pytest.mark.parametrize("number", range(len(CLIENT_OUTPUT)))
def test_the_examples_of_the_client_page_run(number: int, tmp_path: Path) -> None:
    examples = [text for language, text in blocks("docs/client.md") if language == "python"]
    assert len(examples) == len(CLIENT_OUTPUT)
    with ServerProcess() as server:
        done = subprocess.run(
            [sys.executable, "-c", examples[number].replace("http://localhost:4437", server.url)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout == CLIENT_OUTPUT[number]
