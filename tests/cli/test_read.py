"""`headwater read`: to the end, following, and resumed."""

import os
import pty
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headwater.client import Client, Stream
from tests.cli.conftest import Headwater, wait_until_progress_is_due
from tests.support.patience import wait_until
from tests.support.proxy import Proxy


@pytest.fixture
def stream(client: Client, path: str) -> Stream:
    opened = client.stream(path)
    opened.create()
    return opened


@contextmanager
def writing(
    stream: Stream, is_enough: Callable[[int], bool] = lambda _: False
) -> Iterator[list[int]]:
    """Append numbers from another thread, until so many are enough or the block ends; then close.

    Gives what was appended, which is whole after the block.
    """
    written: list[int] = []
    left = threading.Event()

    def run() -> None:
        while not left.is_set() and not is_enough(len(written)):
            stream.append(len(written))
            written.append(len(written))
        stream.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield written
    finally:
        left.set()
        thread.join()


def lines(numbers: Iterable[int]) -> bytes:
    return b"".join(b"%d\n" % number for number in numbers)


def live_reads(proxy: Proxy) -> int:
    """Count how often clients have begun to wait for more."""
    return sum(b"live=" in head for head in proxy.requests)


def test_json_messages_are_printed_one_per_line(
    headwater: Headwater, stream: Stream, path: str
) -> None:
    tail = stream.append(b'[{"a":\n 1}, [2], "x\\ny"]').next_offset
    done = headwater.run("read", path)
    assert done.returncode == 0
    assert done.stdout == b'{"a":  1}\n[2]\n"x\\ny"\n'
    assert done.stderr.decode() == (
        f"The next offset is {tail}; resume with: headwater read {path} --offset {tail}\n"
    )


def test_other_data_is_printed_as_it_is(headwater: Headwater, client: Client, path: str) -> None:
    data = os.urandom(3 * 1024 * 1024)
    client.stream(path).create(data=data, content_type="application/octet-stream")
    done = headwater.run("read", path)
    assert done.stdout == data


def test_reading_begins_at_an_offset_and_the_resume_line_can_be_run(
    headwater: Headwater, stream: Stream, path: str
) -> None:
    stream.append_many([1, 2])
    said = headwater.run("read", path, "--url", headwater.url).stderr.decode()
    command = shlex.split(said.partition("resume with: ")[2])
    assert command[:2] == ["headwater", "read"]
    assert command[-2:] == ["--url", headwater.url]
    stream.append(b"3")
    elsewhere = Headwater("http://127.0.0.1:9")
    assert elsewhere.ok(*command[1:]) == "3\n"
    assert headwater.ok("read", path, "--offset", "now") == ""


def test_a_closed_stream_is_reported_instead_of_the_resume_line(
    headwater: Headwater, stream: Stream, path: str
) -> None:
    tail = stream.close(1).next_offset
    done = headwater.run("read", path)
    assert done.stdout == b"1\n"
    assert done.stderr.decode() == f"{path} is closed; it ends at offset {tail}.\n"


def test_the_servers_message_is_printed_for_an_offset_that_is_gone(
    headwater: Headwater, stream: Stream, path: str
) -> None:
    offset = stream.append(b"1").next_offset
    stream.delete()
    stream.create()
    done = headwater.run("read", path, "--offset", offset)
    assert done.returncode == 1
    assert done.stderr.decode().startswith(f"Error: {offset} is from an earlier stream")


@pytest.mark.parametrize("live", ["auto", "sse", "long-poll"])
def test_following_continues_after_reconnects_and_ends_with_the_stream(
    headwater: Headwater, stream: Stream, proxy: Proxy, path: str, live: str
) -> None:
    # The server ends SSE connections after 0.3 seconds.
    with (
        headwater.start("read", path, "--follow", "--live", live, "--url", proxy.url) as process,
        writing(stream, lambda _: live_reads(proxy) > 3) as written,
    ):
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out == lines(written)
    assert err.decode().startswith(f"{path} is closed; it ends at offset ")


def test_followed_lines_are_printed_as_they_are_appended(
    headwater: Headwater, stream: Stream, path: str
) -> None:
    with headwater.start("read", path, "-f") as process:
        assert process.stdout is not None
        for number in range(3):
            stream.append(number)
            assert process.stdout.readline() == b"%d\n" % number


def test_lost_connections_neither_lose_nor_duplicate_data(
    headwater: Headwater, stream: Stream, proxy: Proxy, path: str
) -> None:
    cut = 0

    def cut_every_live_read(count: int) -> bool:
        nonlocal cut
        if count % 20 == 0 and live_reads(proxy) > cut:
            cut = live_reads(proxy)
            proxy.cut()
        return cut > 5

    with (
        headwater.start("read", path, "--follow", "--url", proxy.url) as process,
        writing(stream, cut_every_live_read) as written,
    ):
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out == lines(written)


def test_a_follower_waits_for_a_server_that_restarts(
    headwater: Headwater, stream: Stream, proxy: Proxy, path: str
) -> None:
    stream.append(b"1")
    with headwater.start("read", path, "--follow", "--url", proxy.url) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"1\n"
        proxy.down = True
        proxy.cut()
        stream.append(b"2")
        assert process.stderr.readline().startswith(b"The server does not answer (")
        proxy.down = False
        assert process.stdout.readline() == b"2\n"


def test_ctrl_c_exits_with_130_and_the_resume_line(stream: Stream, proxy: Proxy, path: str) -> None:
    tail = stream.append(b"1").next_offset
    with Headwater(proxy.url).start("read", path, "--follow") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"1\n"
        wait_until(lambda: live_reads(proxy), "following")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read().decode() == (
            f"The next offset is {tail}; resume with: "
            f"headwater read {path} --offset {tail} --follow\n"
        )


def test_a_resume_file_works_over_several_interruptions(
    headwater: Headwater, stream: Stream, path: str, tmp_path: Path
) -> None:
    file = tmp_path / "position"
    out = b""
    with writing(stream) as written:
        for _ in range(5):
            with headwater.start("read", path, "--follow", "--resume", str(file)) as process:
                assert process.stdout is not None
                assert process.stderr is not None
                for _ in range(100):
                    out += process.stdout.readline()
                process.send_signal(signal.SIGINT)
                out += process.stdout.read()
                assert process.wait(60) == 130
                assert process.stderr.read().decode().endswith(f"--follow --resume {file}\n")
    out += headwater.ok("read", path, "--resume", str(file)).encode()
    assert out == lines(written)
    assert file.read_text() == f"{stream.head().next_offset}\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["position"]


def test_a_position_between_two_offsets_is_accepted(
    headwater: Headwater, client: Client, path: str, tmp_path: Path
) -> None:
    """The client returns positions such as -1,1, and commands accept them."""
    stream = client.stream(path)
    stream.create()
    stream.append_many([1, 2, 3])
    positions = [str(position) for _, position in stream.read().items_with_offsets()]
    assert positions[0] == "-1,1"
    read = [headwater.ok("read", path, "--offset", position) for position in positions]
    assert read == ["2\n3\n", "3\n", ""]
    file = tmp_path / "position"
    file.write_text(positions[0])
    assert headwater.ok("read", path, "--resume", str(file)) == "2\n3\n"
    assert file.read_text() == f"{stream.head().next_offset}\n"
    headwater.ok("fork", path, f"{path}/fork", "--offset", positions[1])
    assert headwater.ok("read", f"{path}/fork") == "1\n2\n"


@pytest.mark.kills
def test_a_killed_reader_repeats_at_most_the_data_after_the_saved_offset(
    headwater: Headwater, stream: Stream, path: str, tmp_path: Path
) -> None:
    file = tmp_path / "position"
    stream.append_many([1, 2])
    with headwater.start("read", path, "--follow", "--resume", str(file)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        assert process.stdout.readline() == b"2\n"
        tail = stream.head().next_offset
        wait_until(lambda: file.exists() and file.read_text() == f"{tail}\n", "saving")
        process.kill()
        process.wait()
    stream.append(b"3")
    assert headwater.ok("read", path, "--resume", str(file)) == "3\n"


def test_a_new_resume_file_starts_at_the_requested_offset(
    headwater: Headwater, stream: Stream, path: str, tmp_path: Path
) -> None:
    file = str(tmp_path / "position")
    stream.append(b"1")
    assert headwater.ok("read", path, "--offset", "now", "--resume", file) == ""
    stream.append(b"2")
    assert headwater.ok("read", path, "--offset", "-1", "--resume", file) == "2\n"


@pytest.mark.parametrize("content", [b"", b"not an offset", b"\xff"])
def test_a_resume_file_with_other_content_is_not_overwritten(
    headwater: Headwater, stream: Stream, path: str, tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "position"
    file.write_bytes(content)
    done = headwater.run("read", path, "--resume", str(file))
    assert done.returncode == 1
    assert done.stdout == b""
    assert str(file) in done.stderr.decode()
    assert file.read_bytes() == content


def test_a_resume_file_that_cannot_be_written_is_reported(
    headwater: Headwater, stream: Stream, path: str, tmp_path: Path
) -> None:
    stream.append(b"1")
    done = headwater.run("read", path, "--resume", str(tmp_path / "none" / "position"))
    assert done.returncode == 1
    assert b"Can't save the offset" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_closed_pipe_ends_the_command_without_an_error(
    headwater: Headwater, stream: Stream, path: str
) -> None:
    stream.append_many([f"{number:01000}" for number in range(2000)])
    for follow in ((), ("--follow",)):
        with headwater.start("read", path, *follow) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            assert process.wait(60) == 0
            assert process.stderr.read() == b""


def test_a_follower_ends_when_its_reader_closes_the_pipe_although_nothing_arrives(
    headwater: Headwater, stream: Stream, path: str
) -> None:
    stream.append(b"1")
    with headwater.start("read", path, "--follow") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"1\n"
        process.stdout.close()
        assert process.wait(60) == 0
        assert process.stderr.read() == b""


def test_a_stream_deleted_under_a_follower_is_reported(
    headwater: Headwater, stream: Stream, path: str
) -> None:
    stream.append(b"1")
    with headwater.start("read", path, "--follow") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        stream.delete()
        assert process.wait(60) == 1
        assert process.stderr.read().decode().startswith(f"Error: There is no stream {path}")


def test_no_progress_is_shown_while_lines_are_written_to_a_pipe(
    headwater: Headwater, stream: Stream, path: str
) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        with (
            os.fdopen(theirs, "wb") as stderr,
            headwater.start("read", path, "--follow", stderr=stderr) as process,
        ):
            assert process.stdout is not None
            stream.append(0)
            out = process.stdout.readline()
            wait_until_progress_is_due()
            stream.append(1)
            stream.close()
            out += process.communicate(timeout=60)[0]
        shown = terminal.read(65536).decode()
    assert out == lines(range(2))
    assert shown.count("\n") == 1
    assert "bytes read" not in shown


def test_reading_and_appending_can_be_piped_together(
    headwater: Headwater, client: Client, stream: Stream, path: str
) -> None:
    stream.append_many(range(5000))
    copy = client.stream(f"{path}/copy")
    copy.create()
    with headwater.start("read", path) as reader:
        assert reader.stdout is not None
        with subprocess.Popen(
            [sys.executable, "-m", "headwater", "append", f"{path}/copy", "--json-lines"],
            stdin=reader.stdout,
            stdout=subprocess.PIPE,
            env={**os.environ, "HEADWATER_URL": headwater.url},
        ) as writer:
            said, _ = writer.communicate(timeout=60)
    assert said.startswith(b"Appended 5,000 messages")
    found = [message for chunk in copy.read() for message in chunk.messages()]
    assert found == lines(range(5000)).splitlines()
