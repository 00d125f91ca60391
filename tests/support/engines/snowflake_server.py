"""fakesnow behind the locks that Snowflake has and it lacks; run as a process by the fixture.

In Snowflake, a transaction that has updated a table keeps others from updating it until it ends,
and one that is idle while others wait is aborted after five minutes. fakesnow has neither: writers
collide, and the transaction of a killed client stays for ever. Here both are added in front of it:
one second takes the place of five minutes, and the lock is taken by BEGIN, since DuckDB sees the
tables as they were then, where in Snowflake every statement sees what is committed. A request that
comes again because its answer got lost is answered as before, as Snowflake does by its id; and what
DuckDB refuses is an error of the statement, not a fault of the server to be waited out.
"""

import asyncio
import gzip
import json
import sys
import time
from typing import Any
from urllib.parse import parse_qs

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
        self._answers: dict[str, asyncio.Task[list[Any]]] = {}

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
        asked = parse_qs(scope["query_string"].decode()).get("requestId", [""])[0]
        answer = self._answers.get(asked)
        if answer is None:
            answer = asyncio.ensure_future(self._answer(scope, headers, body))
            if asked:
                self._answers[asked] = answer
        for message in await asyncio.shield(answer):
            await send(message)

    async def _answer(self, scope: Any, headers: dict[bytes, bytes], body: bytes) -> list[Any]:
        """Have a request answered, also when whoever asked is cut off meanwhile."""
        token = headers.get(b"authorization", b"").decode()[17:-1]
        statement = _statement(scope["path"], headers, body)
        given = [{"type": "http.request", "body": body, "more_body": False}]
        messages: list[Any] = []

        async def receive() -> Any:
            return given.pop() if given else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            messages.append(message)

        self._asked[token] = time.monotonic()
        self._busy[token] = self._busy.get(token, 0) + 1
        try:
            if await self._may_go_on(token, statement):
                await app(scope, receive, send)
                if messages[0].get("status") == 500:
                    messages = _refusal("000603", "DuckDB has refused the statement.")
            else:
                messages = _refusal("000637", "The transaction was idle, and aborted.")
        finally:
            self._busy[token] -= 1
            self._asked[token] = time.monotonic()
            if self._owner == token and (
                statement in {"COMMIT", "ROLLBACK"} or token not in self._in_transaction
            ):
                self._owner = ""
        return messages

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
        elif statement in {"UPDATE", "DELETE", "MERGE", "CREATE"}:
            # Two that create the same table at once are one too many for DuckDB.
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


def _refusal(code: str, reason: str) -> list[Any]:
    answer = {
        "data": {"errorCode": code, "sqlState": "57014"},
        "code": code,
        "message": reason,
        "success": False,
    }
    headers = [(b"content-type", b"application/json")]
    return [
        {"type": "http.response.start", "status": 200, "headers": headers},
        {"type": "http.response.body", "body": json.dumps(answer).encode()},
    ]


if __name__ == "__main__":
    uvicorn.run(Locks(), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
