"""Reports on pipelines: what `status` prints, and the sentence that ends a run."""

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from headwater.cli._io import counted
from headwater.cli._progress import Progress
from headwater.protocol.paths import DEFAULT_URL

if TYPE_CHECKING:
    from headwater.spark.jobs.publish import Published
    from headwater.spark.jobs.restore import Restored
    from headwater.spark.jobs.snapshot import Snapshotted
    from headwater.spark.pipelines import Outcome, Status
    from headwater.spark.pipelines.checkpoints import Committed

_MOST_STREAMS = 20


def print_statuses(
    files: Sequence[Path],
    checkpoints: Sequence[Path],
    *,
    url: str | None,
    token: str | None,
    as_json: bool,
) -> bool:
    """Print the status of each pipeline; return whether all of them could be determined."""
    from headwater.errors import HeadwaterError
    from headwater.spark.pipelines import status_of_checkpoint

    progress = Progress()
    is_whole = True
    queries: list[tuple[Path, Callable[[], Status]]] = [
        (file, partial(_status_of_file, file)) for file in files
    ]
    queries += [
        (folder, partial(status_of_checkpoint, folder.resolve(), url=url, token=token))
        for folder in checkpoints
    ]
    for place, query in queries:
        progress.show(f"Reading the status of {place} …")
        try:
            status = query()
        except HeadwaterError as error:
            progress.clear()
            click.echo(f"Error: {error}", err=True)
            is_whole = False
            continue
        progress.clear()
        _print(status, as_json=as_json)
        is_whole = is_whole and not status.unanswered
    return is_whole


def _status_of_file(file: Path) -> "Status":
    from headwater.spark.pipelines import load, status_of

    return status_of(load(file))


def _print(status: "Status", *, as_json: bool) -> None:
    import msgspec

    if as_json:
        click.echo(msgspec.json.encode(_plain(status)).decode())
        return
    for line in _lines(status):
        click.echo(line)


def _lines(status: "Status") -> list[str]:
    from headwater.spark.pipelines.progress import sized

    runs = f"runs in process {status.runs_in}" if status.runs_in else "is not running"
    if not status.is_local:
        runs = "may be running"  # its lock is on another machine
    lines = [f"{status.name} ({status.kind}) {runs}."]
    if status.known:
        lines.append(f"  {status.known}")
    elif not status.checkpoint:
        pass  # it has no checkpoint: all of its state is on the server
    elif not status.is_local:
        where = "at the Connect server" if status.is_remote else "on another machine"
        lines.append(f"  checkpoint {status.checkpoint} is {where}: its progress is not known")
    elif status.committed is None:
        lines.append(f"  no batch is committed; checkpoint {status.checkpoint}")
    else:
        next_batch = ", the next has started" if status.committed.is_next_begun else ""
        lines.append(
            f"  batch {status.committed.batch} is committed, started {_ago(status.age or 0)} ago"
            f"{next_batch}; checkpoint {status.checkpoint}"
        )
    if status.unanswered:
        lines.append(f"  the remaining work is not known: {status.unanswered}")
        lines += _positions(status.committed)
    if status.streams:
        count = counted(len(status.streams), "streams")
        lag = sized(status.lag_bytes) if status.lag_bytes else "nothing"
        lines.append(f"  {count}, {lag} to do")
    by_lag = sorted(status.streams, key=lambda stream: (-stream.bytes, stream.path))
    for stream in by_lag[:_MOST_STREAMS]:
        closed = ", closed" if stream.closed else ""
        lines.append(
            f"    {stream.path}  {sized(stream.bytes)}"
            f" from {stream.offset} to {stream.tail}{closed}"
        )
    lines += _more(len(by_lag))
    lines += [f"    {path}  no longer exists on the server" for path in status.gone]
    return lines


def _positions(committed: "Committed | None") -> list[str]:
    """List where the streams continue, according to the checkpoint."""
    offsets = {} if committed is None else committed.offsets
    paths = sorted(offsets)[:_MOST_STREAMS]
    return [f"    {path}  continues from {offsets[path]}" for path in paths] + _more(len(offsets))


def _more(streams: int) -> list[str]:
    more = streams - _MOST_STREAMS
    return [f"    and {more} more, see --json"] if more > 0 else []


def _ago(seconds: float) -> str:
    for unit, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= unit:
            return counted(int(seconds // unit), name)
    return counted(int(seconds), "seconds")


def _plain(status: "Status") -> dict[str, Any]:
    committed = status.committed
    return {
        "name": status.name,
        "kind": status.kind,
        "checkpoint": status.checkpoint,
        "process": status.runs_in,
        "batch": None if committed is None else committed.batch,
        "secondsSince": status.age,
        "lagBytes": status.lag_bytes if _is_lag_known(status) else None,
        "streams": _streams(status),
        "gone": list(status.gone),
        "unanswered": status.unanswered or None,
    }


def _is_lag_known(status: "Status") -> bool:
    return not status.unanswered and (status.is_local or bool(status.streams))


def _streams(status: "Status") -> list[dict[str, Any]]:
    if status.unanswered and status.committed is not None:
        unknown = {"tail": None, "lagBytes": None, "closed": None}
        offsets = sorted(status.committed.offsets.items())
        return [{"path": path, "offset": offset, **unknown} for path, offset in offsets]
    return [
        {
            "path": stream.path,
            "offset": stream.offset,
            "tail": stream.tail,
            "lagBytes": stream.bytes,
            "closed": stream.closed,
        }
        for stream in status.streams
    ]


# --- The closing sentence

_ALL_EXISTED: Final = ", all of which existed already"


def summary(outcome: "Outcome") -> str:
    """Return the sentence that reports how a pipeline has ended."""
    took = f"in {outcome.seconds:.1f} s"
    if outcome.summary is not None:
        return f"{outcome.name} is done: {_JOBS[outcome.kind](outcome.summary, outcome, took)}"
    if outcome.how == "stopped" and outcome.reason is not None:
        return f"{outcome.name} is stopped: {outcome.reason}"
    if outcome.is_job:
        return f"{outcome.name} is {outcome.how}: {_job_progress(outcome)} {took}."
    return f"{outcome.name} is {outcome.how}: {_batches(outcome, took)}"


def _batches(outcome: "Outcome", took: str) -> str:
    """Report what a streaming query has done."""
    from headwater.spark.pipelines.progress import lasting, sized

    metrics = outcome.figures
    if metrics.batches == 0:
        nothing = "there was nothing to do" if outcome.how == "done" else "no batch was done"
        return f"{nothing} {took}."
    lag = f"{sized(metrics.lag_bytes)} to do" if metrics.lag_bytes else "up to date"
    if metrics.batch_lag_seconds is not None:
        delay = lasting(metrics.batch_lag_seconds)
        lag += f"; the last events were in the tables {delay} after they were persisted"
    batches = counted(metrics.batches, "batches", "batch")
    return (
        f"{counted(metrics.rows, 'rows')}, {sized(metrics.bytes)} in {batches} up to number "
        f"{metrics.batch}, {outcome.seconds:.1f} s; {lag}.{_quarantined(outcome)}"
    )


def _quarantined(outcome: "Outcome") -> str:
    count = outcome.figures.aside
    if not count:
        return ""
    messages = f"{counted(count, 'messages')} {'was' if count == 1 else 'were'} quarantined"
    return f" {messages}: the reasons are in the table {outcome.place}/_quarantine."


def _snapshotted(done: "Snapshotted", outcome: "Outcome", took: str) -> str:
    from headwater.spark.pipelines.progress import sized

    entities = counted(done.entities, "entities", "entity")
    if done.appended == 0:
        what = f"'{done.target}' already has the {entities} of '{done.source}', and nothing was "
        what += f"written {took}"
    else:
        are = "is" if done.entities == 1 else "are"
        what = f"{entities} of '{done.source}' {are} in '{done.target}': "
        what += f"{sized(done.appended)} were written {took}"
        what += ", after those that an earlier run had written" if done.resumed else ""
    url = ("--url", outcome.url) if outcome.url != _default_url() else ()
    words = ("headwater", "state", "show", done.source, "--snapshot", done.target, *url)
    readers = f"Readers continue in '{done.source}' from offset {done.offset}"
    return f"{what}. {readers}: {shlex.join(words)}"


def _default_url() -> str:
    """Return the server that a command uses without --url."""
    return os.environ.get("HEADWATER_URL") or DEFAULT_URL


def _published(done: "Published", outcome: "Outcome", took: str) -> str:
    ends = f"It ends at offset {done.offset}."
    if done.txid is None:
        what = f"'{outcome.place}' is up to date, and nothing was appended"
        return f"{what} {took}. {ends}"
    counts = {"inserts": done.inserts, "updates": done.updates, "deletes": done.deletes}
    parts = [counted(number, unit) for unit, number in counts.items() if number]
    changes = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
    were = "was" if sum(counts.values()) == 1 else "were"
    appended = f"{changes} {were} appended to '{outcome.place}' {took}"
    return f"{appended}, as transaction {done.txid}. {ends}"


def _restored(done: "Restored", outcome: "Outcome", took: str) -> str:
    from headwater.protocol.content_types import holds_json
    from headwater.spark.pipelines.progress import sized

    are_messages = all(holds_json(each.content_type) for each in done.streams)
    size = counted(done.messages, "messages" if are_messages else "pieces")
    size += f", {sized(done.bytes)}"
    appended = sum(each.appended for each in done.streams)
    if appended < done.bytes:
        size += f", of which {sized(appended)} were missing" if appended else _ALL_EXISTED
    if len(done.streams) != 1:
        streams = counted(len(done.streams), "streams")
        return f"{streams} of {outcome.place} were restored {took}: {size}."
    (one,) = done.streams
    closed = " and is closed" if one.closed else ""
    return f"'{one.path}' was restored {took}: {size}. It ends at offset {one.offset}{closed}."


_JOBS: Final[Mapping[str, Callable[[Any, "Outcome", str], str]]] = {
    "snapshot": _snapshotted,
    "publish": _published,
    "restore": _restored,
}
"""By kind of job, the function that formats its result."""


def _job_progress(outcome: "Outcome") -> str:
    """Report which part of a job is done; the next run continues after it."""
    from headwater.spark.pipelines.progress import sized

    metrics = outcome.figures
    if outcome.total_rows is not None:
        return f"{metrics.rows:,} of {outcome.total_rows:,} changes were appended"
    if outcome.total_bytes is not None:
        return f"{sized(metrics.bytes)} of {sized(outcome.total_bytes)} were written"
    return f"{sized(metrics.bytes)} were written" if metrics.bytes else "nothing was written"
