"""The sentence that ends a pipeline: what happened, and what to do next where that helps."""

import os
import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from headwater.cli.targets import DEFAULT_URL
from headwater.cli.values import counted

if TYPE_CHECKING:
    from headwater.spark.jobs.publish import Published
    from headwater.spark.jobs.restore import Restored
    from headwater.spark.jobs.snapshot import Snapshotted
    from headwater.spark.pipelines import Outcome

_BEFORE: Final = ", all of which were there before"


def summary(outcome: "Outcome") -> str:
    """Tell how a pipeline has ended."""
    took = f"in {outcome.seconds:.1f} s"
    if outcome.summary is not None:
        return f"{outcome.name} is done: {_JOBS[outcome.kind](outcome.summary, outcome, took)}"
    if outcome.how == "stopped" and outcome.reason is not None:
        return f"{outcome.name} is stopped: {outcome.reason}"
    if outcome.is_job:
        return f"{outcome.name} is {outcome.how}: {_there(outcome)} {took}."
    return f"{outcome.name} is {outcome.how}: {_batches(outcome, took)}"


def _batches(outcome: "Outcome", took: str) -> str:
    """Tell what a streaming query has done."""
    from headwater.spark.pipelines.progress import lasting, sized

    figures = outcome.figures
    if figures.batches == 0:
        nothing = "there was nothing to do" if outcome.how == "done" else "no batch was done"
        return f"{nothing} {took}."
    lag = f"{sized(figures.lag_bytes)} to do" if figures.lag_bytes else "up to date"
    if figures.batch_lag_seconds is not None:
        behind = lasting(figures.batch_lag_seconds)
        lag += f"; the last events were in the tables {behind} after they were persisted"
    batches = "1 batch" if figures.batches == 1 else f"{figures.batches:,} batches"
    return (
        f"{counted(figures.rows, 'rows')}, {sized(figures.bytes)} in {batches} up to number "
        f"{figures.batch}, {outcome.seconds:.1f} s; {lag}.{_aside(outcome)}"
    )


def _aside(outcome: "Outcome") -> str:
    count = outcome.figures.aside
    if not count:
        return ""
    messages = f"{counted(count, 'messages')} {'was' if count == 1 else 'were'} kept aside"
    return f" {messages}: the table {outcome.place}/_quarantine says why."


def _snapshotted(done: "Snapshotted", outcome: "Outcome", took: str) -> str:
    from headwater.spark.pipelines.progress import sized

    entities = "1 entity" if done.entities == 1 else counted(done.entities, "entities")
    if done.appended == 0:
        what = f"'{done.target}' has the {entities} of '{done.source}' already, and nothing was "
        what += f"written {took}"
    else:
        are = "is" if done.entities == 1 else "are"
        what = f"{entities} of '{done.source}' {are} in '{done.target}': "
        what += f"{sized(done.appended)} were written {took}"
        what += ", behind what an earlier run had left" if done.resumed else ""
    url = ("--url", outcome.url) if outcome.url != _usual_url() else ()
    words = ("headwater", "state", "show", done.source, "--snapshot", done.target, *url)
    readers = f"Readers go on in '{done.source}' from offset {done.offset}"
    return f"{what}. {readers}: {shlex.join(words)}"


def _usual_url() -> str:
    """Give the server that a command asks where none is typed."""
    return os.environ.get("HEADWATER_URL") or DEFAULT_URL


def _published(done: "Published", outcome: "Outcome", took: str) -> str:
    ends = f"It ends at offset {done.offset}."
    if done.txid is None:
        what = f"'{outcome.place}' has everything already, and nothing was appended"
        return f"{what} {took}. {ends}"
    counts = {"inserts": done.inserts, "updates": done.updates, "deletes": done.deletes}
    told = [counted(number, unit) for unit, number in counts.items() if number]
    changes = " and ".join(filter(None, (", ".join(told[:-1]), told[-1])))
    were = "was" if sum(counts.values()) == 1 else "were"
    appended = f"{changes} {were} appended to '{outcome.place}' {took}"
    return f"{appended}, as transaction {done.txid}. {ends}"


def _restored(done: "Restored", outcome: "Outcome", took: str) -> str:
    from headwater.client.values import holds_json
    from headwater.spark.pipelines.progress import sized

    are_messages = all(holds_json(each.content_type) for each in done.streams)
    size = counted(done.messages, "messages" if are_messages else "pieces")
    size += f", {sized(done.bytes)}"
    appended = sum(each.appended for each in done.streams)
    if appended < done.bytes:
        size += f", of which {sized(appended)} were missing" if appended else _BEFORE
    if len(done.streams) != 1:
        streams = counted(len(done.streams), "streams")
        return f"{streams} of {outcome.place} are back {took}: {size}."
    (one,) = done.streams
    closed = " and is closed" if one.closed else ""
    return f"'{one.path}' is back {took}: {size}. It ends at offset {one.offset}{closed}."


_JOBS: Final[Mapping[str, Callable[[Any, "Outcome", str], str]]] = {
    "snapshot": _snapshotted,
    "publish": _published,
    "restore": _restored,
}
"""By kind, what makes a sentence of what the job has told."""


def _there(outcome: "Outcome") -> str:
    """Tell how much of a job's work is in its streams, which the next run goes on with."""
    from headwater.spark.pipelines.progress import sized

    figures = outcome.figures
    if outcome.total_rows is not None:
        return f"{figures.rows:,} of {outcome.total_rows:,} changes are there"
    if outcome.total_bytes is not None:
        return f"{sized(figures.bytes)} of {sized(outcome.total_bytes)} are there"
    return f"{sized(figures.bytes)} were written" if figures.bytes else "nothing was written"
