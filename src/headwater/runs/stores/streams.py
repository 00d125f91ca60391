"""Runs on a stream server: every run is a stream, and any client of the protocol can tail it.

    {root}/log/RUN           the events (see `streams_log`)
    {root}/checkpoint/RUN    checkpoints; the last one counts
    {root}/tombstone/RUN     there where a run was deleted
    {root}/position          how far projectors have come; the last message counts
    {root}/changes           which runs change (see `streams_changes`)

Assignment and commit are one request to the run's stream, so numbers have no gaps.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import ClassVar, Final
from urllib.parse import quote
from uuid import uuid4

import msgspec

from headwater.client import AsyncClient, AsyncStream, ProducerClaim, Retry
from headwater.errors import (
    ClientError,
    OffsetGone,
    ProducerGap,
    RunDeleted,
    RunStoreUnavailable,
    SettingsError,
    StoreNotOpen,
)
from headwater.runs.events import Document, StoredEvent, instant_text
from headwater.runs.store import (
    PAGE,
    AppendResult,
    Changes,
    Checkpoint,
    RunInfo,
    RunPage,
    RunStore,
    check_limit,
    check_page,
    cursor_of,
    parse_cursor,
)
from headwater.runs.stores.streams_changes import ChangeStream
from headwater.runs.stores.streams_checkpoints import JSON, MISSING, StreamCheckpoints
from headwater.runs.stores.streams_log import PRODUCER, RunLog, read_message
from headwater.runs.values import RunStatus

_MAX_LOADED: Final = 1000
_MAX_POSITIONS: Final = 100
_AT_ONCE: Final = 12
"""Requests for runs under way: with those for changes no more than the client keeps connections."""


class StreamRunStore(RunStore):
    """Keeps runs on a server of the Durable Streams protocol, below one path."""

    authority: ClassVar[str] = "the run's stream: a producer that all writers share numbers appends"
    gaps_are_final: ClassVar[bool] = True

    def __init__(self, base_url: str, root: str = "runs") -> None:
        self._base_url = base_url
        self._root = root.strip("/")
        self._client: AsyncClient | None = None
        self._changes: ChangeStream | None = None
        self._logs: OrderedDict[str, RunLog] = OrderedDict()
        self._locks: dict[str, asyncio.Lock] = {}
        self._fetched: OrderedDict[str, tuple[int, str]] = OrderedDict()
        """Where the last fetch of a run ended: behind which number, at which offset."""
        self._checkpoints = StreamCheckpoints(self._stream)
        self._positions = 0
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._known: dict[str, RunInfo] = {}
        """All runs, as far as the changes were read."""
        self._known_offset = "-1"

    @classmethod
    def from_url(cls, url: str) -> "StreamRunStore":
        """Take a URL such as `streams+http://host:4437/runs`: the path is where the streams go."""
        inner = url.partition("+")[2]
        scheme, separator, rest = inner.partition("://")
        host, _, root = rest.partition("/")
        if scheme not in {"http", "https"} or not separator or not host:
            raise SettingsError("run store", url, "a URL such as streams+http://127.0.0.1:4437")
        return cls(f"{scheme}://{host}", root or "runs")

    async def open(self) -> None:
        if self._client is not None:
            return
        client = AsyncClient(self._base_url, retry=Retry(attempts=5))
        changes = client.stream(f"{self._root}/changes", content_type=JSON)
        try:
            await changes.create(JSON)
        except ClientError as error:
            await client.close()
            raise RunStoreUnavailable(self._base_url, str(error)) from error
        self._client, self._changes = client, ChangeStream(changes)

    async def close(self) -> None:
        if self._changes is not None:
            await self._changes.finish()
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    # Appending

    async def _append(self, run_id: str, documents: Sequence[Document]) -> list[AppendResult]:
        writer = str(uuid4())
        async with self._using(run_id):
            changes = self._changes_stream()
            await changes.begin(run_id, writer, _now())
            results = await self._write(run_id, list(documents), writer)
            await changes.end(writer, self._logs[run_id].info())
            return results

    async def _write(
        self, run_id: str, documents: list[Document], writer: str
    ) -> list[AppendResult]:
        stream = self._stream("log", run_id)
        log = self._logs.get(run_id) or await self._load(run_id, create=True)
        while True:
            messages, results = log.messages(documents, _now(), writer)
            try:
                if not messages:
                    # What is known may be deleted since: only the server can say.
                    await self._read_on(log)
                    return results
                before = log.next_append
                async with self._turns:
                    appended = await stream.append_many(
                        messages, producer=ProducerClaim(PRODUCER, 0, before), content_type=JSON
                    )
                if not appended.duplicate:
                    # Ours is the next append, so what lies between is known: no need to read it.
                    for message in messages:
                        log.take(msgspec.json.decode(message))
                    log.offset = appended.next_offset
                    return results
                await self._read_on(log)
            except (*MISSING, ProducerGap):
                self._logs.pop(run_id, None)
                log = await self._load(run_id, create=True)
                continue
            if await self._is_mine(stream, before, writer):
                return results

    async def _is_mine(self, stream: AsyncStream, number: int, writer: str) -> bool:
        """Tell a second attempt of our own, whose first was not answered, from another's append."""
        async for message in stream.read().items():
            if message["append"][0] == number:
                return bool(message["append"][1] == writer)
        return False

    async def _load(self, run_id: str, *, create: bool = False) -> RunLog:
        """Read a run from its start; raises `RunDeleted`, and what a missing stream raises."""
        if create:
            # First the stream, then the look for a tombstone: whoever deletes does it the other
            # way round, so one of the two sees the other.
            await self._stream("log", run_id).create(JSON)
        if await self._stream("tombstone", run_id).exists():
            if create:
                with suppress(*MISSING):
                    await self._stream("log", run_id).delete()
            raise RunDeleted(run_id)
        log = RunLog(run_id)
        await self._read_on(log)
        self._logs[run_id] = log
        if len(self._logs) > _MAX_LOADED:
            self._logs.popitem(last=False)
        return log

    async def _read_on(self, log: RunLog) -> None:
        async for batch in self._stream("log", log.run_id).read(log.offset):
            for message in batch.items():
                log.take(message)
            log.offset = batch.next_offset

    async def delete_run(self, run_id: str) -> bool:
        async with self._using(run_id):
            try:
                log = RunLog(run_id)
                await self._read_on(log)
            except MISSING:
                return False
            info = log.info()
            if info is None:
                return False
            gone = msgspec.structs.replace(info, deleted=True, updated_at=datetime.now(UTC))
            await self._stream("tombstone", run_id).create(JSON, closed=True)
            await self._changes_stream().deleted(gone)
            self._logs.pop(run_id, None)
            for kind in ("checkpoint", "log"):
                with suppress(*MISSING):
                    await self._stream(kind, run_id).delete()
            return True

    # Reading

    async def fetch_events(
        self, run_id: str, after_seq: int = 0, limit: int = PAGE
    ) -> list[StoredEvent]:
        check_page(after_seq, limit)
        found: list[StoredEvent] = []
        seq, offset = self._fetched.get(run_id, (0, "-1"))
        if seq > after_seq:
            seq, offset = 0, "-1"
        async with self._asking(), self._turns:
            with suppress(*MISSING, OffsetGone):
                reading = self._stream("log", run_id).read(offset)
                async for message, position in reading.items_with_offsets():
                    seq, offset = message["runSeq"], str(position)
                    if seq > after_seq:
                        found.append(read_message(run_id, message))
                        if len(found) == limit:
                            break
        if seq:
            # Whoever reads page by page comes back here: it need not be read from the start.
            self._fetched[run_id] = (seq, offset)
            self._fetched.move_to_end(run_id)
            if len(self._fetched) > _MAX_LOADED:
                self._fetched.popitem(last=False)
        return found

    async def find_run(self, run_id: str) -> RunInfo | None:
        async with self._asking():
            try:
                log = RunLog(run_id)
                await self._read_on(log)
            except MISSING:
                return None
            return log.info()

    async def list_runs(
        self,
        *,
        status: RunStatus | None = None,
        created_from: datetime | None = None,
        created_before: datetime | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> RunPage:
        check_limit(limit)
        behind = None if after is None else parse_cursor(after)
        changes = await self.changes(self._known_offset, 10_000)
        while changes.runs:
            self._known.update((info.run_id, info) for info in changes.runs)
            if changes.mark == self._known_offset:
                break
            self._known_offset = changes.mark
            changes = await self.changes(self._known_offset, 10_000)
        ordered = sorted(
            (
                (instant_text(info.created_at), info.run_id)
                for info in self._known.values()
                if not info.deleted
                and (status is None or info.status is status)
                and (created_from is None or info.created_at >= created_from)
                and (created_before is None or info.created_at < created_before)
            ),
            reverse=True,
        )
        if behind is not None:
            ordered = [each for each in ordered if each < behind]
        runs = tuple(self._known[run_id] for _, run_id in ordered[:limit])
        more = len(ordered) > limit
        return RunPage(runs, cursor_of(runs[-1], ordered[limit - 1][0]) if more else None)

    async def changes(self, mark: str = "", limit: int = PAGE) -> Changes:
        check_limit(limit)
        async with self._asking():
            return await self._changes_stream().read(mark, limit, self.find_run)

    async def wait(self, mark: str, seconds: float) -> None:
        async with self._asking():
            await self._changes_stream().wait(mark, seconds)

    # Checkpoints

    async def save_checkpoints(self, checkpoints: Sequence[Checkpoint]) -> None:
        async with self._asking():
            await asyncio.gather(*map(self._save, checkpoints))

    async def save_position(self, position: str) -> None:
        stream = self._position_stream()
        async with self._asking():
            if self._positions >= _MAX_POSITIONS:
                # A crash in between loses it, and the next projector looks at all runs.
                with suppress(*MISSING):
                    await stream.delete()
                self._positions = 0
            if not self._positions:
                await stream.create(JSON)
            await stream.append_many([{"position": position}], content_type=JSON)
            self._positions += 1

    async def load_position(self) -> str:
        found = ""
        async with self._asking():
            with suppress(*MISSING):
                async for message in self._position_stream().read().items():
                    found = message["position"]
        return found

    def _position_stream(self) -> AsyncStream:
        if self._client is None:
            raise StoreNotOpen
        return self._client.stream(f"{self._root}/position")

    async def _save(self, checkpoint: Checkpoint) -> None:
        async with self._turns:
            await self._checkpoints.save(checkpoint)

    async def load_checkpoint(self, run_id: str) -> Checkpoint | None:
        async with self._asking(), self._turns:
            return await self._checkpoints.load(run_id)

    # The server

    def _stream(self, kind: str, run_id: str) -> AsyncStream:
        if self._client is None:
            raise StoreNotOpen
        # Quoted twice: a run id is one segment of the path, whatever characters it has.
        return self._client.stream(f"{self._root}/{kind}/{quote(run_id, safe='')}")

    def _changes_stream(self) -> ChangeStream:
        if self._client is None or self._changes is None:
            raise StoreNotOpen
        return self._changes

    @asynccontextmanager
    async def _using(self, run_id: str) -> AsyncIterator[None]:
        """Change a run: one call of this process at a time, and what fails is forgotten."""
        if self._client is None:
            raise StoreNotOpen
        lock = self._locks.setdefault(run_id, asyncio.Lock())
        async with lock, self._asking():
            try:
                yield
            except BaseException:
                self._logs.pop(run_id, None)
                raise

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[None]:
        """Turn what fails between here and the server into what a caller of stores knows."""
        try:
            yield
        except ClientError as error:
            raise RunStoreUnavailable(self._base_url, str(error)) from error


def _now() -> str:
    return instant_text(datetime.now(UTC))
