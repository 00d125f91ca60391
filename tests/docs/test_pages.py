"""Every command of the documentation does what its page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.server import ServerProcess

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[tuple[str, str]]:
    """List the fenced blocks of a page: their language and their text."""
    return [(match[1], match[2]) for match in BLOCK.finditer((ROOT / page).read_text())]


@pytest.mark.parametrize("page", ["README.md", "docs/quick-start.md"])
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
