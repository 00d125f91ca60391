"""The state of an HTTP/1.1 connection keeps to its table, whatever happens in whatever order.

The table is in the docstring of `headwater.server.http1.connection`. A client, a transport and an
application whose every step is an event drive one connection on a loop whose time a test moves.
"""

import asyncio
import re
import tempfile
from collections.abc import Iterator
from typing import Any, Final, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.server.http1.connection import Connection, SendState
from headwater.server.http1.endpoint import Endpoint
from headwater.server.http1.request_parser import ReceiveState
from headwater.server.settings import Settings
from headwater.storage.file_ranges import FileRange
from tests.server.http1_peer import LARGE, App, Peer, Reply, replies
from tests.support.effort import examples
from tests.support.stepped_server import SteppedLoop
from tests.support.wire import build

FILE_BYTES: Final = 100_000
MAX_QUEUE: Final = 32
MOST_QUEUED: Final = MAX_QUEUE + 4096 // len(b"GET /now/0 HTTP/1.1\r\n\r\n")
"""What pauses reading, and the shortest requests in a piece of input."""
SEND: Final = {number: name for name, number in vars(SendState).items() if name.isupper()}
RECEIVE: Final = {number: name for name, number in vars(ReceiveState).items() if name.isupper()}

KINDS: Final = ("now", "yield", "later", "file", "medium", "large", "events", "fail")
FORMS: Final = ("get", "head", "post", "chunked", "expect", "upgrade", "close", "old", "old-alive")
NO_ANSWER: Final = "malformed"


def written(kind: str, form: str, number: int) -> bytes:
    """Write a request."""
    target = f"/{kind}/{number}"
    if form in {"get", "head"}:
        return build(form.upper(), target)
    if form == "post":
        return build("POST", target, body=b"b" * 300)
    if form == "expect":
        return build("POST", target, {"Expect": "100-continue"}, b"b" * 300)
    if form == "upgrade":
        return build("POST", target, {"Connection": "Upgrade", "Upgrade": "h2c"}, b"body")
    if form == "close":
        return build("GET", target, {"Connection": "close"})
    if form == "chunked":
        head = build("POST", target, {"Transfer-Encoding": "chunked"})
        return head.replace(b"Content-Length: 0\r\n", b"") + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    alive = {"Connection": "keep-alive"} if form == "old-alive" else {}
    return build("GET", target, alive).replace(b"HTTP/1.1", b"HTTP/1.0")


class Asked:
    """A request that the client has written."""

    def __init__(self, kind: str, form: str, end: int) -> None:
        self.kind = kind
        self.form = form
        self.end = end
        """The position of its last byte in what the client sends."""

    def ends_by_closing(self) -> bool:
        """Return whether the end of the connection is the end of the response."""
        return self.kind == "events" and self.form in {"old", "old-alive"}

    def __repr__(self) -> str:
        return f"{self.form} {self.kind}"


class Scene:
    """One connection, and everything around it."""

    def __init__(self, loop: SteppedLoop, file: int) -> None:
        self.loop = loop
        self.app = App(
            Settings(store="memory", port=0, write_timeout=20.0, header_timeout=10.0),
            lambda: FileRange(self, file, 0, FILE_BYTES),
        )
        self.endpoint = Endpoint(cast("Any", self.app))
        self.peer = Peer(loop)
        self.connection = self.peer.protocol = Connection(self.endpoint)
        self.asked: list[Asked] = []
        self.outgoing = bytearray()
        """What the client sends, whether it has arrived or not."""
        self.arrived = 0
        self.has_ended = False
        self.required = 0
        """Requests that were complete before the connection began to close."""
        self.checked = 0
        """Bytes that the client has received, up to which its responses are checked."""
        self.was_lost = False
        self.errors: list[Any] = []
        self.path: list[str] = [SEND[SendState.IDLE]]
        """The send states that were seen after an event, without repetitions."""
        loop.set_exception_handler(lambda _, context: self.errors.append(context))
        self.connection.connection_made(self.peer)

    # Events

    def ask(self, kind: str, form: str) -> None:
        """Write a request; its bytes arrive in later events."""
        if kind == "events" and form == "head":
            form = "get"
        self.outgoing += written(kind, form, len(self.asked))
        self.asked.append(Asked(kind, form, len(self.outgoing)))

    def send(self, kind: str, form: str, count: int = 1) -> None:
        """Write requests, and have them arrive with everything before them."""
        for _ in range(count):
            self.ask(kind, form)
        self.deliver(len(self.outgoing))

    def write_nonsense(self) -> None:
        self.outgoing += b"NONSENSE\r\n\r\n"
        self.asked.append(Asked(NO_ANSWER, "", len(self.outgoing)))

    def deliver(self, count: int) -> None:
        """Have bytes arrive, if the server reads."""
        data = bytes(self.outgoing[self.arrived : self.arrived + count])
        if data and self.peer.reading and not self.has_ended and not self.peer.is_closing():
            self.arrived += len(data)
            self.connection.data_received(data)

    def end_sending(self) -> None:
        if not self.has_ended and not self.peer.is_closing():
            self.has_ended = True
            if not self.connection.eof_received():
                self.peer.close()

    def stop_receiving(self) -> None:
        self.peer.receives = False

    def receive(self) -> None:
        self.peer.receive()

    def finish(self, index: int) -> None:
        """Finish a handler that waits."""
        waiting = [each for each in self.app.waiting if not each.done()]
        if waiting:
            waiting[index % len(waiting)].set_result(None)

    def publish(self, size: int) -> None:
        for feed in self.app.feeds:
            feed.write(b"e" * size)

    def end_feed(self) -> None:
        for feed in self.app.feeds:
            feed.end()

    def sweep(self, seconds: float) -> None:
        self.loop.now += seconds
        if not self.peer.lost:
            self.endpoint.sweep()

    def stop_server(self) -> None:
        self.endpoint.stop()

    def abort(self) -> None:
        if not self.peer.lost:
            self.connection.abort()

    def lose(self) -> None:
        self.was_lost = True
        self.peer.lose()

    async def turns(self, count: int) -> None:
        was_open = True
        for _ in range(count):
            await asyncio.sleep(0)
            self.peer.take_files()
            self.observe()
            if self.connection.state == SendState.CLOSED and not was_open:
                assert self.app.running == 0
            was_open = self.connection.state != SendState.CLOSED

    async def happen(self, name: str, *arguments: Any) -> None:
        complete = self.complete()
        had_ended = self.has_begun_to_close()
        if name == "turns":
            await self.turns(*arguments)
        else:
            getattr(self, name)(*arguments)
        if self.has_begun_to_close() and not had_ended:
            self.required = complete
        self.observe()

    # What has to hold

    def complete(self) -> int:
        """Return how many requests have arrived before anything that the server can't answer."""
        count = 0
        for each in self.asked:
            if each.end > self.arrived or each.kind == NO_ANSWER:
                break
            count += 1
            if each.form in {"close", "old"} or each.ends_by_closing():
                break
        return count

    def has_begun_to_close(self) -> bool:
        return self.connection.state in {SendState.LINGER, SendState.CLOSED}

    def observe(self) -> None:
        """Check what the table and the facts promise after every event."""
        connection, parser = self.connection, self.connection._parser
        send, receive = SEND[connection.state], RECEIVE[parser.state]
        if self.path[-1] != send:
            self.path.append(send)
        queue, final = len(connection._queue), connection._final
        assert not self.errors
        assert not self.peer.late_writes

        assert (connection._request is not None) == (send in {"HANDLING", "FILE", "EVENTS"})
        assert (connection._handler is not None) == (send == "HANDLING")
        assert (connection._files is not None) == (send == "FILE")
        assert (connection._feed is not None) == (send == "EVENTS")
        if send in {"LINGER", "CLOSED"}:
            assert receive in {"DONE", "EOF"}
            assert not queue
            assert final is None
            assert not self.app.admission.buffered
            assert all(feed.stopped for feed in self.app.feeds)
            assert self.peer.ended or self.peer.is_closing()
        if send == "CLOSED":
            assert self.peer.is_closing()
        if final is not None:
            assert receive in {"DONE", "EOF"}
            assert connection._draining
        if receive in {"DONE", "EOF"}:
            assert connection._draining or send == "CLOSED"
        if send == "IDLE" and not connection.full and not connection._advancing:
            assert not queue
            assert final is None
            assert not parser.pending
            assert not connection._draining or receive in {"HEAD", "BODY"}

        assert queue <= MOST_QUEUED
        if queue < MAX_QUEUE and not connection._advancing and not self.peer.is_closing():
            assert self.peer.reading
        if queue >= MAX_QUEUE and receive not in {"DONE", "EOF"}:
            assert not self.peer.reading
        assert self.app.running <= 1
        if len(self.peer.received) != self.checked:
            self.checked = len(self.peer.received)
            self.check_replies()

    def check_replies(self) -> list[Reply]:
        """Check that responses come in order, one for each request, and end as they say."""
        found = replies(self.peer.received, [each.form == "head" for each in self.asked])
        for number, reply in enumerate(found):
            if number < len(self.app.handled):
                asked = self.asked[number]
                if asked.kind == "fail":
                    assert reply.status == 500
                elif asked.form != "head" and reply.complete:
                    assert (reply.status, reply.number) == (200, number)
                if reply.number is not None:
                    assert re.fullmatch(rb"\d+:(x*|f*|e*)", reply.body)
            else:
                assert reply.status in {400, 408}
                assert reply.closes
            assert number == len(found) - 1 or (reply.complete and not reply.closes)
        return found

    async def settle(self) -> None:
        """Have everything that was begun end, and check that nothing is missing or left."""
        waits = True
        while waits:
            before = (self.arrived, len(self.peer.received), len(self.app.handled))
            await self.happen("receive")
            await self.happen("deliver", len(self.outgoing))
            await self.happen("finish", 0)
            await self.happen("end_feed")
            await self.happen("turns", 10)
            waits = before != (self.arrived, len(self.peer.received), len(self.app.handled))
        found = self.check_replies()
        answered = sum(
            reply.complete or self.asked[number].ends_by_closing()
            for number, reply in enumerate(found)
        )
        if not self.has_begun_to_close():
            assert answered == self.complete() == len(self.app.handled)
            assert not self.app.admission.buffered or self.connection._parser.is_receiving()
        elif not self.peer.aborted and not self.was_lost:
            assert answered >= self.required
        self.peer.lose()
        await self.turns(3)
        assert self.connection.state == SendState.CLOSED
        assert self.app.running == 0
        assert self.app.admission.connections == 0
        assert self.app.admission.buffered == 0
        assert not self.endpoint.connections


def play(file: int, events: list[tuple[Any, ...]]) -> list[str]:
    """Have events happen one after another; return the send states that were seen."""

    async def scenario() -> list[str]:
        loop = cast("SteppedLoop", asyncio.get_running_loop())
        scene = Scene(loop, file)
        try:
            for each in events:
                await scene.happen(*each)
            path = list(scene.path)
            await scene.settle()
        finally:
            scene.peer.lose()
        return path

    with asyncio.Runner(loop_factory=SteppedLoop) as runner:
        return runner.run(scenario())


@pytest.fixture(scope="module")
def file() -> Iterator[int]:
    with tempfile.TemporaryFile() as opened:
        opened.write(b"f" * FILE_BYTES)
        opened.flush()
        yield opened.fileno()


kinds = st.sampled_from(KINDS)
forms = st.sampled_from(FORMS)
requests = st.tuples(st.just("send"), kinds, forms)
endings = ["end_sending", "write_nonsense", "stop_server", "abort", "lose"]
events = st.one_of(
    requests,
    requests,
    requests,
    st.tuples(st.just("send"), st.sampled_from(["now", "yield"]), forms, st.just(150)),
    st.tuples(st.just("send"), st.sampled_from(["large", "file"]), st.just("get"), st.just(2)),
    st.tuples(st.just("ask"), kinds, forms),
    st.tuples(st.just("deliver"), st.integers(1, 120)),
    st.just(("stop_receiving",)),
    st.just(("receive",)),
    st.tuples(st.just("finish"), st.integers(0, 3)),
    st.tuples(st.just("publish"), st.sampled_from([10, LARGE])),
    st.just(("end_feed",)),
    st.tuples(st.just("sweep"), st.sampled_from([0.0, 1.0, 12.0, 100.0])),
    st.tuples(st.just("turns"), st.integers(1, 4)),
    st.tuples(st.just("turns"), st.integers(1, 4)),
    st.tuples(st.sampled_from(endings)),
)


@given(st.lists(events, min_size=3, max_size=40))
@settings(max_examples=examples(400, 20_000), deadline=None)
def test_the_state_keeps_to_the_table_whatever_happens(
    file: int, events: list[tuple[Any, ...]]
) -> None:
    play(file, events)


SWEEPS: Final = [("sweep", 1.0), ("sweep", 100.0), ("sweep", 100.0), ("turns", 2)]
"""Set a deadline, have it pass, and have the client take nothing until the next one has passed."""


@pytest.mark.parametrize(
    ("events", "path"),
    [
        ([("send", "now", "get")], "IDLE"),
        ([("send", "later", "get"), ("finish", 0), ("turns", 1)], "IDLE HANDLING IDLE"),
        ([("send", "file", "get"), ("turns", 99)], "IDLE FILE IDLE"),
        ([("send", "events", "get"), ("end_feed",)], "IDLE EVENTS IDLE"),
        ([("send", "now", "close")], "IDLE LINGER"),
        ([("send", "now", "close"), ("end_sending",)], "IDLE LINGER CLOSED"),
        ([("send", "now", "close"), *SWEEPS], "IDLE LINGER CLOSED"),
        ([("write_nonsense",), ("deliver", 99)], "IDLE LINGER"),
        ([("ask", "now", "get"), ("deliver", 3), *SWEEPS[:2]], "IDLE LINGER"),
        ([("end_sending",)], "IDLE CLOSED"),
        ([("stop_server",)], "IDLE CLOSED"),
        ([("sweep", 1.0), ("sweep", 100.0)], "IDLE CLOSED"),
        ([("send", "later", "get"), *SWEEPS], "IDLE HANDLING"),
        (
            [("send", "later", "get"), ("end_sending",), ("finish", 0), ("turns", 1)],
            "IDLE HANDLING CLOSED",
        ),
        (
            [("send", "later", "get"), ("stop_server",), ("finish", 0), ("turns", 1)],
            "IDLE HANDLING LINGER",
        ),
        ([("send", "later", "get"), ("lose",), ("turns", 3)], "IDLE HANDLING CLOSED"),
        ([("send", "file", "get"), ("lose",)], "IDLE FILE CLOSED"),
        ([("send", "events", "get"), ("lose",)], "IDLE EVENTS CLOSED"),
        ([("send", "later", "get"), ("abort",), ("turns", 3)], "IDLE HANDLING CLOSED"),
        ([("stop_receiving",), ("send", "file", "get"), *SWEEPS], "IDLE FILE CLOSED"),
        ([("stop_receiving",), ("send", "large", "get"), *SWEEPS], "IDLE CLOSED"),
        (
            [("send", "events", "get"), ("stop_receiving",), ("publish", LARGE), *SWEEPS],
            "IDLE EVENTS CLOSED",
        ),
        (
            [("send", "events", "old-alive"), ("send", "now", "get"), ("end_feed",)],
            "IDLE EVENTS LINGER",
        ),
        (
            [
                *[("ask", "later", "get"), ("ask", "events", "old-alive"), ("write_nonsense",)],
                *[("deliver", 999), ("finish", 0), ("turns", 1), ("end_feed",)],
            ],
            "IDLE HANDLING EVENTS LINGER",
        ),
        (
            [
                *[("stop_receiving",), ("send", "large", "get", 2), ("send", "later", "get")],
                *[("receive",), ("finish", 0), ("turns", 1)],
            ],
            "IDLE HANDLING IDLE",
        ),
        (
            [
                *[("ask", "now", "get"), ("deliver", 5), ("stop_server",)],
                *[("ask", "now", "get"), ("deliver", 999)],
            ],
            "IDLE LINGER",
        ),
        (
            [
                *[("stop_receiving",), ("send", "medium", "get", 2), ("send", "later", "get")],
                *[("turns", 1), ("receive",), *SWEEPS],
            ],
            "IDLE HANDLING",
        ),
        ([("send", "now", "chunked", 150), ("sweep", 0.0), ("sweep", 12.0)], "IDLE"),
        ([("send", "now", "get", 150), ("stop_server",), ("turns", 9)], "IDLE LINGER"),
        ([("send", "now", "get", 150), ("end_sending",), ("turns", 9)], "IDLE CLOSED"),
    ],
)
def test_events_lead_from_state_to_state(
    file: int, events: list[tuple[Any, ...]], path: str
) -> None:
    assert " ".join(play(file, events)) == path
