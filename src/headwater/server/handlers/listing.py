"""What readers of many or of long streams need: a listing, split points, and what changed.

`{root}__ds/streams` lists streams, `{root}__ds/splits/<path>` says where one may be cut, and
`{root}__ds/changes` waits until one of many changes.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from headwater.protocol.globs import ANY, ONE, GlobIndex, literal_prefix, matches
from headwater.protocol.offsets import MalformedOffset, Now, Offset, parse_position
from headwater.protocol.paths import RESERVED
from headwater.protocol.subscriptions import BadConfig, stream_path
from headwater.server.context import Context
from headwater.server.messages import Request, Response
from headwater.server.problems import BadRequest, refuse
from headwater.server.routing import by_method, json_response, parse_number
from headwater.storage.store import Splits, StreamInfo

MAX_LISTED: Final = 1000
MAX_LOOKED_AT: Final = 10_000
"""A glob that matches little is looked for in so many streams; the rest is another request."""

MAX_PIECES: Final = 1000
MAX_GLOBS: Final = 1000
_MIB: Final = 1024 * 1024
_MAX_NUMBER: Final = 10**15


class Listing:
    """Answers the requests that look at streams from above."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._prefix = context.settings.root + RESERVED + "/"
        self.changes = Changes(context)

    async def handle(self, request: Request) -> Response | None:
        """Answer a request below `__ds/`; None where it is not for this."""
        behind = request.head.url_path.removeprefix(self._prefix)
        resource, _, path = behind.partition("/")
        if behind not in {"streams", "changes"} and not (resource == "splits" and path):
            return None
        if resource == "streams":
            return await by_method(request, GET=lambda: self._streams(request))
        if resource == "changes":
            return await by_method(request, GET=lambda: self._changes(request))
        return await by_method(request, GET=lambda: self._splits(request, path))

    async def _streams(self, request: Request) -> Response:
        given = request.head.parameters
        limit = _number(given, "limit", 100, 1, MAX_LISTED)
        globs = self._globs(given)
        if isinstance(limit, BadRequest):
            return refuse(limit)
        if not isinstance(globs, list):
            return refuse(globs)
        if len(globs) != 1:
            return refuse(BadRequest("repeated-parameter", "Send the glob parameter once."))
        glob = globs[0]
        store, now = self._context.store, self._context.clock()
        after = given.get("after", [""])[0]
        prefix = literal_prefix(glob)
        found: list[StreamInfo] = []
        more = False
        if prefix == glob and not ({ONE, ANY} & set(glob.split("/"))):
            info = await store.head(glob, now)
            found = [info] if isinstance(info, StreamInfo) and glob > after else []
        else:
            looked_at = 0
            while len(found) < limit and looked_at < MAX_LOOKED_AT:
                page = await store.streams(prefix, after, limit, now)
                if not page:
                    break
                looked_at += len(page)
                for info in page:
                    after = info.path
                    if matches(glob, info.path):
                        found.append(info)
                        if len(found) == limit:
                            break
            else:
                more = True
        listed = [_described(info) for info in found]
        return json_response(200, {"streams": listed, "next": after if more else None})

    async def _splits(self, request: Request, encoded: str) -> Response:
        context, given = self._context, request.head.parameters
        path = context.stream_at(context.settings.root + encoded)
        size = _number(given, "bytes", 32 * _MIB, 1, _MAX_NUMBER)
        limit = _number(given, "limit", MAX_PIECES, 1, MAX_PIECES)
        start = _position(given, "from", "-1")
        end = _position(given, "to", "now")
        for value in (path, size, limit, start, end):
            if isinstance(value, BadRequest | MalformedOffset):
                return refuse(value)
        if not isinstance(path, str):
            return refuse(path)
        if not isinstance(start, Offset):
            return refuse(BadRequest("bad-parameter", "'from' is an offset or -1."))
        assert isinstance(size, int) and isinstance(limit, int)  # noqa: PT018, S101 - seen above
        assert isinstance(end, Offset | Now)  # noqa: S101 - seen above
        cut = await context.store.splits(path, start, end, size, limit, context.clock())
        if not isinstance(cut, Splits):
            return refuse(cut)
        offsets = [str(offset) for offset in cut.offsets]
        answer = {
            **_described(cut.info),
            "offsets": offsets,
            "next": None if cut.complete else offsets[-1],
        }
        return json_response(200, answer)

    async def _changes(self, request: Request) -> Response:
        given = request.head.parameters
        globs = self._globs(given)
        if not isinstance(globs, list):
            return refuse(globs)
        most = int(self._context.settings.long_poll_timeout * 1000)
        wait = _number(given, "wait_ms", most, 0, _MAX_NUMBER)
        if isinstance(wait, BadRequest):
            return refuse(wait)
        after = given.get("after", [""])[0]
        changed = await self.changes.wait(globs, after, min(wait, most) / 1000)
        answer: dict[str, object] = {"cursor": changed.cursor, "streams": None, "gone": []}
        if changed.streams is not None:
            store, now = self._context.store, self._context.clock()
            found = {path: await store.head(path, now) for path in changed.streams}
            there = [info for info in found.values() if isinstance(info, StreamInfo)]
            answer["streams"] = [_described(info) for info in there]
            answer["gone"] = sorted(found.keys() - {info.path for info in there})
        return json_response(200, answer)

    def _globs(self, given: dict[str, list[str]]) -> list[str] | BadRequest:
        texts = given.get("glob", [ANY])
        if len(texts) > MAX_GLOBS:
            return BadRequest("bad-parameter", f"At most {MAX_GLOBS} globs can be sent at once.")
        globs = []
        for text in texts:
            glob = stream_path(text, self._context.settings.max_path_bytes)
            if isinstance(glob, BadConfig):
                return BadRequest("bad-parameter", f"The glob can't match a path: {glob.reason}.")
            globs.append(glob)
        return globs


def _described(info: StreamInfo) -> dict[str, object]:
    return {
        "path": info.path,
        "content_type": info.config.content_type,
        "tail": str(info.tail),
        "incarnation": str(info.incarnation),
        "closed": info.closed,
    }


def _number(
    given: dict[str, list[str]], name: str, default: int, least: int, most: int
) -> int | BadRequest:
    number = parse_number(given.get(name, [str(default)])[-1], least, most)
    if number is None:
        return BadRequest("bad-parameter", f"'{name}' is a number from {least} to {most}.")
    return number


def _position(
    given: dict[str, list[str]], name: str, default: str
) -> Offset | Now | MalformedOffset:
    return parse_position(given.get(name, [default])[-1])


# Which streams changed lately, for readers of many streams who would otherwise ask for each.
#
# Changes are numbered while somebody asks for them. A cursor names a number and the run of
# numbering that it belongs to: after a restart, after a long silence, or where more streams
# changed than are remembered, the answer is that nobody knows, and the reader looks at the
# streams themselves.

MAX_REMEMBERED: Final = 16_384
MAX_TOLD: Final = 1000
IDLE_SECONDS: Final = 60.0


class Changed(Struct, frozen=True):
    """The streams that changed behind a cursor; None where that is not known."""

    cursor: str
    streams: list[str] | None


class Changes:
    """Remembers the order in which streams changed, and wakes whoever waits for one."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._run = ""
        self._number = 0
        self._forgotten = 0
        """Up to this number, a change may not be remembered."""
        self._last: dict[str, int] = {}
        """The last change of each stream, oldest first."""
        self._waiting: dict[object, tuple[GlobIndex[int], Callable[[], None]]] = {}
        self._unobserve: Callable[[], None] | None = None
        self._idle: asyncio.TimerHandle | None = None

    async def wait(self, globs: Sequence[str], after: str, seconds: float) -> Changed:
        """Tell what changed behind a cursor, as soon as there is something to tell."""
        self._begin()
        index: GlobIndex[int] = GlobIndex()
        for number, glob in enumerate(globs):
            index.add(number, glob)
        try:
            since = self._position(after)
            if since is None:
                return Changed(self._cursor(), None)
            found = self._since(since, index)
            if found == [] and seconds > 0:
                await self._any(index, seconds)
                # The wait is over for all who waited, also because the server stops.
                found = self._since(since, index) if since >= self._forgotten else None
            return Changed(self._cursor(), found)
        finally:
            self._rest()

    def stop(self) -> None:
        """Forget everything."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._unobserve is not None:
            self._unobserve()
            self._unobserve = None
        self._last.clear()

    def _begin(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._unobserve is None:
            self._run = secrets.token_hex(4)
            self._number = self._forgotten = 0
            self._unobserve = self._context.store.observe(self._tell)

    def _rest(self) -> None:
        if not self._waiting and self._unobserve is not None and self._idle is None:
            self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self.stop)

    def _tell(self, path: str) -> None:
        self._number += 1
        last = self._last
        last.pop(path, None)
        last[path] = self._number
        if len(last) > MAX_REMEMBERED:
            oldest = next(iter(last))
            self._forgotten = last.pop(oldest)
        for index, wake in tuple(self._waiting.values()):
            if index.match(path):
                wake()

    def _position(self, cursor: str) -> int | None:
        run, _, number = cursor.partition("-")
        if run != self._run or not (number.isascii() and number.isdigit()) or len(number) > 18:
            return None
        position = int(number)
        return position if self._forgotten <= position <= self._number else None

    def _cursor(self) -> str:
        return f"{self._run}-{self._number}"

    def _since(self, since: int, index: GlobIndex[int]) -> list[str] | None:
        found: list[str] = []
        for path, number in reversed(self._last.items()):
            if number <= since:
                break
            if index.match(path):
                found.append(path)
                if len(found) > MAX_TOLD:
                    return None
        return found

    async def _any(self, index: GlobIndex[int], seconds: float) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        if self._context.draining:
            return
        key = object()
        self._waiting[key] = (index, wake)
        self._context.waiting.add(wake)
        timer = loop.call_later(seconds, wake)
        try:
            await future
        finally:
            timer.cancel()
            del self._waiting[key]
            self._context.waiting.discard(wake)
