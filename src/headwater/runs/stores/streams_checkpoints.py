"""Checkpoints on a stream server: a stream for each run, of which what it says last counts.

A message holds a whole checkpoint, or only the pages of steps that changed since the message that
it builds `on`. One whose message is not the last that counts, since another projector wrote between
them, is skipped: a checkpoint may be older than it could be, and is never a mixture of two.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple
from uuid import uuid4

import msgspec

from headwater.client import AsyncStream
from headwater.errors import RunLogDamaged, StreamGone, StreamNotFound
from headwater.runs.checkpoint_pages import Pieces, join, split
from headwater.runs.store import Checkpoint
from headwater.runs.values import RunSnapshot

JSON: Final = "application/json"
MISSING: Final = (StreamNotFound, StreamGone)
_MAX_MESSAGES: Final = 100
_MAX_REMEMBERED: Final = 10_000


class _Written(NamedTuple):
    """What we wrote last of a run."""

    version: str
    snapshot: RunSnapshot
    messages: int
    """How many its stream has, as far as they are ours."""


class StreamCheckpoints:
    """Saves and loads them; `stream_of` names a stream by its kind and run."""

    def __init__(self, stream_of: Callable[[str, str], AsyncStream]) -> None:
        self._stream_of = stream_of
        self._written: OrderedDict[str, _Written] = OrderedDict()

    async def save(self, checkpoint: Checkpoint) -> None:
        """Keep one, unless it is older than the one kept or its run is gone."""
        run_id = checkpoint.run_id
        stream = self._stream_of("checkpoint", run_id)
        written = self._written.get(run_id)
        if written is not None and written.messages < _MAX_MESSAGES:
            if written.snapshot.last_event_seq > checkpoint.last_event_seq:
                return
            try:
                await self._add(stream, checkpoint, written)
            except MISSING:  # deleted with its run, or by another projector
                written = None
            else:
                return
        if not await self._stream_of("log", run_id).exists():
            self._written.pop(run_id, None)
            return
        if written is not None:
            newest = await self.load(run_id)
            if newest is not None and newest.last_event_seq > checkpoint.last_event_seq:
                return
            # A crash in between loses a checkpoint, and the projector starts from the log.
            with suppress(*MISSING):
                await stream.delete()
        await stream.create(JSON)
        await self._add(stream, checkpoint, None)

    async def _add(
        self, stream: AsyncStream, checkpoint: Checkpoint, before: _Written | None
    ) -> None:
        version = uuid4().hex
        pieces = split(checkpoint, None if before is None else before.snapshot)
        message = _message(pieces, version, None if before is None else before.version)
        # One that comes twice builds on what does not count any more, so it needs no producer.
        await stream.append_many([message], content_type=JSON)
        count = 1 if before is None else before.messages + 1
        self._written[checkpoint.run_id] = _Written(version, checkpoint.snapshot, count)
        self._written.move_to_end(checkpoint.run_id)
        if len(self._written) > _MAX_REMEMBERED:
            self._written.popitem(last=False)

    async def load(self, run_id: str) -> Checkpoint | None:
        """Give the one that counts."""
        reading = self._stream_of("checkpoint", run_id).read()
        try:
            messages = [message async for message in reading.items()]
        except MISSING:
            return None
        return newest_of(run_id, messages)


def _message(pieces: Pieces, version: str, on: str | None) -> bytes:
    pages = {str(number): msgspec.Raw(page) for number, page in pieces.pages.items()}
    head = msgspec.Raw(pieces.head)
    wire = {"version": version, "on": on, "head": head, "steps": pieces.steps, "pages": pages}
    return msgspec.json.encode(wire)


def newest_of(run_id: str, messages: Sequence[Any]) -> Checkpoint | None:
    """Say which checkpoint the messages of a stream come to; raises `RunLogDamaged`."""
    newest: dict[str, Any] | None = None
    last_event_seq = 0
    pages: dict[int, Any] = {}
    try:
        for message in messages:
            # One without a head is whole: an earlier version of ours wrote it.
            head = message.get("head", message)
            on = message.get("on")
            seq = head["snapshot"]["lastEventSeq"]
            if seq < last_event_seq or (on is not None and on != (newest or {}).get("version")):
                continue
            told = {int(number): page for number, page in message.get("pages", {}).items()}
            pages = told if on is None else pages | told
            newest, last_event_seq = message, seq
        if newest is None:
            return None
        ordered = [msgspec.json.encode(pages[number]) for number in sorted(pages)]
        head = msgspec.json.encode(newest.get("head", newest))
        return join(run_id, head, newest.get("steps", 0), ordered)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunLogDamaged(run_id, "the checkpoint", str(error)) from error
