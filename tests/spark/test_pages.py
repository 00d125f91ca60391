"""The tutorial, and the pages of the jobs, do what they say."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.docs.test_pages import blocks
from tests.spark.patience import PATIENCE
from tests.support.server import ServerProcess

pytestmark = pytest.mark.starts_spark


@pytest.mark.parametrize(
    ("page", "outputs"),
    [
        ("spark", 2),
        ("pipelines-materialize", 2),
        ("pipelines-project", 4),
        ("pipelines-publish", 3),
        ("pipelines-archive", 2),
        ("pipelines-snapshot", 2),
    ],
)
def test_a_page_runs(
    page: str, outputs: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {"__name__": "page"}
    shown = 0
    with ServerProcess() as server:
        environment = {
            **os.environ,
            "HEADWATER_URL": server.url,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        printed = io.StringIO()
        for language, text in blocks(f"docs/{page}.md"):
            code = text.replace("http://localhost:4437", server.url)
            code = code.replace('"checkpoint"', repr(str(tmp_path / "checkpoint")))
            if language == "bash":
                subprocess.run(
                    ["bash", "-euc", code], env=environment, check=True, timeout=PATIENCE
                )
            elif language == "python":
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed):
                    exec(compile(code, "page.py", "exec"), scope)
            elif language == "output":
                assert text.strip() in printed.getvalue()
                shown += 1
    assert shown == outputs
