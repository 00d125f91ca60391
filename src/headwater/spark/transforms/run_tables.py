"""The columns of the tables of runs and steps, and of the change events made of them."""

from typing import Final

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, StructType


def _columns(*columns: tuple[str, str | DataType]) -> StructType:
    schema = StructType()
    for name, kind in columns:
        schema.add(name, kind)
    return schema


_ARTIFACTS: Final = ArrayType(
    _columns(
        ("uri", "string"),
        ("kind", "string"),
        ("sha256", "string"),
        ("size_bytes", "long"),
        ("expires_at", "timestamp"),
    )
)
_ERROR: Final = _columns(("code", "string"), ("message", "string"), ("retryable", "boolean"))
_SIGNALS: Final = ArrayType(
    _columns(
        ("accepted", "boolean"),
        ("decided_at", "timestamp"),
        ("signal_id", "string"),
        ("reason", "string"),
    )
)

RUNS: Final = _columns(
    ("run_id", "string"),
    ("status", "string"),
    ("last_event_seq", "long"),
    ("contiguous_seq", "long"),
    ("health", "string"),
    ("started_at", "timestamp"),
    ("completed_at", "timestamp"),
    ("total_duration_ms", "long"),
    ("step_count", "integer"),
    ("failed_steps", "integer"),
    ("artifacts", _ARTIFACTS),
    ("error", _ERROR),
    ("signals", _SIGNALS),
    ("engine_run_ref", "string"),
    ("skipped_events", "long"),
    ("persisted_at", "timestamp"),
    ("projected_at", "timestamp"),
    ("_batch", "string"),
    ("_first_batch", "string"),
    ("_state", "string"),
)
"""A row for each run; `_batch` names the batch that has changed it last, `_first_batch` the one
that has brought it, and `_state` is its projection."""

STEPS: Final = _columns(
    ("run_id", "string"),
    ("step_id", "string"),
    ("position", "integer"),
    ("status", "string"),
    ("logical_attempt_id", "integer"),
    ("engine_attempt_id", "integer"),
    ("started_at", "timestamp"),
    ("completed_at", "timestamp"),
    ("artifacts", _ARTIFACTS),
    ("error", _ERROR),
    ("skipped", _columns(("reason", "string"), ("reason_code", "string"))),
    ("_batch", "string"),
    ("_first_batch", "string"),
    ("_value", "string"),
)
"""A row for each step, in its highest attempt; `_value` is it as the contract spells it."""

MESSAGES: Final = _columns(("run_id", "string"), ("position", "integer"), ("value", "string"))
"""Change events, each beside what gives it its place."""

RUNS_ARROW: Final = to_arrow_schema(RUNS, timezone="UTC")
STEPS_ARROW: Final = to_arrow_schema(STEPS, timezone="UTC")
MESSAGES_ARROW: Final = to_arrow_schema(MESSAGES, timezone="UTC")
