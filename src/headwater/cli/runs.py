"""`headwater runs`: the logs of workflow runs, and the snapshots of their state."""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import click

from headwater.cli._io import OrderedGroup, connected, counted, server_target, url_option
from headwater.cli._progress import Progress

_BATCH = 500


@click.group(cls=OrderedGroup)
def runs() -> None:
    """List, show, follow, append to and verify workflow runs."""


@runs.command("list")
@click.option("--status", help="Only runs with this status, such as RUNNING.")
@click.option(
    "--created-from",
    metavar="TIME",
    help="Only runs created at or after TIME, such as 2026-02-11T10:00Z.",
)
@click.option("--created-before", metavar="TIME", help="Only runs created before TIME.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Maximum number of runs.",
)
@url_option
def list_(
    status: str | None,
    created_from: str | None,
    created_before: str | None,
    limit: int,
    url: str,
) -> None:
    """List runs, newest first."""
    from headwater.runs import calls

    count = 0
    after: str | None = None
    progress = Progress(enabled=not sys.stdout.isatty())
    with connected(server_target(url), progress) as client:
        while True:
            page = client.run(
                calls.page(
                    url,
                    status=status.upper() if status else None,
                    createdFrom=created_from,
                    createdBefore=created_before,
                    after=after,
                    limit=str(min(limit - count, 1000)),
                )
            )
            for info in page.runs:
                began = info.created_at.strftime("%Y-%m-%d %H:%M:%S")
                events = counted(info.last_event_seq, "events")
                click.echo(f"{info.run_id}  {info.status}  {began}  {events}")
            count += len(page.runs)
            progress.show(f"{counted(count, 'runs')} listed")
            after = page.next
            if after is None or count >= limit:
                break
    more = "; there are more, see --limit" if after is not None else ""
    click.echo(f"{counted(count, 'runs')}{more}.", err=True)


@runs.command()
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Print the snapshot as one JSON object.")
@click.option(
    "--replay", is_flag=True, help="Replay the whole log instead of using the stored snapshot."
)
@url_option
def show(run: str, as_json: bool, replay: bool, url: str) -> None:
    """Show a run with its steps as a tree."""
    import msgspec

    from headwater.runs import calls
    from headwater.runs.drawing import draw
    from headwater.runs.values import snapshot_to_wire

    with connected(server_target(url, run)) as client:
        snapshot = client.run(calls.snapshot(url, run, replayed=replay))
    if as_json:
        click.echo(msgspec.json.encode(snapshot_to_wire(snapshot)).decode())
        return
    for line in draw(snapshot, datetime.now(UTC)):
        click.echo(line)


@runs.command()
@click.argument("run")
@click.option("--after", type=click.IntRange(0), default=0, help="Start after this runSeq.")
@click.option("--json", "as_json", is_flag=True, help="Print each event as JSON.")
@url_option
def follow(run: str, after: int, as_json: bool, url: str) -> None:
    """Print the events of a run as they arrive, until the run has ended or Ctrl-C."""
    import msgspec

    from headwater.runs.events import event_to_wire
    from headwater.runs.reducer import Fold
    from headwater.runs.tailing import follow as tail
    from headwater.runs.values import TERMINAL

    fold = Fold(run)
    last = after
    try:
        with connected(server_target(url, run), Progress(enabled=False)) as client:
            for event in tail(client, run, 0):
                fold.apply(event)
                if event.run_seq > after:
                    last = event.run_seq
                    if as_json:
                        click.echo(msgspec.json.encode(event_to_wire(event)))
                    else:
                        about = f"  {event.step_id}" if event.step_id else ""
                        at = f"{event.persisted_at:%H:%M:%S}"
                        click.echo(f"{event.run_seq}  {at}  {event.event_type}{about}")
                if fold.run.status in TERMINAL:
                    click.echo(f"Run {run} is {fold.run.status}.", err=True)
                    return
    except KeyboardInterrupt:
        click.echo(f"Continue with: headwater runs follow {run} --after {last}", err=True)


@runs.command()
@click.argument("run")
@click.argument("event_type", metavar="TYPE")
@click.argument("data", required=False)
@click.option("--plan-version", default="1", show_default=True, help="Part of the event's key.")
@click.option("--step", help="Step that the event belongs to.")
@click.option("--attempt", type=click.IntRange(1), help="Attempt of the step.")
@click.option("--signal", help="Signal that caused the event.")
@url_option
def append(
    run: str,
    event_type: str,
    data: str | None,
    plan_version: str,
    step: str | None,
    attempt: int | None,
    signal: str | None,
    url: str,
) -> None:
    """Append an event of type TYPE with DATA as JSON; with - as TYPE, events from standard input.

    Each line of standard input is one event of the State Store Contract as JSON. Appending the same
    event again has no effect.
    """
    from headwater.errors import HeadwaterError
    from headwater.runs import calls, new_event
    from headwater.runs.events import new_event_from_wire

    written = known = 0
    progress = Progress()
    with connected(server_target(url, run), progress) as client:
        try:
            if event_type == "-":
                batches: Any = (
                    [new_event_from_wire({"runId": run, **wire}) for wire in batch]
                    for batch in _lines()
                )
            else:
                event = new_event(
                    run,
                    event_type,
                    _json(data),
                    plan_version=plan_version,
                    step_id=step,
                    logical_attempt_id=attempt,
                    caused_by_signal_id=signal,
                )
                batches = [[event]]
            last = 0
            for batch in batches:
                results = client.run(calls.append(url, run, batch))
                written += sum(result.persisted for result in results)
                known += sum(result.idempotent for result in results)
                last = results[-1].run_seq
                progress.show(f"{counted(written + known, 'events')} appended")
        except HeadwaterError:
            progress.clear()
            if written or known:
                click.echo(
                    f"{counted(written + known, 'events')} appended before the failure.", err=True
                )
            raise
    progress.clear()
    again = f", {known:,} existed already" if known else ""
    click.echo(f"Appended {counted(written, 'events')} to {run}{again}; the last is number {last}.")


def _lines() -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    for number, line in enumerate(sys.stdin.buffer, 1):
        if line.strip():
            value = _json(line.decode(errors="replace"), f"line {number} ")
            if not isinstance(value, dict):
                raise click.ClickException(
                    f"Line {number} is not an event: it is not a JSON object."
                )
            batch.append(value)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _json(text: str | None, where: str = "") -> Any:
    import msgspec

    try:
        return None if text is None else msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise click.UsageError(f"DATA {where}is not JSON: {error}.") from None


@runs.command()
@click.argument("run")
@url_option
def verify(run: str, url: str) -> None:
    """Check the whole log of a run, and its snapshot, against the State Store Contract."""
    from headwater.runs import calls
    from headwater.runs.verifying import Verification

    found = Verification(run)
    progress = Progress()
    after = 0
    with connected(server_target(url, run), progress) as client:
        while True:
            page = client.run(calls.fetch(url, run, after))
            found.take(page.events)
            after = page.last_event_seq
            progress.show(f"{counted(found.count, 'events')} checked")
            if page.up_to_date:
                break
        found.compare(client.run(calls.snapshot(url, run)))
    progress.clear()
    for note in found.notes:
        click.echo(f"note: {note}")
    for broken in found.broken:
        click.echo(f"BROKEN: {broken}")
    if found.broken:
        places = counted(len(found.broken), "places")
        raise click.ClickException(f"Run {run} violates the contract in {places}.")
    click.echo(
        f"Run {run} conforms to the contract: {counted(found.count, 'events')}, "
        f"{counted(len(found.notes), 'notes')}."
    )


@runs.command()
@click.argument("run")
@click.confirmation_option(prompt="Delete the whole run for good?", help="Delete without asking.")
@url_option
def delete(run: str, url: str) -> None:
    """Delete a whole run; its id can't be used again."""
    from headwater.runs import calls

    with connected(server_target(url, run)) as client:
        client.run(calls.delete(url, run))
    click.echo(f"Deleted run {run}.")
