"""Clients that go on whatever happens to the server: writers, and readers that follow them.

A request whose answer was lost is sent again, unchanged, once there is a server again. No client
sends anything while the gate is shut: that is when the content is checked.
"""

import random
import threading
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count

from tests.crash.ledger import Ledger, Record, Step, stored, wire_body
from tests.support.wire import BINARY, JSON, ROOT, Answer, Lost, Wire


class Gate:
    """Where the server is, while requests may be sent."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._port = 0
        self._over = False
        self._busy = 0

    def open(self, port: int) -> None:
        with self._changed:
            self._port = port
            self._changed.notify_all()

    def shut(self) -> None:
        """Close the gate, and wait until all clients have given up on their server."""
        with self._changed:
            self._port = 0
            assert self._changed.wait_for(lambda: not self._busy, 60), "a client hangs"

    def end(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()

    @property
    def over(self) -> bool:
        return self._over

    def enter(self) -> int:
        """Wait until there is a server; gives its port."""
        with self._changed:
            self._changed.wait_for(lambda: self._port or self._over)
            if self._over:
                raise SystemExit
            self._busy += 1
            return self._port

    def leave(self) -> None:
        with self._changed:
            self._busy -= 1
            self._changed.notify_all()


class Client(threading.Thread):
    """A thread with a connection."""

    def __init__(self, name: str, gate: Gate, ledger: Ledger, seed: str) -> None:
        super().__init__(name=name, daemon=True)
        self.gate = gate
        self.ledger = ledger
        self.random = random.Random(f"{seed}/{name}")
        self._wire: Wire | None = None
        self._port = 0

    def run(self) -> None:
        try:
            while not self.gate.over:
                self.turn()
        except SystemExit:
            pass
        except Exception as error:  # noqa: BLE001 - reported to the test
            self.ledger.complain(f"{self.name}: {error!r}")
        if self._wire is not None:
            self._wire.close()

    def turn(self) -> None:
        """Do one thing, or a few."""
        raise NotImplementedError

    def attempt(self, act: Callable[[Wire], Answer]) -> Answer:
        """Do something with the server that there is; raises `Lost` where it goes away."""
        port = self.gate.enter()
        try:
            if self._wire is None or port != self._port:
                if self._wire is not None:
                    self._wire.close()
                self._wire, self._port = Wire(port), port
            return act(self._wire)
        finally:
            self.gate.leave()

    def insist(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> tuple[Answer, bool]:
        """Send a request until it is answered; return whether it was sent more than once."""
        again = False
        while True:
            try:
                answer = self.attempt(lambda wire: wire.ask_stream(method, path, headers, body))
            except Lost:
                again = True
                continue
            self.ledger.requests += 1
            return answer, again

    def expect(
        self, what: str, answer: Answer, again: bool, first: set[int], repeated: set[int]
    ) -> bool:
        """Complain where an answer is none of those that the request can have."""
        allowed = first | repeated if again else first
        if answer.status not in allowed:
            self.ledger.complain(
                f"{self.name}: {what} was answered {answer.status} {answer.body[:300]!r}"
                f"{', sent again' if again else ''}"
            )
            return False
        return True


class Writer(Client):
    """Creates streams of its own, writes, forks, closes and deletes them; adds to shared ones."""

    def __init__(
        self, name: str, gate: Gate, ledger: Ledger, seed: str, shared: list[Record]
    ) -> None:
        super().__init__(name, gate, ledger, seed)
        self._lives = count()
        self._kept: list[Record] = []
        self._shared = [(record, Producer(self, record)) for record in shared]

    def turn(self) -> None:
        """Live through one stream from its creation to where it is only kept."""
        choose = self.random
        kind = choose.choice([JSON, BINARY])
        # Some paths are used again and again, most never.
        life = next(self._lives)
        reused = choose.random() < 0.2
        path = f"{self.name}/again" if reused else f"{self.name}/{life}"
        if any(record.path == path for record in self._kept):
            return
        record = Record(path, kind)
        self.create(record, {"Content-Type": kind}, with_first=choose.random() < 0.5)
        make = Producer if choose.random() < 0.7 else Sequencer
        hand = make(self, record)
        forks: list[tuple[Record, Producer]] = []
        for _ in range(choose.randint(3, 25)):
            hand.append(close=False)
            # A fork would hold on to the path.
            if record.marks and not reused and choose.random() < 0.08 and len(forks) < 3:
                forks.append(self.fork(record, len(forks)))
            if forks and choose.random() < 0.3:
                choose.choice(forks)[1].append(close=False)
            if choose.random() < 0.02:  # they grow all the time, and are read after each kill
                choose.choice(self._shared)[1].append(close=False)
        if choose.random() < 0.3:
            hand.append(close=True)
        elif choose.random() < 0.5:
            self.close(record)
        self._kept += [record, *(fork for fork, _ in forks)]
        while len(self._kept) > 5:
            self.delete(self._kept.pop(choose.randrange(len(self._kept) - 2)))

    def create(self, record: Record, headers: dict[str, str], *, with_first: bool) -> None:
        body = b""
        if with_first:
            share = record.share(self.name)
            share.asked = self.random.randint(1, 4)
            body = wire_body(record.kind, record.content_of(self.name, 0, share.asked))
        record.created = Step.ASKED
        self.ledger.add(record)
        answer, again = self.insist("PUT", record.path, headers, body)
        self.expect(f"creating {record.path}", answer, again, {201}, {200})
        if with_first:
            record.share(self.name).done = record.share(self.name).asked
        record.created = Step.DONE

    def fork(self, source: Record, number: int) -> tuple[Record, "Producer"]:
        """Fork at an offset of the server, and some messages or bytes after one."""
        offset, before = self.random.choice(source.marks)
        share = source.share(self.name)
        whole = source.content_of(self.name, 0, share.done)
        rest = whole[before:]
        if source.kind == JSON:
            sub = self.random.randint(0, min(3, rest.count(b"\n")))
            taken = b"".join(rest.splitlines(keepends=True)[:sub])
        else:
            sub = self.random.randint(0, min(50, len(rest)))
            taken = rest[:sub]
        fork = Record(f"{source.path}-fork{number}", source.kind, whole[:before] + taken)
        source.has_forks = True
        headers = {"Stream-Forked-From": ROOT + source.path, "Stream-Fork-Offset": offset}
        if sub:
            headers["Stream-Fork-Sub-Offset"] = str(sub)
        self.create(fork, headers, with_first=False)
        return fork, Producer(self, fork)

    def close(self, record: Record) -> None:
        record.closed = Step.ASKED
        answer, again = self.insist("POST", record.path, {"Stream-Closed": "true"})
        self.expect(f"closing {record.path}", answer, again, {204}, set())
        record.closed = Step.DONE

    def delete(self, record: Record) -> None:
        record.deleted = Step.ASKED
        answer, again = self.insist("DELETE", record.path, {})
        self.expect(f"deleting {record.path}", answer, again, {204}, {404, 410})
        record.deleted = Step.DONE
        if record.path.endswith("/again"):
            self.ledger.drop(record)  # the next one at this path is another stream


class Producer:
    """Appends as an idempotent producer, now and then as a new session of it."""

    def __init__(self, writer: Writer, record: Record) -> None:
        self._writer = writer
        self._record = record
        self._share = record.share(writer.name)
        self._epoch = 0
        self._seq = 0
        self._alone = True

    def append(self, *, close: bool) -> None:
        """Append one or several messages in one request."""
        writer, record, share = self._writer, self._record, self._share
        if writer.random.random() < 0.03:
            self._epoch, self._seq = self._epoch + 1, 0
        size = 60 if writer.random.random() < 0.05 else writer.random.randint(1, 5)
        data = record.content_of(writer.name, share.done, share.done + size)
        headers = {"Content-Type": record.kind, **self.claim()}
        if close:
            headers["Stream-Closed"] = "true"
            record.closed = Step.ASKED
        share.asked = share.done + size
        answer, again = writer.insist("POST", record.path, headers, wire_body(record.kind, data))
        if self.accepted(answer, again):
            share.done = share.asked
            self._seq += 1
            if close:
                record.closed = Step.DONE
            if len(record.shares) == 1 and not record.prefix and answer.status < 300:
                self._mark(answer.next_offset)

    def _mark(self, offset: str) -> None:
        record = self._record
        whole = record.content_of(self._writer.name, 0, self._share.done)
        record.marks = [*record.marks[-20:], (offset, len(whole))]

    def claim(self) -> dict[str, str]:
        return {
            "Producer-Id": self._writer.name,
            "Producer-Epoch": str(self._epoch),
            "Producer-Seq": str(self._seq),
        }

    def accepted(self, answer: Answer, again: bool) -> bool:
        return self._writer.expect(
            f"append {self._epoch}/{self._seq} to {self._record.path}", answer, again, {200}, {204}
        )


class Sequencer(Producer):
    """Appends without a producer; `Stream-Seq` shows whether an append has happened before."""

    def claim(self) -> dict[str, str]:
        return {"Stream-Seq": f"{self._share.done:09d}"}

    def accepted(self, answer: Answer, again: bool) -> bool:
        what = f"append {self._share.done} to {self._record.path}"
        if not self._writer.expect(what, answer, again, {204}, {409}):
            return False
        if answer.status == 409:
            code = answer.json()["code"]
            if code not in {"stream-seq-regression", "stream-closed"}:
                self._writer.ledger.complain(f"{what} was refused with {code}")
        return True


class Reader(Client):
    """Follows one stream after another and notes every byte that it sees."""

    def __init__(self, name: str, gate: Gate, ledger: Ledger, seed: str, mode: str) -> None:
        super().__init__(name, gate, ledger, seed)
        self._mode = mode

    def turn(self) -> None:
        records = [
            record
            for record in self.ledger.records()
            if record.created is Step.DONE and record.deleted is Step.NOT_ASKED
        ]
        if not records:
            self.attempt_quietly(lambda wire: wire.ask_stream("HEAD", "nothing"))
            return
        record = self.random.choice([*records[:2], *records[-12:]])
        offset, position = "-1", 0
        for _ in range(self.random.randint(2, 12)):
            if self._mode == "sse":
                self.attempt_quietly(lambda wire: self._follow(record, wire))
                return
            query = "&live=long-poll" if self._mode == "long-poll" else ""
            target = f"{record.path}?offset={offset}{query}"
            answer = self.attempt_quietly(partial(Wire.ask_stream, method="GET", name=target))
            if answer is None:
                continue  # the next server goes on where the last one stopped
            if answer.status in {404, 410}:
                if record.deleted is Step.NOT_ASKED:
                    self.ledger.complain(f"{self.name}: {record.path} is gone: {answer.body!r}")
                return
            if answer.status not in {200, 204}:
                self.ledger.complain(f"{self.name}: {target} gave {answer.status} {answer.body!r}")
                return
            data = stored(record.kind, answer.body) if answer.status == 200 else b""
            self._saw(record, position, data, answer.next_offset)
            position += len(data)
            offset = answer.next_offset
            if answer.headers.get("stream-closed") == "true":
                return

    def attempt_quietly(self, act: Callable[[Wire], Answer]) -> Answer | None:
        try:
            return self.attempt(act)
        except Lost:
            return None

    def _follow(self, record: Record, wire: Wire) -> Answer:
        position = 0
        pending = b""
        left = self.random.randint(2, 15)
        for event in wire.events(f"{record.path}?offset=-1&live=sse"):
            if event.kind == "data":
                is_json = record.kind == JSON
                pending = stored(JSON, event.data.encode()) if is_json else event.decoded()
                continue
            control = event.json()
            self._saw(record, position, pending, control["streamNextOffset"])
            position += len(pending)
            pending = b""
            left -= 1
            if not left or control.get("streamClosed"):
                break
        return Answer(200, {}, b"")

    def _saw(self, record: Record, position: int, data: bytes, next_offset: str) -> None:
        wrong = record.saw(position, data, next_offset)
        if wrong is not None:
            self.ledger.complain(f"{self.name}: {wrong}")


def start_clients(gate: Gate, ledger: Ledger, seed: str, port: int) -> list[Client]:
    """Make the streams that all share, and let writers and readers start."""
    shared = []
    with Wire(port) as wire:
        for kind in (JSON, BINARY):
            record = Record(f"shared-{kind[-4:]}", kind)
            assert wire.ask_stream("PUT", record.path, {"Content-Type": kind}).status == 201
            record.created = Step.DONE
            shared.append(ledger.add(record))
    clients = [
        *(Writer(f"writer{number}", gate, ledger, seed, shared) for number in range(4)),
        *(
            Reader(f"reader-{mode}", gate, ledger, seed, mode)
            for mode in ("long-poll", "sse", "catch-up")
        ),
    ]
    for client in clients:
        client.start()
    return clients
