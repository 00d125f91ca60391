"""`headwater pipeline status` if a server or a checkpoint is missing."""

import json
import os
import pty
import re
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from headwater.client import Client
from tests.cli.conftest import Headwater

PIPELINE = """
checkpoint = "{name}"
[source]
url = "{url}"
stream = "{path}"
[target]
kind = "stream"
stream = "copy"
"""
DOWN = "http://127.0.0.1:9"


def committed(folder: Path, offsets: dict[str, str], batch: int = 7) -> None:
    """Make a checkpoint as Spark leaves it after a batch."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    began = int(time.time() - 180) * 1000
    text = f'v1\n{{"batchTimestampMs":{began}}}\n{json.dumps(offsets)}'
    (folder / "offsets" / str(batch)).write_text(text)
    (folder / "commits" / str(batch)).write_text("v1\n{}")


def test_without_its_server_the_checkpoint_is_shown_and_the_next_file_is_read(
    headwater: Headwater, client: Client, path: str, tmp_path: Path
) -> None:
    client.stream(path).create(data=b"[1,2]")
    (tmp_path / "bad.toml").write_text("[target]\n")
    (tmp_path / "down.toml").write_text(PIPELINE.format(name="down", url=DOWN, path="a/*"))
    (tmp_path / "ok.toml").write_text(PIPELINE.format(name="ok", url=headwater.url, path=path))
    committed(tmp_path / "down", {"a/one": "0_5", "a/two": "0_7"})
    files = [str(tmp_path / f"{name}.toml") for name in ("bad", "down", "ok")]

    done = headwater.run("pipeline", "status", *files)
    assert done.returncode == 1
    lines = done.stdout.decode().splitlines()
    assert lines[:5] == [
        "down (stream) is not running.",
        f"  batch 7 is committed, started 3 minutes ago; checkpoint {tmp_path}/down",
        (
            "  the remaining work is not known: Can't reach http://127.0.0.1:9: Connection "
            "refused. Start the server, or check the URL."
        ),
        "    a/one  continues from 0_5",
        "    a/two  continues from 0_7",
    ]
    assert lines[5:7] == [
        "ok (stream) is not running.",
        f"  no batch is committed; checkpoint {tmp_path}/ok",
    ]
    assert done.stderr.decode().startswith(f"Error: The pipeline {files[0]} can't run:")

    printed = headwater.run("pipeline", "status", "--json", *files[1:])
    assert printed.returncode == 1
    down, ok = map(json.loads, printed.stdout.splitlines())
    assert down["unanswered"].startswith("Can't reach ")
    assert (down["batch"], down["lagBytes"]) == (7, None)
    assert [(each["path"], each["offset"], each["tail"]) for each in down["streams"]] == [
        ("a/one", "0_5", None),
        ("a/two", "0_7", None),
    ]
    assert (ok["unanswered"], ok["lagBytes"] > 0) == (None, True)


def test_a_snapshot_without_its_server_is_reported(headwater: Headwater, tmp_path: Path) -> None:
    text = f"[source]\nurl = '{DOWN}'\nstream = 'a'\n[target]\nkind = 'snapshot'\nstream = 'b'\n"
    (tmp_path / "p.toml").write_text(text)
    done = headwater.run("pipeline", "status", str(tmp_path / "p.toml"))
    assert done.returncode == 1
    first, second = done.stdout.decode().splitlines()
    assert first == "p (snapshot) may be running."
    assert second.startswith("  the remaining work is not known: Can't reach ")


def test_a_terminal_shows_what_the_command_waits_for(tmp_path: Path) -> None:
    terminal, its_end = pty.openpty()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        (tmp_path / "p.toml").write_text(PIPELINE.format(name="p", url=url, path="a"))
        with subprocess.Popen(
            [sys.executable, "-m", "headwater", "pipeline", "status", "p.toml"],
            cwd=tmp_path,
            stdout=its_end,
            stderr=its_end,
        ) as process:
            os.close(its_end)
            shown = os.read(terminal, 65536)
            assert shown.decode() == "\r\x1b[KReading the status of p.toml …"
            listener.close()
            with suppress(OSError):  # how a terminal reports that no process has it open any more
                while piece := os.read(terminal, 65536):
                    shown += piece
    os.close(terminal)
    assert process.returncode == 1
    seen = re.sub(r"[^\n]*\r\x1b\[K", "", shown.decode())
    assert seen.startswith("p (stream) is not running.\r\n")


def owned(folder: Path, **owner: object) -> None:
    """Record the owner of a checkpoint, as a run does."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "headwater-pipeline.json").write_text(json.dumps(owner))


def test_the_status_of_a_job_is_found_by_its_checkpoint(
    headwater: Headwater, client: Client, path: str, tmp_path: Path
) -> None:
    client.stream(f"{path}/one").create(data=b"[1,2]")
    client.stream(f"{path}/two").create(data=b"[3]")
    tail = client.stream(f"{path}/one").head().next_offset
    folder = tmp_path / "shop.checkpoint"
    committed(folder, {f"{path}/one": tail})
    whose = {"name": "materialize", "kind": "materialize", "place": f"{tmp_path}/shop"}
    owned(folder, **whose, url=headwater.url, streams=[f"{path}/*"])

    lines = headwater.ok("pipeline", "status", "--checkpoint", str(folder)).splitlines()
    assert lines[:3] == [
        "materialize (materialize) is not running.",
        f"  batch 7 is committed, started 3 minutes ago; checkpoint {folder}",
        "  2 streams, 3 B to do",
    ]
    assert lines[3].startswith(f"    {path}/two  3 B from -1 to ")

    owned(folder, **whose, url=DOWN, streams=[f"{path}/*"])
    assert headwater.run("pipeline", "status", "--checkpoint", str(folder)).returncode == 1
    moved = ("--checkpoint", str(folder), "--url", headwater.url)
    assert headwater.ok("pipeline", "status", *moved).splitlines() == lines

    owned(folder, **whose, url=headwater.url)  # as an older version has left it
    text = headwater.ok("pipeline", "status", "--checkpoint", str(folder))
    assert "  1 stream, nothing to do\n" in text


def test_a_checkpoint_without_a_batch_starts_at_the_start_of_its_source(
    headwater: Headwater, client: Client, path: str, tmp_path: Path
) -> None:
    client.stream(path).create(data=b"[1,2]")
    whose = {"name": "archive", "kind": "archive", "place": "x", "url": headwater.url}
    owned(tmp_path, **whose, streams=[path], starting="latest")
    printed = headwater.ok("pipeline", "status", "--json", "--checkpoint", str(tmp_path))
    assert json.loads(printed)["lagBytes"] == 0
    owned(tmp_path, **{**whose, "kind": "publish"})
    lines = headwater.ok("pipeline", "status", "--checkpoint", str(tmp_path)).splitlines()
    assert lines[1] == "  what differs from 'x' is found when it runs"


def test_a_folder_that_is_not_a_checkpoint_is_reported(
    headwater: Headwater, tmp_path: Path
) -> None:
    done = headwater.run("pipeline", "status", "--checkpoint", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.decode().startswith(
        f"Error: '{tmp_path}' holds no checkpoint of a pipeline."
    )
    for wrong in ((), ("p.toml", "--url", DOWN)):
        assert headwater.run("pipeline", "status", *wrong).returncode == 2
