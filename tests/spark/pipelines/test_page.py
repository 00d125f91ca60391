"""The page on pipelines does what it says."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pyspark
import pytest

from headwater.cli import main
from headwater.spark.pipelines import load
from headwater.spark.pipelines.values import TARGETS
from tests.docs.test_pages import ROOT, blocks
from tests.spark.patience import PATIENCE
from tests.support.server import ServerProcess

pytestmark = pytest.mark.starts_spark

PAGE = "docs/pipelines.md"


def test_the_page_runs(tmp_path: Path) -> None:
    shown = 0
    with ServerProcess() as server:
        environment = {
            **os.environ,
            "HEADWATER_URL": server.url,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        printed = ""
        for language, text in blocks(PAGE):
            if language in {"toml", "python"} and text.startswith("# "):
                file = tmp_path / text.partition("\n")[0].removeprefix("# ")
                file.write_text(text.replace("http://localhost:4437", server.url))
            elif language == "toml":
                tomllib.loads(text)
            elif language == "bash":
                done = subprocess.run(
                    ["bash", "-euc", text.replace("headwater ", "python -m headwater ")],
                    cwd=tmp_path,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=PATIENCE,
                    check=False,
                )
                assert done.returncode == 0, done.stderr
                printed = done.stdout
            elif language == "output":
                assert text.strip() in printed, printed
                shown += 1
    assert shown == 4
    assert load(tmp_path / "large.py").transform[0].python == f"{tmp_path}/large.py:large"


def parse(
    command: click.Command, name: str, words: list[str], above: click.Context | None = None
) -> None:
    """Read a command line as the command would, and do nothing."""
    context = command.make_context(name, list(words), above)
    if isinstance(command, click.Group):
        _, below, rest = command.resolve_command(context, words)
        assert below is not None
        parse(below, words[0], rest, context)


@pytest.mark.parametrize("page", [PAGE, "docs/spark-cluster.md"])
def test_commands_that_are_only_shown_have_the_flags_that_there_are(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would start a Spark; what they do is tested with the jobs, and on a cluster."""
    monkeypatch.chdir(tmp_path)
    Path("pipeline.toml").touch()
    text = "".join(text for language, text in blocks(page) if language == "sh")
    lines = [shlex.split(line) for line in text.splitlines() if line.startswith("headwater ")]
    assert len(lines) == {PAGE: 7, "docs/spark-cluster.md": 2}[page]
    for name, *words in lines:
        parse(main, name, words)
    for program in re.findall(r"\$SPARK_HOME/(\S+)", text):
        assert os.access(Path(pyspark.__file__).parent / program, os.X_OK), program


def test_the_page_names_every_target_and_its_fields() -> None:
    lines = (ROOT / PAGE).read_text().splitlines()
    for kind, target in TARGETS.items():
        (line,) = [line for line in lines if line.startswith(f"| `{kind}` |")]
        for field in target.__struct_fields__:
            assert f"`{field}`" in line, (kind, field)
