"""Nobody is shown what a power cut could still take back.

The server's syncs are held (`DiskFaults.holds_sync`): requests that arrive meanwhile are written,
but not durable. Readers still see the stream as it was before them. A request whose response would
reveal what is not durable, such as whether the stream exists at all, is not answered.
"""

import select
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from tests.storage.disk.steps import journals
from tests.support.barrier import barrier
from tests.support.disk_faults import DiskFaults
from tests.support.patience import wait_until
from tests.support.server import ServerProcess
from tests.support.wire import Answer, EventReader, Headers, Wire, build

TEXT: Final = {"Content-Type": "text/plain"}
PRODUCER: Final = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}
CLOSE: Final = {"Stream-Closed": "true"}

_number: Final = count()


def are_quiet(*wires: Wire) -> bool:
    """Tell whether the server has read everything and sent no byte on these connections."""
    for port in {wire.sock.getpeername()[1] for wire in wires}:
        barrier(port)
    return not select.select([wire.sock for wire in wires], [], [], 0)[0]


class Asked:
    """A request on a connection of its own."""

    def __init__(self, wire: Wire, method: str) -> None:
        self._wire = wire
        self._head_only = method == "HEAD"

    def is_quiet(self) -> bool:
        """Tell whether the server has read the request and sent no byte of an answer."""
        return are_quiet(self._wire)

    def answer(self) -> Answer:
        return self._wire.answer(head_only=self._head_only)


class Holding:
    """A server whose syncs can be held, and what is asked of it."""

    def __init__(self, server: ServerProcess, file: Path, stack: ExitStack) -> None:
        self._server = server
        self._file = file
        self._stack = stack
        self.path = f"/v1/stream/{next(_number)}"
        """A stream that no other test uses."""
        self.tail = ""

    def create(self, body: bytes = b"first") -> None:
        """Make the stream, durably."""
        answer = self.ask("PUT", "", TEXT, body)
        assert answer.status == 201
        self.tail = answer.headers["stream-next-offset"]

    def connect(self) -> Wire:
        return self._stack.enter_context(Wire(self._server.port))

    def begin(
        self, method: str, suffix: str, headers: Headers | None = None, body: bytes = b""
    ) -> Asked:
        """Send a request, to the stream or to a path that begins with its own."""
        wire = self.connect()
        wire.send(build(method, self.path + suffix, headers, body))
        return Asked(wire, method)

    def ask(
        self, method: str, suffix: str, headers: Headers | None = None, body: bytes = b""
    ) -> Answer:
        """Send a request, and wait for its answer."""
        return self.begin(method, suffix, headers, body).answer()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have no batch synced."""
        self._file.touch()
        try:
            yield
        finally:
            self._file.unlink()

    def append(self, body: bytes, headers: Headers | None = None) -> Asked:
        """Append while syncs are held, until it is written."""
        asked = self.begin("POST", "", {**TEXT, **(headers or {})}, body)
        wait_until(lambda: self._is_written(body), "the write")
        return asked

    def _is_written(self, body: bytes) -> bool:
        return any(body in path.read_bytes() for path in journals(self._file.with_name("data")))

    def look(self, suffix: str = "") -> list[Asked]:
        """Ask for a stream in every way that ends with one answer."""
        return [
            self.begin("HEAD", suffix),
            self.begin("GET", f"{suffix}?offset=-1"),
            self.begin("GET", f"{suffix}?offset=-1&live=long-poll"),
        ]

    def shows_only_the_first(self) -> None:
        """Check every way to look at the stream without waiting."""
        head = self.ask("HEAD", "")
        assert head.status == 200
        assert head.headers["stream-next-offset"] == self.tail
        assert "stream-closed" not in head.headers
        for offset, body in (("-1", b"first"), (self.tail, b""), ("now", b"")):
            read = self.ask("GET", f"?offset={offset}")
            assert (read.status, read.body) == (200, body)
            assert read.headers["stream-next-offset"] == self.tail
            assert read.headers["stream-up-to-date"] == "true"
            assert "stream-closed" not in read.headers


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Path]]:
    """A server, and the file that holds its syncs."""
    folder = tmp_path_factory.mktemp("held")
    file = folder / "hold"
    server = ServerProcess(
        *("--checkpoint-interval", "0.1"),
        store=folder / "data",
        faults=DiskFaults(hold_file=file),
    ).start()
    try:
        yield server, file
        assert server.stop() == 0, server.log()
        assert "Traceback" not in server.log()
    finally:
        server.kill()


@pytest.fixture
def holding(place: tuple[ServerProcess, Path]) -> Iterator[Holding]:
    with ExitStack() as stack:
        yield Holding(*place, stack)


def test_reads_show_an_append_once_it_is_durable(holding: Holding) -> None:
    holding.create()
    with holding.held():
        append = holding.append(b"-appended to be read")
        holding.shows_only_the_first()
        assert append.is_quiet()
    assert append.answer().status == 204
    assert holding.ask("GET", "?offset=-1").body == b"first-appended to be read"


@pytest.mark.parametrize("offset", ["tail", "now"])
def test_a_long_poll_is_answered_once_the_append_is_durable(holding: Holding, offset: str) -> None:
    holding.create()
    asked = holding.tail if offset == "tail" else offset
    before = holding.begin("GET", f"?offset={asked}&live=long-poll")
    assert before.is_quiet()
    body = f"-appended to a poll from {offset}".encode()
    with holding.held():
        append = holding.append(body)
        since = holding.begin("GET", f"?offset={asked}&live=long-poll")
        assert before.is_quiet()
        assert since.is_quiet()
    assert append.answer().status == 204
    assert before.answer().body == body
    assert since.answer().body == body


def test_an_event_is_sent_once_the_append_is_durable(holding: Holding) -> None:
    holding.create()
    before = EventReader(holding.connect(), f"{holding.path}?offset=-1&live=sse")
    assert before.need("data").data == "first"
    before.need("control")
    with holding.held():
        append = holding.append(b"-appended to subscribers")
        since = EventReader(holding.connect(), f"{holding.path}?offset=-1&live=sse")
        assert since.need("data").data == "first"
        assert since.need("control").json()["streamNextOffset"] == holding.tail
        assert are_quiet(before.wire, since.wire)
    assert append.answer().status == 204
    for reader in (before, since):
        assert reader.need("data").data == "-appended to subscribers"


def test_a_repeated_append_is_answered_once_the_first_one_is_durable(holding: Holding) -> None:
    holding.create()
    body = b"-appended by a producer"
    with holding.held():
        append = holding.append(body, PRODUCER)
        again = holding.begin("POST", "", {**TEXT, **PRODUCER}, body)
        assert again.is_quiet()
        assert append.is_quiet()
        holding.shows_only_the_first()
    assert append.answer().status == 200
    assert again.answer().status == 204
    assert holding.ask("GET", "?offset=-1").body == b"first" + body


@pytest.mark.parametrize(
    ("name", "headers"),
    [("gap", {**PRODUCER, "Producer-Seq": "2"}), ("regression", {"Stream-Seq": "1"})],
)
def test_a_refusal_that_tells_of_an_append_comes_once_it_is_durable(
    holding: Holding, name: str, headers: Headers
) -> None:
    holding.create()
    with holding.held():
        append = holding.append(
            f"-append before a {name}".encode(), {**PRODUCER, "Stream-Seq": "1"}
        )
        refused = holding.begin("POST", "", {**TEXT, **headers}, b"refused")
        assert refused.is_quiet()
    assert append.answer().status == 200
    assert refused.answer().status == 409


def test_a_stream_is_closed_once_that_is_durable(holding: Holding) -> None:
    holding.create()
    poll = holding.begin("GET", f"?offset={holding.tail}&live=long-poll")
    events = EventReader(holding.connect(), f"{holding.path}?offset={holding.tail}&live=sse")
    events.need("control")
    with holding.held():
        close = holding.begin("POST", "", CLOSE)
        assert close.is_quiet()
        late = holding.begin("POST", "", TEXT, b"late")
        again = holding.begin("POST", "", CLOSE)
        assert late.is_quiet()
        assert again.is_quiet()
        assert poll.is_quiet()
        assert are_quiet(events.wire)
        holding.shows_only_the_first()
    assert close.answer().status == 204
    assert again.answer().status == 204
    late.answer().problem(409, "stream-closed")
    assert poll.answer().headers["stream-closed"] == "true"
    assert events.need("control").json()["streamClosed"] is True
    assert holding.ask("HEAD", "").headers["stream-closed"] == "true"


def test_a_stream_is_there_once_its_creation_is_durable(holding: Holding) -> None:
    with holding.held():
        create = holding.begin("PUT", "", TEXT, b"created while held")
        assert create.is_quiet()
        again = holding.begin("PUT", "", TEXT, b"created while held")
        looks = holding.look()
        assert again.is_quiet()
        assert all(look.is_quiet() for look in looks)
        assert create.is_quiet()
    assert create.answer().status == 201
    assert again.answer().status == 200
    assert [look.answer().body for look in looks] == [b"", *2 * [b"created while held"]]


def test_a_fork_is_there_once_it_is_durable_and_takes_over_what_was(holding: Holding) -> None:
    holding.create()
    with holding.held():
        append = holding.append(b"-appended before a fork")
        fork = holding.begin("PUT", "/fork", {"Stream-Forked-From": holding.path})
        assert fork.is_quiet()
        looks = holding.look("/fork")
        assert all(look.is_quiet() for look in looks)
        holding.shows_only_the_first()
        assert append.is_quiet()
    assert append.answer().status == 204
    assert fork.answer().status == 201
    assert [look.answer().body for look in looks] == [b"", b"first", b"first"]


def test_a_stream_is_gone_once_its_deletion_is_durable(holding: Holding) -> None:
    holding.create()
    poll = holding.begin("GET", f"?offset={holding.tail}&live=long-poll")
    assert poll.is_quiet()
    with holding.held():
        delete = holding.begin("DELETE", "")
        assert delete.is_quiet()
        looks = holding.look()
        assert all(look.is_quiet() for look in looks)
        assert poll.is_quiet()
    assert delete.answer().status == 204
    assert [look.answer().status for look in looks] == [404, 404, 404]
    assert poll.answer().status == 404
