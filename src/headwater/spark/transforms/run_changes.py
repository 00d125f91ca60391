"""From rows of runs and steps to the change events that tell of them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import Raw

from headwater.runs.values import snapshot_to_wire
from headwater.spark.transforms.run_tables import MESSAGES_ARROW
from headwater.spark.transforms.runs import state_from_json


def run_messages(runs: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write runs as changes of type `run`; their steps are changes of their own."""
    for batch in runs:
        rows = []
        for row in batch.select(["run_id", "_batch", "_first_batch", "_state"]).to_pylist():
            snapshot = state_from_json(row["run_id"], row["_state"]).snapshot
            wire = snapshot_to_wire(snapshot)
            del wire["steps"]
            value = _change("run", snapshot.run_id, msgspec.json.encode(wire), row)
            rows.append({"run_id": snapshot.run_id, "position": -1, "value": value})
        yield from pa.Table.from_pylist(rows, MESSAGES_ARROW).to_batches()


def step_messages(steps: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write steps as changes of type `step`."""
    columns = ["run_id", "step_id", "position", "_batch", "_first_batch", "_value"]
    for batch in steps:
        rows = []
        for row in batch.select(columns).to_pylist():
            key = step_key(row["run_id"], row["step_id"])
            value = _change("step", key, row["_value"].encode(), row)
            rows.append({"run_id": row["run_id"], "position": row["position"], "value": value})
        yield from pa.Table.from_pylist(rows, MESSAGES_ARROW).to_batches()


def step_key(run_id: str, step_id: str) -> str:
    """Name a step among those of all runs: as a JSON array, since ids may hold anything else."""
    return msgspec.json.encode([run_id, step_id]).decode()


def _change(kind: str, key: str, value: bytes, row: Mapping[str, Any]) -> str:
    operation = "insert" if row["_first_batch"] == row["_batch"] else "update"
    event = {
        "type": kind,
        "key": key,
        "value": Raw(value),
        "headers": {"operation": operation},
    }
    return msgspec.json.encode(event).decode()
