"""fakesnow behind the locks that Snowflake has and it lacks; run as a process by the fixture.

In Snowflake, a transaction that has updated a table keeps others from updating it until it ends,
and one that is idle while others wait is aborted after five minutes. fakesnow has neither: writers
collide, and the transaction of a killed client stays for ever. Here both are added in front of it:
one second takes the place of five minutes, and the lock is taken by BEGIN, since DuckDB sees the
tables as they were then, where in Snowflake every statement sees what is committed.
"""

import asyncio
import gzip
import json
import sys
import time
from typing import Any

import uvicorn
from fakesnow.server import app, sessions
from starlette.concurrency import run_in_threadpool

IDLE_SECONDS = 1.0


class Locks:
    """Who may update tables now; in front of the application."""

    def __init__(self) -> None:
        self._owner = ""
        self._in_transaction: set[str] = set()
        self._aborted: set[str] = set()
        self._asked: dict[str, float] = {}
        self._busy: dict[str, int] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name.lower(): value for name, value in scope["headers"]}
        token = headers.get(b"authorization", b"").decode()[17:-1]
        statement = _statement(scope["path"], headers, body)
        given = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Any:
            return given.pop() if given else await receive()

        self._asked[token] = time.monotonic()
        self._busy[token] = self._busy.get(token, 0) + 1
        try:
            if await self._may_go_on(token, statement):
                await app(scope, replay, send)
            else:
                await _refuse(send)
        finally:
            self._busy[token] -= 1
            self._asked[token] = time.monotonic()
            if self._owner == token and (
                statement in {"COMMIT", "ROLLBACK"} or token not in self._in_transaction
            ):
                self._owner = ""

    async def _may_go_on(self, token: str, statement: str) -> bool:
        if statement == "BEGIN":
            await self._take(token)
            self._aborted.discard(token)
            self._in_transaction.add(token)
        elif statement in {"COMMIT", "ROLLBACK"}:
            self._in_transaction.discard(token)
            if token in self._aborted:
                self._aborted.discard(token)
                return False
        elif token in self._aborted:
            return False
        elif statement in {"UPDATE", "DELETE", "MERGE"}:
            await self._take(token)
        return True

    async def _take(self, token: str) -> None:
        while self._owner not in {"", token}:
            await self._abort_if_idle(self._owner)
            await asyncio.sleep(0.002)
        self._owner = token

    async def _abort_if_idle(self, token: str) -> None:
        if self._busy.get(token) or time.monotonic() - self._asked[token] < IDLE_SECONDS:
            return
        self._owner = ""
        self._in_transaction.discard(token)
        self._aborted.add(token)
        if token in sessions:
            await run_in_threadpool(sessions[token].cursor().execute, "ROLLBACK")


def _statement(path: str, headers: dict[bytes, bytes], body: bytes) -> str:
    """Name the kind of a statement by its first word."""
    if path != "/queries/v1/query-request":
        return ""
    if headers.get(b"content-encoding") == b"gzip":
        body = gzip.decompress(body)
    words: list[str] = json.loads(body)["sqlText"].split()
    return words[0].upper().rstrip(";")


async def _refuse(send: Any) -> None:
    answer = {
        "data": {"errorCode": "000637", "sqlState": "57014"},
        "code": "000637",
        "message": "The transaction was aborted: it was idle while others waited for its lock.",
        "success": False,
    }
    body = json.dumps(answer).encode()
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    uvicorn.run(Locks(), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
