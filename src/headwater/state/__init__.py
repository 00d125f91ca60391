"""State over streams: change events, materialised state, schemas, a live local database.

`events` and `checking` are the protocol's messages and rules, `decoding` the quick way through
whole batches, `fold` what a database makes of them, `backend` where it keeps it, `flow` how queries
stay up to date. None of them does I/O; `StreamDB` and `AsyncStreamDB` read a stream for them.
"""

from headwater.state.aggregates import average, count, largest, smallest, sum_of
from headwater.state.async_database import AsyncStreamDB
from headwater.state.backend import Backend, Quarantined
from headwater.state.checking import Violation, check
from headwater.state.collections import Change, Collection
from headwater.state.conditions import Condition, field
from headwater.state.database import PastState, StreamDB
from headwater.state.engine import Hooks, Progress, Status
from headwater.state.events import (
    ChangeEvent,
    ChangeHeaders,
    ControlEvent,
    ControlHeaders,
    StateEvent,
    change,
    control,
    encode_events,
    is_change_event,
    is_control_event,
)
from headwater.state.flow import KEY
from headwater.state.fold import Notice
from headwater.state.materialized import MaterializedState
from headwater.state.memory import MemoryBackend
from headwater.state.queries import LiveQuery, Query
from headwater.state.schemas import (
    DROP,
    CollectionDef,
    StreamState,
    collection,
    define_stream_state,
    new_epoch,
)
from headwater.state.snapshots import Snapshot, begin_from_snapshot, find_snapshots
from headwater.state.sqlite import SqliteBackend
from headwater.state.validators import Validator, validator_for

__all__ = [
    "DROP",
    "KEY",
    "AsyncStreamDB",
    "Backend",
    "Change",
    "ChangeEvent",
    "ChangeHeaders",
    "Collection",
    "CollectionDef",
    "Condition",
    "ControlEvent",
    "ControlHeaders",
    "Hooks",
    "LiveQuery",
    "MaterializedState",
    "MemoryBackend",
    "Notice",
    "PastState",
    "Progress",
    "Quarantined",
    "Query",
    "Snapshot",
    "SqliteBackend",
    "StateEvent",
    "Status",
    "StreamDB",
    "StreamState",
    "Validator",
    "Violation",
    "average",
    "begin_from_snapshot",
    "change",
    "check",
    "collection",
    "control",
    "count",
    "define_stream_state",
    "encode_events",
    "field",
    "find_snapshots",
    "is_change_event",
    "is_control_event",
    "largest",
    "new_epoch",
    "smallest",
    "sum_of",
    "validator_for",
]
