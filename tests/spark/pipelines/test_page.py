"""The page on pipelines does what it says."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from headwater.spark.pipelines import load
from headwater.spark.pipelines.values import TARGETS
from tests.docs.test_pages import ROOT, blocks
from tests.support.server import ServerProcess

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
                (tmp_path / text.partition("\n")[0].removeprefix("# ")).write_text(text)
            elif language == "toml":
                tomllib.loads(text)
            elif language == "bash":
                done = subprocess.run(
                    ["bash", "-euc", text.replace("headwater ", "python -m headwater ")],
                    cwd=tmp_path,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=180,
                    check=False,
                )
                assert done.returncode == 0, done.stderr
                printed = done.stdout
            elif language == "output":
                assert text.strip() in printed, printed
                shown += 1
    assert shown == 3
    assert load(tmp_path / "large.py").transform[0].python == f"{tmp_path}/large.py:large"


def test_the_page_names_every_target_and_its_fields() -> None:
    lines = (ROOT / PAGE).read_text().splitlines()
    for kind, target in TARGETS.items():
        (line,) = [line for line in lines if line.startswith(f"| `{kind}` |")]
        for field in target.__struct_fields__:
            assert f"`{field}`" in line, (kind, field)
