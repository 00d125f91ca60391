"""What `headwater pipeline status` prints."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwater.cli.progress import Progress
from headwater.cli.values import counted

if TYPE_CHECKING:
    from headwater.spark.pipelines import Status
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
    """Print where each pipeline stands; False where something could not be found out."""
    from headwater.errors import HeadwaterError
    from headwater.spark.pipelines import status_of_checkpoint

    progress = Progress()
    is_whole = True
    asks: list[tuple[Path, Callable[[], Status]]] = [(file, partial(_of, file)) for file in files]
    for folder in checkpoints:
        whole = folder.resolve()
        asks.append((folder, partial(status_of_checkpoint, whole, url=url, token=token)))
    for place, ask in asks:
        progress.show(f"Asking for the streams of {place} …")
        try:
            status = ask()
        except HeadwaterError as error:
            progress.clear()
            click.echo(f"Error: {error}", err=True)
            is_whole = False
            continue
        progress.clear()
        _print(status, as_json=as_json)
        is_whole = is_whole and not status.unanswered
    return is_whole


def _of(file: Path) -> "Status":
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
        runs = "may be running"  # its lock is not to be seen either
    lines = [f"{status.name} ({status.kind}) {runs}."]
    if status.known:
        lines.append(f"  {status.known}")
    elif not status.checkpoint:
        pass  # it keeps none: what there is to know, the server knows
    elif not status.is_local:
        where = "at the Connect server" if status.is_remote else "on another machine"
        lines.append(f"  checkpoint {status.checkpoint} is {where}: how far it is can't be seen")
    elif status.committed is None:
        lines.append(f"  no batch is committed; checkpoint {status.checkpoint}")
    else:
        begun = ", the next is begun" if status.committed.is_next_begun else ""
        lines.append(
            f"  batch {status.committed.batch} is committed, begun {_ago(status.age or 0)} ago"
            f"{begun}; checkpoint {status.checkpoint}"
        )
    if status.unanswered:
        lines.append(f"  how much there is to do is not known: {status.unanswered}")
        lines += _goes_on(status.committed)
    if status.streams:
        count = counted(len(status.streams), "streams")
        lag = sized(status.lag_bytes) if status.lag_bytes else "nothing"
        lines.append(f"  {count}, {lag} to do")
    behind = sorted(status.streams, key=lambda stream: (-stream.bytes, stream.path))
    for stream in behind[:_MOST_STREAMS]:
        closed = ", closed" if stream.closed else ""
        lines.append(
            f"    {stream.path}  {sized(stream.bytes)}"
            f" from {stream.offset} to {stream.tail}{closed}"
        )
    lines += _more(len(behind))
    lines += [f"    {path}  is gone from the server" for path in status.gone]
    return lines


def _goes_on(committed: "Committed | None") -> list[str]:
    """Tell where the streams go on, which the checkpoint alone knows."""
    offsets = {} if committed is None else committed.offsets
    paths = sorted(offsets)[:_MOST_STREAMS]
    return [f"    {path}  goes on from {offsets[path]}" for path in paths] + _more(len(offsets))


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
