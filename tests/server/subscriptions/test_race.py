"""Fifty workers race for one subscription over real connections: one holds it at any time."""

import asyncio
import json
from typing import Any

from headwater.server.listener import Server
from headwater.server.messages import Head, Request, Response
from headwater.server.settings import Settings

WORKERS = 50
ROUNDS = 1_000


class Connection:
    """A persistent connection with minimal overhead."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> "Connection":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def post(self, path: str, body: bytes, token: str = "") -> tuple[int, bytes]:
        bearer = f"Authorization: Bearer {token}\r\n" if token else ""
        self._writer.write(
            f"POST /v1/stream/{path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"{bearer}Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = await self._reader.readuntil(b"\r\n\r\n")
        status = int(head[9:12])
        at = head.lower().find(b"content-length: ")
        length = 0 if at < 0 else int(head[at + 16 : head.index(b"\r\n", at)])
        return status, await self._reader.readexactly(length)

    def close(self) -> None:
        self._writer.close()


class Race:
    """The workers, and those that believe they hold the lease."""

    def __init__(self, connections: list[Connection]) -> None:
        self._connections = connections
        self._holder: int | None = None
        self.generations: list[int] = []
        self.wins: set[int] = set()

    async def run(self, worker: int) -> int:
        """Claim once, and work if it succeeds."""
        connection = self._connections[worker]
        claim = b'{"worker":"%d"}' % worker
        status, raw = await connection.post("__ds/subscriptions/s/claim", claim)
        if status != 200:
            error = json.loads(raw)["error"]["code"]
            assert error in {"ALREADY_CLAIMED", "NO_PENDING_WORK"}, raw
            return 0
        assert self._holder is None, "two workers hold the lease"
        self._holder = worker
        wake: dict[str, Any] = json.loads(raw)
        work = {"wake_id": wake["wake_id"], "generation": wake["generation"], "acks": []}
        body = json.dumps(work).encode()
        status, raw = await connection.post("__ds/subscriptions/s/ack", body, wake["token"])
        assert status == 200, raw
        acks = [{"stream": item["path"], "offset": item["tail_offset"]} for item in wake["streams"]]
        body = json.dumps({**work, "acks": acks, "done": True}).encode()
        status, raw = await connection.post("__ds/subscriptions/s/ack", body, wake["token"])
        self._holder = None
        assert (status, json.loads(raw)["next_wake"]) == (200, False)
        self.generations.append(wake["generation"])
        self.wins.add(worker)
        return 1


def test_exactly_one_of_fifty_workers_holds_the_lease_in_each_of_a_thousand_rounds() -> None:
    async def scenario() -> None:
        server = Server(Settings(port=0, store="memory"))
        await server.start()
        try:
            port = int(server.url.rpartition(":")[2])
            producer = await Connection.open(port)
            await _prepare(server)
            race = Race([await Connection.open(port) for _ in range(WORKERS)])
            for _ in range(ROUNDS):
                status, _ = await producer.post("events/a", b"1")
                assert status == 204
                assert sum(await asyncio.gather(*map(race.run, range(WORKERS)))) == 1
            assert race.generations == list(range(1, ROUNDS + 1))
            for connection in (*race._connections, producer):
                connection.close()
        finally:
            await server.stop()

    asyncio.run(scenario())


async def _prepare(server: Server) -> None:
    json_type = {b"content-type": b"application/json", b"host": b"x"}
    subscription = {"type": "pull-wake", "streams": ["events/a"], "wake_stream": "wake"}
    for path, body in (
        ("events/a", b"[]"),
        ("wake", b"[]"),
        ("__ds/subscriptions/s", json.dumps(subscription).encode()),
    ):
        head = Head("PUT", f"/v1/stream/{path}", "", json_type)
        response = await server.app.handle(Request(head, body))
        assert isinstance(response, Response)
        assert response.status == 201
