"""Checkpoints on a stream server: which one the messages of two projectors come to."""

import asyncio
import uuid

import pytest

from headwater.client import Client
from headwater.errors import RunLogDamaged
from headwater.runs.reducer import Fold
from headwater.runs.store import Checkpoint, checkpoint_to_json
from headwater.runs.stores.streams import StreamRunStore
from headwater.runs.stores.streams_checkpoints import newest_of
from tests.suites.run_steps import all_events, append, step_started
from tests.support.server import ServerProcess

STEPS = 130
"""More than the messages after which a stream of checkpoints is begun anew."""


def test_a_checkpoint_is_never_a_mixture_of_two_projectors() -> None:
    async def scenario(url: str) -> None:
        root = f"runs-{uuid.uuid4()}"
        async with StreamRunStore(url, root) as one, StreamRunStore(url, root) as other:
            await append(one, *(step_started(f"step-{number}") for number in range(STEPS)))
            log = await all_events(one)
            snapshots = []
            fold = Fold("run-001")
            for event in log:
                fold.apply(event)
                snapshots.append(fold.snapshot())
            for turn, snapshot in enumerate(snapshots):
                store = (one, other)[turn // 7 % 2]
                await store.save_checkpoints([Checkpoint(snapshot, snapshot.last_event_seq)])
                kept = await one.load_checkpoint("run-001")
                assert kept is not None
                assert kept.snapshot == snapshots[kept.last_event_seq - 1]
                assert kept.last_event_seq <= turn + 1
            # Whoever writes alone from now on is heard at the latest with a new beginning.
            last = Checkpoint(snapshots[-1], STEPS)
            for _ in range(101):
                await one.save_checkpoints([last])
            assert await other.load_checkpoint("run-001") == last

    with ServerProcess() as server:
        asyncio.run(scenario(server.url))


def test_what_is_kept_of_a_step_does_not_grow_with_the_run() -> None:
    async def scenario(url: str) -> int:
        async with StreamRunStore(url, "small") as store:
            await append(store, *(step_started(f"step-{number}") for number in range(STEPS)))
            fold = Fold("run-001")
            for event in await all_events(store):
                fold.apply(event)
                if event.run_seq > STEPS - 20:
                    await store.save_checkpoints([Checkpoint(fold.snapshot(), event.run_seq)])
        return len(checkpoint_to_json(Checkpoint(fold.snapshot(), STEPS)))

    with ServerProcess() as server:
        whole = asyncio.run(scenario(server.url))
        with Client(server.url) as client:
            written = sum(
                len(batch.data) for batch in client.stream("small/checkpoint/run-001").read()
            )
    assert written < 8 * whole  # and not 20 times


@pytest.mark.parametrize("message", [[], {}, {"head": 1}, {"head": {"snapshot": {}}}])
def test_a_message_that_is_none_is_told(message: object) -> None:
    with pytest.raises(RunLogDamaged):
        newest_of("run-001", [message])
