"""Runs in DynamoDB, numbered by the run's head item.

An append is one transaction: the head goes from the number that we know to a new one, each event
and each key are put where there is none. The reason for which it is cancelled tells what happened:
a key that is there is a duplicate, and its item says the number; a head that stands elsewhere was
moved by another writer, and comes back with the answer. Assignment and commit are one step, so
numbers have no gaps. A reader may see the items of a transaction one after another; so a fetch that
finds a hole waits until it is filled, and what it gives has none.

A run is deleted by its head, in one step; what is left of it is hidden from then on and purged.
"""

import asyncio
import logging
import random
import re
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from heapq import merge
from typing import Any, ClassVar, Final
from urllib.parse import parse_qsl, urlsplit

import zstandard

from headwater.errors import (
    EventRefused,
    RunDeleted,
    RunLogDamaged,
    RunStoreUnavailable,
    SettingsError,
    StoreNotOpen,
)
from headwater.runs.events import Document, StoredEvent, instant_text, stored_event
from headwater.runs.reducer import status_after
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
    checkpoint_from_json,
    checkpoint_to_json,
    cursor_of,
    parse_cursor,
)
from headwater.runs.stores.dynamodb_items import (
    BY_CHANGE,
    BY_CREATION,
    CHECKPOINT,
    HEAD,
    SHARDS,
    ChangeWindow,
    Head,
    event_from,
    event_items,
    event_name,
    head_from,
    key_of,
)
from headwater.runs.stores.dynamodb_table import Refusal, Table
from headwater.runs.values import RunStatus

log: Final = logging.getLogger("headwater.runs")

_TABLE: Final = re.compile(r"[a-zA-Z0-9_.-]{3,255}")
_MAX_RUN_ID_BYTES: Final = 900
_MAX_BATCH_BYTES: Final = 3_500_000
_MAX_CHECKPOINT_BYTES: Final = 390_000
_BUSY_SECONDS: Final = 30.0
"""How long an append tries to get its turn."""
_HOLE_SECONDS: Final = 5.0
"""How long a fetch waits for the rest of a transaction that it has seen in part."""
_KNOWN_HEADS: Final = 10_000
_LAST: Final = event_name(10**19 - 1)


class DynamoRunStore(RunStore):
    """Keeps runs in a table of DynamoDB."""

    authority: ClassVar[str] = "the run's head item, moved by a conditional write of the append"
    gaps_are_final: ClassVar[bool] = True
    max_batch: ClassVar[int] = 49  # a transaction has 100 items: the head, and two for each event
    max_event_bytes: ClassVar[int] = 350_000  # an item has 400 KB
    poll_seconds: ClassVar[float] = 0.25

    def __init__(
        self,
        table: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        late_seconds: float = 10.0,
    ) -> None:
        if not _TABLE.fullmatch(table):
            raise SettingsError("run store", table, "the name of a DynamoDB table")
        self._table = Table(table, region, endpoint)
        self._late = timedelta(seconds=late_seconds)
        self._heads: OrderedDict[str, Head] = OrderedDict()
        """Where we left runs: a guess that saves a question, and does no harm when it is wrong."""
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}
        self._calls: set[asyncio.Task[Any]] = set()

    @classmethod
    def from_url(cls, url: str) -> "DynamoRunStore":
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        unknown = options.keys() - {"region", "endpoint"}
        if unknown or parts.path not in {"", "/"}:
            raise SettingsError(
                "run store", url, "dynamodb://table, with ?region= and &endpoint= where needed"
            )
        return cls(parts.netloc, region=options.get("region"), endpoint=options.get("endpoint"))

    async def open(self) -> None:
        if not self._table.is_open:
            await self._table.open()

    async def close(self) -> None:
        if self._calls:
            await asyncio.wait(self._calls)
        await self._table.close()

    # Appending

    async def _append(self, run_id: str, documents: Sequence[Document]) -> list[AppendResult]:
        if not self._table.is_open:
            raise StoreNotOpen
        if len(run_id.encode()) > _MAX_RUN_ID_BYTES:
            raise EventRefused(f"a runId has at most {_MAX_RUN_ID_BYTES} bytes in DynamoDB")
        size = sum(len(document.body) for document in documents)
        if size > _MAX_BATCH_BYTES:
            raise EventRefused(
                f"the batch has {size} bytes, and a transaction of DynamoDB takes "
                f"{_MAX_BATCH_BYTES}: append it in smaller ones",
                run_id=run_id,
            )
        # It goes on when whoever asked has gone: a transaction can't be called back.
        call = asyncio.ensure_future(self._append_in_turn(run_id, documents))
        self._calls.add(call)
        call.add_done_callback(self._done)
        return await asyncio.shield(call)

    def _done(self, call: asyncio.Task[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # it was told to whoever waits; if nobody does, that is no news

    @asynccontextmanager
    async def _turn(self, run_id: str) -> AsyncIterator[None]:
        """Let appends of this process to one run go one after another: they would only collide."""
        lock, users = self._turns.get(run_id, (asyncio.Lock(), 0))
        self._turns[run_id] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._turns.pop(run_id)
            if users > 1:
                self._turns[run_id] = lock, users - 1

    async def _append_in_turn(
        self, run_id: str, documents: Sequence[Document]
    ) -> list[AppendResult]:
        async with self._turn(run_id):
            known: dict[str, int] = {}
            head = self._heads.get(run_id) or await self._head(run_id) or Head(run_id)
            until = time.monotonic() + _BUSY_SECONDS
            pause = 0.005
            while True:
                if head.deleted:
                    raise RunDeleted(run_id)
                new = {
                    document.idempotency_key: document
                    for document in reversed(documents)
                    if document.idempotency_key not in known
                }
                batch = list(reversed(new.values()))
                if not batch:
                    return _answers(documents, known, {})
                moved, refusals = await self._transact(head, batch)
                if refusals is None:
                    self._remember(moved)
                    numbers = {
                        document.idempotency_key: head.last_seq + place
                        for place, document in enumerate(batch, 1)
                    }
                    return _answers(documents, known, numbers)
                self._heads.pop(run_id, None)
                head, learned = _learn(head, refusals, batch, known)
                if not learned:
                    if time.monotonic() > until:
                        raise RunStoreUnavailable(
                            f"DynamoDB table {self._table.name}", f"run '{run_id}' is too busy"
                        )
                    await asyncio.sleep(pause * random.random())
                    pause = min(pause * 2, 0.5)

    async def _transact(
        self, head: Head, batch: Sequence[Document]
    ) -> tuple[Head, list[Refusal | None] | None]:
        """Try to move a head over a batch; gives where it would be, and what is in the way."""
        at = max(instant_text(datetime.now(UTC)), head.updated_at)
        status = head.status
        writes: list[dict[str, Any]] = []
        absent = {"ConditionExpression": "attribute_not_exists(#run)"}
        names = {"ExpressionAttributeNames": {"#run": "run"}}
        old = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
        for run_seq, document in enumerate(batch, head.last_seq + 1):
            status = status_after(status, document.event_type)
            event, key = event_items(document, run_seq, at)
            writes.append({"Put": {"Item": event, **absent, **names}})
            writes.append({"Put": {"Item": key, **absent, **names, **old}})
        moved = Head(
            head.run_id,
            status,
            head.last_seq + len(batch),
            head.created_at or at,
            at,
            deleted=False,
        )
        put: dict[str, Any] = {"Item": moved.item(), **old}
        if head.last_seq:
            put |= {
                "ConditionExpression": "lastSeq = :last AND deleted = :no",
                "ExpressionAttributeValues": {
                    ":last": {"N": str(head.last_seq)},
                    ":no": {"BOOL": False},
                },
            }
        else:
            put |= {**absent, **names}
        return moved, await self._table.transact([{"Put": put}, *writes])

    def _remember(self, head: Head) -> None:
        self._heads[head.run_id] = head
        self._heads.move_to_end(head.run_id)
        if len(self._heads) > _KNOWN_HEADS:
            self._heads.popitem(last=False)

    async def delete_run(self, run_id: str) -> bool:
        self._heads.pop(run_id, None)
        while (head := await self._head(run_id)) is not None and not head.deleted:
            at = max(instant_text(datetime.now(UTC)), head.updated_at)
            refusal = await self._table.change(
                "put_item",
                Item=head._replace(updated_at=at, deleted=True).item(),
                ConditionExpression="lastSeq = :last AND deleted = :no",
                ExpressionAttributeValues={
                    ":last": {"N": str(head.last_seq)},
                    ":no": {"BOOL": False},
                },
            )
            if refusal is None:
                await self._purge(run_id)
                return True
            await asyncio.sleep(0.01 * random.random())
        if head is not None:
            await self._purge(run_id)  # whoever deleted it may have died on the way
        return False

    async def _purge(self, run_id: str) -> None:
        left = await self._table.query(
            KeyConditionExpression="#run = :run",
            ProjectionExpression="#run, #item",
            ExpressionAttributeNames={"#run": "run", "#item": "item"},
            ExpressionAttributeValues={":run": {"S": run_id}},
            ConsistentRead=True,
        )
        await self._table.delete(item for item in left if item["item"]["S"] != HEAD)

    # Reading

    async def _head(self, run_id: str) -> Head | None:
        found = await self._table.get([key_of(run_id, HEAD)])
        return head_from(found[0]) if found else None

    async def fetch_events(
        self, run_id: str, after_seq: int = 0, limit: int = PAGE
    ) -> list[StoredEvent]:
        check_page(after_seq, limit)
        until = time.monotonic() + _HOLE_SECONDS
        while True:
            head, items = await asyncio.gather(
                self._head(run_id),
                self._table.query(
                    limit,
                    KeyConditionExpression="#run = :run AND #item BETWEEN :first AND :last",
                    ExpressionAttributeNames={"#run": "run", "#item": "item"},
                    ExpressionAttributeValues={
                        ":run": {"S": run_id},
                        ":first": {"S": event_name(after_seq + 1)},
                        ":last": {"S": _LAST},
                    },
                    ConsistentRead=True,
                ),
            )
            if head is None or head.deleted:
                return []
            events = [event_from(item) for item in items]
            numbers = enumerate((event[0] for event in events), after_seq + 1)
            hole = next((expected for expected, number in numbers if number != expected), None)
            if hole is None:
                return [stored_event(run_id, body, seq, at) for seq, at, body in events]
            if time.monotonic() > until:
                raise RunLogDamaged(run_id, f"event {hole}", "it is not in the table")
            await asyncio.sleep(0.02)

    async def find_run(self, run_id: str) -> RunInfo | None:
        head = await self._head(run_id)
        return None if head is None or head.deleted else head.info()

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
        # The index sorts by "created_at~run_id": a moment alone stands before all of its runs.
        first = "" if created_from is None else instant_text(created_from)
        last = "~" if created_before is None else instant_text(created_before)
        if after is not None:
            last = min(last, "~".join(parse_cursor(after)))
        request: dict[str, Any] = {
            "IndexName": BY_CREATION,
            "KeyConditionExpression": "#shard = :shard AND #created < :last",
            "ExpressionAttributeNames": {"#shard": "shard", "#created": "created"},
            "ScanIndexForward": False,
        }
        values: dict[str, Any] = {":last": {"S": last}}
        if status is not None:
            request["FilterExpression"] = "#status = :status"
            request["ExpressionAttributeNames"]["#status"] = "status"
            values[":status"] = {"S": status.value}
        shards = await asyncio.gather(
            *(
                self._table.query(
                    limit + 1,
                    **request,
                    ExpressionAttributeValues={**values, ":shard": {"S": shard}},
                )
                for shard in SHARDS
            )
        )
        heads = [head_from(item) for items in shards for item in items]
        heads.sort(key=lambda head: (head.created_at, head.run_id), reverse=True)
        heads = [head for head in heads if head.created_at >= first]
        runs = tuple(head.info() for head in heads[:limit])
        more = len(heads) > limit
        return RunPage(runs, cursor_of(runs[-1], heads[limit - 1].created_at) if more else None)

    async def changes(self, mark: str = "", limit: int = PAGE) -> Changes:
        check_limit(limit)
        window = ChangeWindow.parse(mark)
        horizon = instant_text(datetime.now(UTC) - self._late)
        shards = await asyncio.gather(
            *(
                self._table.query(
                    limit + len(window.seen) + 1,
                    IndexName=BY_CHANGE,
                    KeyConditionExpression="#shard = :shard AND #changed >= :since",
                    ExpressionAttributeNames={"#shard": "shard", "#changed": "changed"},
                    ExpressionAttributeValues={
                        ":shard": {"S": shard},
                        ":since": {"S": window.since or "0"},
                    },
                )
                for shard in SHARDS
            )
        )
        found = [[head_from(item) for item in items] for items in shards]
        ordered = merge(*found, key=lambda head: head.updated_at)
        new = [head for head in ordered if window.is_new(head)]
        if not new:
            return Changes((), mark)
        named = new[:limit]
        after = window.behind(named, horizon, is_cut=len(new) > limit)
        return Changes(tuple(head.info() for head in named), str(after))

    # Checkpoints

    async def save_checkpoints(self, checkpoints: Sequence[Checkpoint]) -> None:
        items = await self._table.get(
            [key_of(run_id, HEAD) for run_id in {each.run_id for each in checkpoints}]
        )
        heads = map(head_from, items)
        alive = {head.run_id for head in heads if not head.deleted}
        await asyncio.gather(
            *(self._save_checkpoint(each) for each in checkpoints if each.run_id in alive)
        )

    async def _save_checkpoint(self, checkpoint: Checkpoint) -> None:
        document = zstandard.compress(checkpoint_to_json(checkpoint))
        if len(document) > _MAX_CHECKPOINT_BYTES:
            # The log is the truth: without a checkpoint, snapshots only take longer.
            log.warning(
                "the checkpoint of run '%s' has %d bytes and DynamoDB takes %d: it is not kept",
                checkpoint.run_id,
                len(document),
                _MAX_CHECKPOINT_BYTES,
            )
            return
        while True:
            refusal = await self._table.change(
                "put_item",
                Item={
                    **key_of(checkpoint.run_id, CHECKPOINT),
                    "lastSeq": {"N": str(checkpoint.last_event_seq)},
                    "document": {"B": document},
                },
                ConditionExpression="attribute_not_exists(lastSeq) OR lastSeq <= :seq",
                ExpressionAttributeValues={":seq": {"N": str(checkpoint.last_event_seq)}},
            )
            if refusal is None or refusal.unmet:
                return
            await asyncio.sleep(0.05 * random.random())

    async def load_checkpoint(self, run_id: str) -> Checkpoint | None:
        items = await self._table.get([key_of(run_id, HEAD), key_of(run_id, CHECKPOINT)])
        found = {item["item"]["S"]: item for item in items}
        if HEAD not in found or CHECKPOINT not in found or head_from(found[HEAD]).deleted:
            return None
        document = found[CHECKPOINT]["document"]["B"]
        return checkpoint_from_json(run_id, zstandard.decompress(document))


def _answers(
    documents: Sequence[Document], known: dict[str, int], numbers: dict[str, int]
) -> list[AppendResult]:
    """Answer a batch: what was new is stored where it first came, and a duplicate elsewhere."""
    results = []
    for document in documents:
        key = document.idempotency_key
        if key in numbers:
            known[key] = numbers.pop(key)
            results.append(AppendResult.stored(known[key]))
        else:
            results.append(AppendResult.duplicate(known[key]))
    return results


def _learn(
    head: Head,
    refusals: Sequence[Refusal | None],
    batch: Sequence[Document],
    known: dict[str, int],
) -> tuple[Head, bool]:
    """Take from a cancelled transaction where the head is, and which keys are there already."""
    learned = False
    for place, document in enumerate(batch):
        refusal = refusals[2 + 2 * place]  # behind the head, an event and a key in turn
        if refusal is not None and refusal.unmet:
            known[document.idempotency_key] = int(refusal.found["seq"]["N"])
            learned = True
    moved = refusals[0]
    if moved is not None and moved.unmet:
        learned = True
        # None is there only where our guess was of a run that never was: begin at the beginning.
        head = head_from(moved.found) if moved.found else Head(head.run_id)
    return head, learned
