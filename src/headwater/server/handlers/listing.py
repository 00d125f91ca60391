"""Listing, split points and changes, for readers of many or of long streams.

`{root}__ds/streams` lists streams, `{root}__ds/splits/<path>` returns offsets at which a stream can
be read in parallel, and `{root}__ds/changes` waits until one of many streams changes.

Changes are numbered while clients request them, so that a reader of many streams need not poll each
of them. A cursor consists of a number and the session in which it was assigned. The changes after a
cursor are not known after a restart, after a pause of `IDLE_SECONDS`, or if too many streams have
changed since. The reader then has to list the streams.
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
from headwater.storage.store import SplitPoints, StreamInfo

MAX_LISTED: Final = 1000
MAX_SCANNED: Final = 10_000
"""Streams that one request compares with a glob; the next page continues after them."""

MAX_SPLITS: Final = 1000
MAX_GLOBS: Final = 1000
_MIB: Final = 1024 * 1024
_MAX_NUMBER: Final = 10**15


class Listing:
    """Answers the requests for listings, split points and changes."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._prefix = context.settings.root + RESERVED + "/"
        self.changes = ChangeLog(context)

    async def handle(self, request: Request) -> Response | None:
        """Answer a request below `__ds/`, or return None if its path belongs to another handler."""
        relative = request.head.url_path.removeprefix(self._prefix)
        resource, _, path = relative.partition("/")
        if relative not in {"streams", "changes"} and not (resource == "splits" and path):
            return None
        if resource == "streams":
            return await by_method(request, GET=lambda: self._streams(request))
        if resource == "changes":
            return await by_method(request, GET=lambda: self._changes(request))
        return await by_method(request, GET=lambda: self._splits(request, path))

    async def _streams(self, request: Request) -> Response:
        parameters = request.head.parameters
        limit = _number(parameters, "limit", 100, 1, MAX_LISTED)
        globs = self._globs(parameters)
        if isinstance(limit, BadRequest):
            return refuse(limit)
        if not isinstance(globs, list):
            return refuse(globs)
        if len(globs) != 1:
            return refuse(BadRequest("repeated-parameter", "Send the glob parameter once."))
        glob = globs[0]
        store, now = self._context.store, self._context.clock()
        after = parameters.get("after", [""])[0]
        prefix = literal_prefix(glob)
        found: list[StreamInfo] = []
        more = False
        if prefix == glob and not ({ONE, ANY} & set(glob.split("/"))):
            info = await store.head(glob, now)
            found = [info] if isinstance(info, StreamInfo) and glob > after else []
        else:
            scanned = 0
            while len(found) < limit and scanned < MAX_SCANNED:
                page = await store.list_streams(prefix, after, limit, now)
                if not page:
                    break
                scanned += len(page)
                for info in page:
                    after = info.path
                    if matches(glob, info.path):
                        found.append(info)
                        if len(found) == limit:
                            break
            else:
                more = True
        listed = [_describe(info) for info in found]
        return json_response(200, {"streams": listed, "next": after if more else None})

    async def _splits(self, request: Request, encoded: str) -> Response:
        context, parameters = self._context, request.head.parameters
        path = context.stream_at(context.settings.root + encoded)
        size = _number(parameters, "bytes", 32 * _MIB, 1, _MAX_NUMBER)
        limit = _number(parameters, "limit", MAX_SPLITS, 1, MAX_SPLITS)
        start = _position(parameters, "from", "-1")
        end = _position(parameters, "to", "now")
        if not isinstance(path, str):
            return refuse(path)
        if isinstance(size, BadRequest):
            return refuse(size)
        if isinstance(limit, BadRequest):
            return refuse(limit)
        if isinstance(start, MalformedOffset):
            return refuse(start)
        if isinstance(start, Now):
            return refuse(BadRequest("bad-parameter", "'from' must be an offset or -1."))
        if isinstance(end, MalformedOffset):
            return refuse(end)
        splits = await context.store.split_points(path, start, end, size, limit, context.clock())
        if not isinstance(splits, SplitPoints):
            return refuse(splits)
        offsets = [str(offset) for offset in splits.offsets]
        body = {
            **_describe(splits.info),
            "offsets": offsets,
            "next": None if splits.complete else offsets[-1],
        }
        return json_response(200, body)

    async def _changes(self, request: Request) -> Response:
        parameters = request.head.parameters
        globs = self._globs(parameters)
        if not isinstance(globs, list):
            return refuse(globs)
        maximum = int(self._context.settings.long_poll_timeout * 1000)
        wait = _number(parameters, "wait_ms", maximum, 0, _MAX_NUMBER)
        if isinstance(wait, BadRequest):
            return refuse(wait)
        after = parameters.get("after", [""])[0]
        changed = await self.changes.wait(globs, after, min(wait, maximum) / 1000)
        body: dict[str, object] = {"cursor": changed.cursor, "streams": None, "gone": []}
        if changed.streams is not None:
            store, now = self._context.store, self._context.clock()
            found = {path: await store.head(path, now) for path in changed.streams}
            existing = [info for info in found.values() if isinstance(info, StreamInfo)]
            body["streams"] = [_describe(info) for info in existing]
            body["gone"] = sorted(found.keys() - {info.path for info in existing})
        return json_response(200, body)

    def _globs(self, parameters: dict[str, list[str]]) -> list[str] | BadRequest:
        texts = parameters.get("glob", [ANY])
        if len(texts) > MAX_GLOBS:
            return BadRequest("bad-parameter", f"Send at most {MAX_GLOBS} globs.")
        globs = []
        for text in texts:
            glob = stream_path(text, self._context.settings.max_path_bytes)
            if isinstance(glob, BadConfig):
                return BadRequest("bad-parameter", f"The glob can't match a path: {glob.reason}.")
            globs.append(glob)
        return globs


def _describe(info: StreamInfo) -> dict[str, object]:
    return {
        "path": info.path,
        "content_type": info.config.content_type,
        "tail": str(info.tail),
        "incarnation": str(info.incarnation),
        "closed": info.closed,
    }


def _number(
    parameters: dict[str, list[str]], name: str, default: int, minimum: int, maximum: int
) -> int | BadRequest:
    number = parse_number(parameters.get(name, [str(default)])[-1], minimum, maximum)
    if number is None:
        return BadRequest("bad-parameter", f"'{name}' must be from {minimum} to {maximum}.")
    return number


def _position(
    parameters: dict[str, list[str]], name: str, default: str
) -> Offset | Now | MalformedOffset:
    return parse_position(parameters.get(name, [default])[-1])


# Changes

MAX_REMEMBERED: Final = 16_384
MAX_REPORTED: Final = 1000
IDLE_SECONDS: Final = 60.0


class ChangedStreams(Struct, frozen=True):
    """The streams that changed after a cursor, or None if that is not known."""

    cursor: str
    streams: list[str] | None


class ChangeLog:
    """Records the order in which streams changed, and wakes the requests that wait for a change."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._session = ""
        self._number = 0
        self._forgotten = 0
        """Changes up to this number may be missing from `_last`."""
        self._last: dict[str, int] = {}
        """The number of the last change of each stream, oldest first."""
        self._waiting: dict[object, tuple[GlobIndex[int], Callable[[], None]]] = {}
        self._unobserve: Callable[[], None] | None = None
        self._idle: asyncio.TimerHandle | None = None

    async def wait(self, globs: Sequence[str], after: str, seconds: float) -> ChangedStreams:
        """Return the streams that changed after a cursor; wait for a change if there is none."""
        self._start_recording()
        index: GlobIndex[int] = GlobIndex()
        for number, glob in enumerate(globs):
            index.add(number, glob)
        try:
            since = self._position(after)
            if since is None:
                return ChangedStreams(self._cursor(), None)
            found = self._since(since, index)
            if found == [] and seconds > 0:
                await self._wait_for_change(index, seconds)
                # Also reached when the deadline passes or the server stops.
                found = self._since(since, index) if since >= self._forgotten else None
            return ChangedStreams(self._cursor(), found)
        finally:
            self._stop_when_idle()

    def stop(self) -> None:
        """Stop recording, and discard all changes."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._unobserve is not None:
            self._unobserve()
            self._unobserve = None
        self._last.clear()

    def _start_recording(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._unobserve is None:
            self._session = secrets.token_hex(4)
            self._number = self._forgotten = 0
            self._unobserve = self._context.store.observe(self._record)

    def _stop_when_idle(self) -> None:
        if not self._waiting and self._unobserve is not None and self._idle is None:
            self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self.stop)

    def _record(self, path: str) -> None:
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
        session, _, number = cursor.partition("-")
        if (
            session != self._session
            or not (number.isascii() and number.isdigit())
            or len(number) > 18
        ):
            return None
        position = int(number)
        return position if self._forgotten <= position <= self._number else None

    def _cursor(self) -> str:
        return f"{self._session}-{self._number}"

    def _since(self, since: int, index: GlobIndex[int]) -> list[str] | None:
        found: list[str] = []
        for path, number in reversed(self._last.items()):
            if number <= since:
                break
            if index.match(path):
                found.append(path)
                if len(found) > MAX_REPORTED:
                    return None
        return found

    async def _wait_for_change(self, index: GlobIndex[int], seconds: float) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        if self._context.draining:
            return
        key = object()
        self._waiting[key] = (index, wake)
        self._context.drain_callbacks.add(wake)
        timer = loop.call_later(seconds, wake)
        try:
            await future
        finally:
            timer.cancel()
            del self._waiting[key]
            self._context.drain_callbacks.discard(wake)
