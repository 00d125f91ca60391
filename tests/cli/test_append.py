"""`headwater append`, from arguments and from pipes."""

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from headwater.client import Client
from tests.cli.conftest import Headwater, wait_until_progress_is_due
from tests.support.patience import PATIENCE_SECONDS, wait_until
from tests.support.proxy import Proxy
from tests.support.server import ServerProcess


def stored(client: Client, path: str) -> list[bytes]:
    return [message for chunk in client.stream(path).read() for message in chunk.messages()]


def resume_command(said: str) -> list[str]:
    """Return the arguments of the command that an interrupted append printed."""
    return shlex.split(said[said.index("headwater append") :])[1:]


def saved_batches(file: Path) -> list[dict[str, object]]:
    """Return the batch in doubt that a resume file names, if there is one."""
    batch = json.loads(file.read_bytes())["unconfirmed"]
    return [] if batch is None else [batch]


@pytest.fixture(autouse=True)
def _temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands without --resume save where they stopped in a temporary file."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))


def wait_for(client: Client, path: str, expected: bytes) -> None:
    """Wait until a stream holds so much, with line ends left out."""
    wait_until(
        lambda: b"".join(stored(client, path)).replace(b"\n", b"") == expected,
        f"storing {expected!r}",
    )


def test_each_argument_is_one_message_of_a_json_stream(
    headwater: Headwater, client: Client, path: str
) -> None:
    client.stream(path).create()
    said = headwater.ok("append", path, "[1, 2]", '"two"')
    assert stored(client, path) == [b"[1, 2]", b'"two"']
    tail = client.stream(path).head().next_offset
    assert said == f"Appended 2 messages to {path}; it ends at offset {tail}.\n"


def test_arguments_are_appended_byte_for_byte_to_other_streams(
    headwater: Headwater, client: Client, path: str
) -> None:
    client.stream(path).create(content_type="text/plain")
    assert headwater.ok("append", path, "Hel", "lö", "--close").startswith(
        f"Appended 6 bytes to {path} and closed it; "
    )
    (chunk,) = client.stream(path).read()
    assert (chunk.data, chunk.closed) == ("Hellö".encode(), True)


def test_an_argument_that_is_not_json_is_named(
    headwater: Headwater, client: Client, path: str
) -> None:
    client.stream(path).create()
    done = headwater.run("append", path, "1", "hello")
    assert done.returncode == 1
    assert done.stderr.decode().startswith("Error: 'hello' is not JSON")
    assert stored(client, path) == []


def test_a_closed_stream_is_reported(headwater: Headwater, client: Client, path: str) -> None:
    client.stream(path).create(content_type="text/plain", closed=True)
    for arguments in (("x",), ()):
        done = headwater.run("append", path, *arguments, stdin=b"x")
        assert done.returncode == 1
        assert b"takes no more appends" in done.stderr


def test_the_wrong_content_type_is_refused_by_the_server(
    headwater: Headwater, client: Client, path: str
) -> None:
    client.stream(path).create()
    done = headwater.run("append", path, "x", "--content-type", "text/plain")
    assert done.returncode == 1
    assert b"holds application/json; send that instead of text/plain" in done.stderr


@pytest.mark.parametrize("dash", [(), ("-",)])
def test_stdin_is_one_json_text_for_a_json_stream(
    headwater: Headwater, client: Client, path: str, dash: tuple[str, ...]
) -> None:
    client.stream(path).create()
    said = headwater.ok("append", path, *dash, stdin=b'[\n {"a": 1},\n 2\n]\n')
    assert said.startswith(f"Appended one JSON text to {path}; ")
    assert stored(client, path) == [b'{"a": 1}', b"2"]
    lines = headwater.run("append", path, *dash, stdin=b"1\n2\n")
    assert lines.returncode == 1
    assert b"Use --json-lines for one message per line." in lines.stderr


def test_stdin_is_appended_byte_for_byte(headwater: Headwater, client: Client, path: str) -> None:
    client.stream(path).create(content_type="application/octet-stream")
    data = os.urandom(5 * 1024 * 1024 + 3)
    said = headwater.ok("append", path, "--close", stdin=data)
    assert said.startswith(f"Appended {len(data):,} bytes to {path} and closed it; ")
    assert b"".join(stored(client, path)) == data
    assert client.stream(path).head().closed


def test_an_empty_stdin_appends_nothing(headwater: Headwater, client: Client, path: str) -> None:
    client.stream(path).create(content_type="text/plain")
    assert headwater.ok("append", path) == f"Appended nothing to {path}: the input was empty.\n"
    assert not client.stream(path).head().closed
    assert headwater.ok("append", path, "--close").startswith(
        f"Appended nothing to {path} and closed it; "
    )
    assert client.stream(path).head().closed


def test_lines_of_a_pipe_are_sent_as_they_arrive(
    headwater: Headwater, client: Client, path: str
) -> None:
    client.stream(path).create(content_type="text/plain")
    with headwater.start("append", path) as process:
        assert process.stdin is not None
        expected = b""
        for number in range(3):
            line = f"line {number}\n".encode()
            process.stdin.write(line)
            process.stdin.flush()
            expected += line
            wait_for(client, path, expected.replace(b"\n", b""))
            assert b"".join(stored(client, path)) == expected
        process.stdin.close()
        assert process.wait(60) == 0


def test_ten_thousand_json_lines_arrive_once_and_in_order(
    headwater: Headwater, client: Client, path: str
) -> None:
    client.stream(path).create()
    lines = b"".join(b'{"n": %d}\n' % number for number in range(10_000))
    said = headwater.ok("append", path, "--json-lines", "--close", stdin=lines)
    assert said.startswith(f"Appended 10,000 messages to {path} and closed it; ")
    assert stored(client, path) == lines.splitlines()


def test_json_lines_through_a_proxy_that_loses_responses_are_never_duplicated(
    headwater: Headwater, client: Client, proxy: Proxy, path: str
) -> None:
    client.stream(path).create()
    lines = b"".join(b"%d\n" % number for number in range(10_000))
    # About one answer in the middle of every few: headers of 250 bytes or so each.
    proxy.answer_bytes = 1001
    headwater.ok("append", path, "--json-lines", "--url", proxy.url, "--close", stdin=lines)
    assert stored(client, path) == lines.splitlines()
    assert proxy.connections > 3


def test_a_bad_line_stops_after_the_good_ones(
    headwater: Headwater, client: Client, path: str
) -> None:
    client.stream(path).create()
    done = headwater.run("append", path, "--json-lines", stdin=b"1\n2\noops\n4\n")
    assert done.returncode == 1
    standing, error = done.stderr.decode().splitlines()
    assert standing.startswith("2 messages of the input confirmed; resume with the same input and:")
    command = resume_command(standing)
    assert command[:4] == ["append", path, "--json-lines", "--resume"]
    assert error.startswith("Error: Line 3 of the input is not JSON")
    assert stored(client, path) == [b"1", b"2"]
    headwater.ok(*command, stdin=b"1\n2\n3\n4\n")
    assert stored(client, path) == [b"1", b"2", b"3", b"4"]


def test_json_lines_are_for_json_streams(headwater: Headwater, client: Client, path: str) -> None:
    client.stream(path).create(content_type="text/plain")
    done = headwater.run("append", path, "--json-lines", stdin=b"1\n")
    assert done.returncode == 2
    assert b"leave out --json-lines" in done.stderr


def test_ctrl_c_reports_what_is_confirmed_and_how_to_resume(
    headwater: Headwater, client: Client, path: str
) -> None:
    client.stream(path).create()
    with headwater.start("append", path, "--json-lines") as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"1\n2\n3\n")
        process.stdin.flush()
        wait_for(client, path, b"123")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        said = process.stderr.read().decode()
    assert said.startswith(
        "3 messages of the input confirmed; resume with the same input and: "
        f"headwater append {path} --json-lines --resume "
    )
    headwater.ok(*resume_command(said), stdin=b"1\n2\n3\n4\n")
    assert stored(client, path) == [b"1", b"2", b"3", b"4"]


def test_repeated_ctrl_c_does_not_suppress_the_resume_line(
    headwater: Headwater, client: Client, path: str
) -> None:
    client.stream(path).create()
    with headwater.start("append", path, "--json-lines") as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"1\n")
        process.stdin.flush()
        wait_for(client, path, b"1")
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
        said = process.stderr.read().decode()
    assert process.returncode == 130
    assert "of the input confirmed" in said
    assert said.endswith("\n")
    assert "Aborted" not in said
    assert "Traceback" not in said


@pytest.mark.parametrize("content_type", ["application/json", "text/plain"])
def test_a_batch_in_doubt_is_settled_when_it_is_resumed(
    headwater: Headwater, client: Client, proxy: Proxy, path: str, content_type: str
) -> None:
    """The response is lost and the process ends: the command that it prints settles the batch."""
    client.stream(path).create(content_type=content_type)
    options = ["--json-lines"] if content_type == "application/json" else []
    whole = b"1\n2\n3\n4\n5\n"
    with headwater.start("append", path, *options, "--url", proxy.url) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"1\n2\n")
        process.stdin.flush()
        wait_for(client, path, b"12")

        def break_off(_: bytes) -> None:
            proxy.down = True
            proxy.lose_answers(1)

        # The next batch is sent once the answer to this one has come.
        proxy.before_request = break_off
        process.stdin.write(b"3\n4\n")
        process.stdin.flush()
        wait_for(client, path, b"1234")  # it has arrived, but the process can't know
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        said = process.stderr.read().decode()
    amount = "2 messages" if options else "4 bytes"
    assert f"{amount} of the input confirmed, {amount[0]} more in doubt" in said
    proxy.down, proxy.before_request = False, None
    headwater.ok(*resume_command(said), stdin=whole)
    assert b"".join(stored(client, path)).replace(b"\n", b"") == b"12345"


def test_an_unreachable_server_ends_the_command_with_the_resume_line(path: str) -> None:
    with ServerProcess() as server, Client(server.url) as client:
        client.stream(path).create()
        headwater = Headwater(server.url)
        with headwater.start("append", path, "--json-lines") as process:
            assert process.stdin is not None
            assert process.stderr is not None
            process.stdin.write(b"1\n")
            process.stdin.flush()
            wait_for(client, path, b"1")
            server.kill()
            process.stdin.write(b"2\n")
            process.stdin.flush()
            notice = process.stderr.readline().decode()
            assert notice.startswith("The server does not answer (")
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
            said = process.stderr.read().decode()
    assert "1 message of the input confirmed, 1 more in doubt" in said
    (unconfirmed,) = saved_batches(Path(resume_command(said)[-1]))
    assert unconfirmed["size"] == 1


@pytest.mark.kills
@pytest.mark.parametrize("content_type", ["application/json", "text/plain"])
def test_a_command_killed_repeatedly_appends_everything_once(
    headwater: Headwater, client: Client, path: str, tmp_path: Path, content_type: str
) -> None:
    stream = client.stream(path)
    stream.create(content_type=content_type)
    options = ["--json-lines"] if content_type == "application/json" else []
    arguments = ("append", path, *options, "--resume", str(tmp_path / "position"))
    whole = b"".join(b'"%0100d"\n' % number for number in range(300_000))
    source = tmp_path / "input"
    source.write_bytes(whole)
    for _ in range(10):
        before = stream.head().next_offset
        with source.open("rb") as stdin, headwater.start(*arguments, stdin=stdin) as process:
            while process.poll() is None and stream.head().next_offset == before:
                pass
            process.kill()
    with source.open("rb") as stdin, headwater.start(*arguments, stdin=stdin) as process:
        assert process.wait(PATIENCE_SECONDS) == 0
    ending = b"\n" if options else b""
    assert b"".join(message + ending for message in stored(client, path)) == whole
    stream.delete()


@pytest.mark.kills
@pytest.mark.parametrize("content_type", ["application/json", "text/plain"])
def test_a_batch_whose_sender_was_killed_is_appended_once(
    headwater: Headwater,
    client: Client,
    proxy: Proxy,
    path: str,
    tmp_path: Path,
    content_type: str,
) -> None:
    """The batch has arrived or it has not, and the response has not: both end the same way."""
    options = ["--json-lines"] if content_type == "application/json" else []
    file = tmp_path / "position"
    for has_arrived in (True, False):
        stream = client.stream(f"{path}/{has_arrived}")
        stream.create(content_type=content_type)
        file.unlink(missing_ok=True)
        arguments = ("append", f"{path}/{has_arrived}", *options, "--resume", str(file))
        with headwater.start(*arguments, "--url", proxy.url) as process:
            assert process.stdin is not None
            process.stdin.write(b"1\n2\n")
            process.stdin.flush()
            wait_for(client, f"{path}/{has_arrived}", b"12")
            reached = threading.Event()

            def break_off(
                _: bytes, *, loses: bool = not has_arrived, reached: threading.Event = reached
            ) -> None:
                proxy.down = True
                if loses:
                    proxy.cut()
                else:
                    proxy.lose_answers(1)
                reached.set()

            proxy.before_request = break_off
            process.stdin.write(b"3\n4\n")
            process.stdin.flush()
            assert reached.wait(PATIENCE_SECONDS)
            if has_arrived:
                wait_for(client, f"{path}/{has_arrived}", b"1234")
            process.kill()
            process.wait()
        proxy.down, proxy.before_request = False, None
        assert saved_batches(file) != []
        said = headwater.ok(*arguments, stdin=b"1\n2\n3\n4\n5\n")
        assert said.startswith(f"Appended {'3 messages' if options else '6 bytes'} to ")
        assert saved_batches(file) == []
        data = b"".join(stored(client, f"{path}/{has_arrived}")).replace(b"\n", b"")
        assert data == b"12345"


def test_the_same_command_appends_only_what_was_added_to_the_input(
    headwater: Headwater, client: Client, path: str, tmp_path: Path
) -> None:
    client.stream(path).create()
    arguments = ("append", path, "--json-lines", "--resume", str(tmp_path / "position"))
    assert headwater.ok(*arguments, stdin=b"1\n2\n").startswith("Appended 2 messages ")
    assert headwater.ok(*arguments, stdin=b"1\n2\n") == (
        f"Appended nothing to {path}: the input was empty after the first 2 messages.\n"
    )
    assert headwater.ok(*arguments, stdin=b"1\n2\n3\n").startswith("Appended 1 message ")
    assert stored(client, path) == [b"1", b"2", b"3"]
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_file()] == ["position"]


def test_a_resumed_append_may_close_the_stream_again(
    headwater: Headwater, client: Client, path: str, tmp_path: Path
) -> None:
    client.stream(path).create(content_type="text/plain")
    arguments = ("append", path, "--close", "--resume", str(tmp_path / "position"))
    for _ in range(2):
        assert f"to {path} and closed it; " in headwater.ok(*arguments, stdin=b"all")
    assert stored(client, path) == [b"all"]


def test_another_input_than_the_interrupted_one_is_refused(
    headwater: Headwater, client: Client, proxy: Proxy, path: str, tmp_path: Path
) -> None:
    client.stream(path).create()
    file = tmp_path / "position"
    arguments = ("append", path, "--json-lines", "--resume", str(file))
    with headwater.start(*arguments, "--url", proxy.url) as process:
        assert process.stdin is not None
        proxy.before_request = lambda head: proxy.lose_answers(int(b"POST" in head))
        process.stdin.write(b"1\n2\n")
        process.stdin.flush()
        wait_for(client, path, b"12")
        process.kill()
        process.wait()
    proxy.before_request = None
    proxy.lose_answers(0)
    state = file.read_bytes()
    for wrong, why in ((b"1\n3\n4\n", "differs from"), (b"1\n", "ends 1 message before")):
        done = headwater.run(*arguments, stdin=wrong)
        assert done.returncode == 1
        assert why in done.stderr.decode()
        assert file.read_bytes() == state
    headwater.ok(*arguments, stdin=b"1\n2\n3\n")
    assert stored(client, path) == [b"1", b"2", b"3"]
    done = headwater.run(*arguments, stdin=b"1\n")
    assert done.returncode == 1
    assert "ends 2 messages before" in done.stderr.decode()
    other = f"{path}/other"
    client.stream(other).create()
    done = headwater.run("append", other, *arguments[2:], stdin=b"1\n")
    assert done.returncode == 2
    assert f"{file} holds the position of an append to " in done.stderr.decode()


def test_a_resume_file_with_other_content_is_not_overwritten(
    headwater: Headwater, client: Client, path: str, tmp_path: Path
) -> None:
    client.stream(path).create(content_type="text/plain")
    file = tmp_path / "position"
    for content in (b"", b"0_0\n", b"{}"):
        file.write_bytes(content)
        done = headwater.run("append", path, "--resume", str(file), stdin=b"x")
        assert done.returncode == 1
        assert f"{file} does not hold the position of an append" in done.stderr.decode()
        assert file.read_bytes() == content
    assert stored(client, path) == []


def test_a_resume_file_that_cannot_be_written_ends_the_command_before_anything_is_sent(
    headwater: Headwater, client: Client, path: str, tmp_path: Path
) -> None:
    client.stream(path).create(content_type="text/plain")
    done = headwater.run("append", path, "--resume", str(tmp_path / "no" / "file"), stdin=b"x")
    assert done.returncode == 1
    assert b"Can't save the position" in done.stderr
    assert b"Traceback" not in done.stderr
    assert stored(client, path) == []


class Gateway(BaseHTTPRequestHandler):
    """Describes a stream, and refuses every sender."""

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Stream-Next-Offset", "0")
        self.end_headers()

    def do_POST(self) -> None:
        self.send_response(401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_a_refused_sender_leaves_its_batch_in_doubt(
    headwater: Headwater, client: Client, proxy: Proxy, path: str, tmp_path: Path
) -> None:
    """An earlier attempt has been appended, and only the token has expired since."""
    client.stream(path).create(content_type="text/plain")
    file = tmp_path / "position"
    arguments = ("append", path, "--resume", str(file))
    with headwater.start(*arguments, "--url", proxy.url) as process:
        assert process.stdin is not None
        proxy.before_request = lambda head: proxy.lose_answers(int(b"POST" in head))
        process.stdin.write(b"one\n")
        process.stdin.flush()
        wait_for(client, path, b"one")
        process.kill()
        process.wait()
    with HTTPServer(("127.0.0.1", 0), Gateway) as gateway:
        serving = threading.Thread(target=gateway.serve_forever)
        serving.start()
        refused = headwater.run(
            *arguments, "--url", f"http://127.0.0.1:{gateway.server_port}", stdin=b"one\n"
        )
        gateway.shutdown()
        serving.join()
    assert refused.returncode == 1
    assert "4 more in doubt" in refused.stderr.decode()
    headwater.ok(*arguments, stdin=b"one\ntwo\n")
    assert b"".join(stored(client, path)) == b"one\ntwo\n"


def test_progress_is_shown_on_a_terminal(headwater: Headwater, client: Client, path: str) -> None:
    client.stream(path).create()
    ours, theirs = pty.openpty()
    with (
        os.fdopen(ours, "rb", buffering=0) as terminal,
        os.fdopen(theirs, "wb") as stderr,
        headwater.start("append", path, "--json-lines", stderr=stderr) as process,
    ):
        assert process.stdin is not None
        process.stdin.write(b"1\n2\n")
        process.stdin.flush()
        assert select.select([terminal], [], [], PATIENCE_SECONDS)[0]
        process.stdin.close()
        assert process.wait(60) == 0
        shown = terminal.read(65536).decode()
    assert re.match(r"\r\x1b\[K\d+ messages appended", shown)
    assert len(shown) < 2000


def test_no_progress_is_written_to_a_pipe(headwater: Headwater, client: Client, path: str) -> None:
    client.stream(path).create()
    with headwater.start("append", path, "--json-lines") as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"1\n")
        process.stdin.flush()
        wait_for(client, path, b"1")
        wait_until_progress_is_due()
        process.stdin.write(b"2\n")
        process.stdin.close()
        assert process.wait(60) == 0
        assert process.stderr.read() == b""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
def test_memory_is_bounded_while_a_large_input_is_piped(
    headwater: Headwater, client: Client, path: str
) -> None:
    client.stream(path).create(content_type="application/octet-stream")
    piece = os.urandom(1024 * 1024)
    with headwater.start("append", path) as process:
        assert process.stdin is not None
        for _ in range(100):
            process.stdin.write(piece)
        status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
        process.stdin.close()
        assert process.wait(60) == 0
    assert peak < 80 * 1024
    client.stream(path).delete()


def test_a_terminal_shows_how_to_end_the_input(
    headwater: Headwater, client: Client, path: str
) -> None:
    client.stream(path).create(content_type="text/plain")
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            # The installed command, so that one test at least goes through it.
            [Path(sys.executable).with_name("headwater"), "append", path, "--url", headwater.url],
            stdin=theirs,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stderr is not None
            assert process.stderr.readline() == b"Reading from the terminal; end with Ctrl-D.\n"
            os.write(ours, b"typed\n\x04")
            assert process.wait(60) == 0
    finally:
        os.close(ours)
        os.close(theirs)
    assert stored(client, path) == [b"typed\n"]
