"""The pages on projecting and publishing do what they say."""

import contextlib
import io
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.docs.test_pages import blocks
from tests.support.server import ServerProcess


@pytest.mark.parametrize(("page", "outputs"), [("project", 3), ("publish", 3)])
def test_the_page_runs(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    page: str,
    outputs: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {"__name__": "page"}
    shown = 0
    printed = io.StringIO()
    with ServerProcess() as server:
        for language, text in blocks(f"docs/pipelines-{page}.md"):
            if language == "python":
                code = text.replace("http://localhost:4437", server.url)
                code = code.replace('"checkpoint"', repr(str(tmp_path / "checkpoint")))
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed):
                    exec(compile(code, f"{page}.py", "exec"), scope)
            elif language == "output":
                assert text.strip() in printed.getvalue()
                shown += 1
    assert shown == outputs
