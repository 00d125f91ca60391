"""A home for Spark whose workers import what is compiled, and when Spark keeps its own."""

import os
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from headwater.spark.home import quick_home


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for caches of the test's own, and no home that a user has named."""
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def home_during(**settings: str) -> Path | None:
    with quick_home(settings):
        told = os.environ.get("SPARK_HOME")
    return Path(told) if told else None


def test_workers_import_what_is_installed(spark: SparkSession) -> None:
    places = spark.sparkContext.parallelize([0]).map(lambda _: sys.modules["pyspark"].__file__)
    assert places.collect() == [pyspark.__file__]


def test_it_has_all_of_spark_but_the_archive_of_its_python() -> None:
    home = home_during()
    assert home is not None
    installed = Path(pyspark.__file__).parent
    assert (installed / "python" / "lib" / "pyspark.zip").is_file()
    assert not (home / "python").exists()
    for part in ("bin", "jars", "sbin"):
        assert (home / part).resolve() == (installed / part).resolve()
    assert "SPARK_HOME" not in os.environ


def test_it_is_made_once(caches: Path) -> None:
    assert home_during() == home_during()
    assert len(list((caches / "headwater" / "spark").iterdir())) == 1


def test_two_programs_that_make_it_at_once_share_one(
    caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def late(self: Path, target: Path) -> Path:
        target.mkdir()
        (target / "bin").mkdir()
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", late)
    home = home_during()
    assert home is not None
    assert list(home.parent.iterdir()) == [home]
    assert caches in home.parents


def test_a_home_that_the_user_names_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert home_during() == Path("/opt/spark")
    assert os.environ["SPARK_HOME"] == "/opt/spark"


def test_workers_of_another_python_keep_the_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    assert home_during(**{"spark.pyspark.python": "/usr/bin/python3"}) is None
    monkeypatch.setenv("PYSPARK_PYTHON", "python3.12")
    assert home_during() is None
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert home_during() is not None


def test_a_pyspark_that_is_not_installed_keeps_the_archive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pyspark, "__file__", "/somewhere/pyspark/__init__.py")
    assert home_during() is None


def test_spark_keeps_its_own_where_nothing_can_be_written(
    caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (caches / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(caches / "file"))
    assert home_during() is None
