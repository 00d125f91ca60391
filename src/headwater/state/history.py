"""The state as of an earlier offset, from the stream itself, without I/O.

Offsets are the server's, and a server may answer with more than was asked for: a batch that ends
behind the offset. Then only counting tells how much of it lies before: what was read from the
batch's start, less what was read from the offset, up to an offset where both have been.
"""

from collections.abc import Generator

import msgspec

from headwater.client import Batch, Position
from headwater.errors import StateError
from headwater.state.backend import BEGINNING, Backend
from headwater.state.fold import Fold, Incoming
from headwater.state.memory import MemoryBackend
from headwater.state.schemas import StreamState

Reads = Generator[str, Batch]

_MOST_READS = 1000


def as_of(position: str, state: StreamState | None) -> Generator[str, Batch, Backend]:
    """Build the state before a position: yields offsets to read one batch at, returns the rows."""
    target = Position.parse(position)
    backend = MemoryBackend()
    fold = Fold(backend.load(), state)
    if target.offset == BEGINNING and not target.skip:
        _commit(fold, backend)
        return backend
    at = BEGINNING
    while target.offset != BEGINNING:
        batch = yield at
        if target.offset != "now" and batch.next_offset > target.offset:
            yield from _take_part(fold, batch, target)
            _commit(fold, backend)
            return backend
        fold.take(_incoming(batch))
        at = batch.next_offset
        if batch.next_offset == target.offset:
            break
        if batch.up_to_date:
            if target.offset == "now":
                _commit(fold, backend)
                return backend
            raise StateError(f"The stream ends at {batch.next_offset}, before {position}.")
    if target.skip:
        batch = yield at
        yield from _take_items(fold, [batch], target.skip)
    _commit(fold, backend)
    return backend


def _take_part(fold: Fold, spanning: Batch, target: Position) -> Generator[str, Batch, None]:
    """Take of a batch what lies before an offset within it."""
    ahead = {spanning.next_offset: len(spanning.raw_items())}
    behind = {target.offset: 0}
    batches = [spanning]
    first, second = spanning.next_offset, target.offset
    for _ in range(_MOST_READS):
        common = ahead.keys() & behind.keys()
        if common:
            met = common.pop()
            count = ahead[met] - behind[met]
            yield from _take_items(fold, batches, count + target.skip)
            return
        # Whoever is behind reads on; a stream that grows meanwhile only makes it take longer.
        if second < first:
            batch = yield second
            behind[batch.next_offset] = behind[second] + len(batch.raw_items())
            second = batch.next_offset
        else:
            batch = yield first
            batches.append(batch)
            ahead[batch.next_offset] = ahead[first] + len(batch.raw_items())
            first = batch.next_offset
    raise StateError(f"The offset {target} could not be found: the stream grows too fast.")


def _take_items(fold: Fold, batches: list[Batch], count: int) -> Generator[str, Batch, None]:
    """Take so many messages, of these batches first, then of those behind them."""
    batch = batches[0]
    number = 0
    while True:
        items = batch.raw_items()
        data = b"[" + b",".join(map(bytes, items[:count])) + b"]"
        fold.take(Incoming(data, batch.start, batch.next_offset, batch.up_to_date, batch.skipped))
        count -= min(count, len(items))
        if not count:
            return
        if batch.up_to_date:
            raise StateError("The stream ends before that position.")
        number += 1
        batch = batches[number] if number < len(batches) else (yield batch.next_offset)


def _incoming(batch: Batch) -> Incoming:
    return Incoming(batch.data, batch.start, batch.next_offset, batch.up_to_date, batch.skipped)


def _commit(fold: Fold, backend: Backend) -> None:
    work = fold.work()
    work.saved = msgspec.structs.replace(work.saved, complete=True)
    backend.commit(work)
