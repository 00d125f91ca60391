"""A home for Spark in which its Python workers start in a third of the time.

Spark has each worker import PySpark from an archive in its home, which Python compiles anew for
each process. Where the workers' Python has PySpark installed, a home without that archive lets
them import what is compiled already. Such a home is a folder of links, made once and kept with the
user's caches.
"""

import hashlib
import os
import shutil
import site
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyspark

_PARTS: Final = ("bin", "conf", "jars", "sbin")
"""What Spark looks for in its home, but for `python`."""


@contextmanager
def quick_home(settings: Mapping[str, str]) -> Iterator[None]:
    """Let a Spark that is started meanwhile have such a home, where that changes nothing else."""
    home = None if "SPARK_HOME" in os.environ else _home(settings)
    if home is None:
        yield
        return
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]  # another program that this one starts has a Spark of its own


def _home(settings: Mapping[str, str]) -> Path | None:
    installed = Path(pyspark.__file__).parent
    workers = settings.get("spark.pyspark.python", os.environ.get("PYSPARK_PYTHON"))
    places = [*site.getsitepackages(), site.getusersitepackages()]
    if workers not in {None, sys.executable} or str(installed.parent) not in places:
        return None
    try:
        return _linked(installed)
    except (OSError, RuntimeError):  # no folder that can be written to, or no home at all
        return None


def _linked(installed: Path) -> Path:
    name = hashlib.sha256(str(installed).encode()).hexdigest()[:16]
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = caches / "headwater" / "spark" / name
    if home.is_dir():
        return home
    home.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=home.parent))
    try:
        for part in _PARTS:
            (made / part).symlink_to(installed / part)
        made.rename(home)
    except OSError:
        shutil.rmtree(made)
        if not home.is_dir():  # nor has another process made it meanwhile
            raise
    return home
