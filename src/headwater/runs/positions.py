"""How far a projector has come over all runs of a store: where the next one goes on.

Without it a projector looks at every run once when it starts, which takes the longer the more runs
are stored. Everything before the mark is projected and kept, but for the runs that are named.
"""

import msgspec
from msgspec import Struct

from headwater.runs.store import RunStore


class Position(Struct, frozen=True):
    """Where a projector goes on."""

    mark: str = ""
    again: tuple[str, ...] = ()
    """Runs to look at in any case: those with an open gap, or whose log could not be read."""


async def load_position(store: RunStore) -> Position:
    """Give the position that was kept last, or the beginning."""
    try:
        return msgspec.json.decode(await store.load_position(), type=Position)
    except msgspec.MsgspecError:
        return Position()  # none was kept, or it can't be read: all runs are looked at


async def save_position(store: RunStore, position: Position) -> None:
    """Keep a position."""
    await store.save_position(msgspec.json.encode(position).decode())
