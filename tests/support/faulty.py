"""`headwater serve`, `backup` and `repair` with faults: `python -m tests.support.faulty`.

python -m tests.support.faulty --faults journal-written:3 serve --store data
"""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from headwater.cli.serve import serve_with, with_settings
from headwater.server.listener import open_store
from headwater.storage.disk.offline.backup import backup as run_backup
from headwater.storage.disk.offline.repair import prepare
from tests.support.compiled import ROOT, server_environment
from tests.support.disk_faults import DiskFaults

_PATH: Final = click.Path(path_type=Path)


def faulty_command(faults: DiskFaults, *arguments: str) -> list[str]:
    """Return the command line of a process with faults; it needs `faulty_environment`."""
    return [sys.executable, "-m", "tests.support.faulty", *faults.arguments(), *arguments]


def faulty_environment() -> dict[str, str]:
    """Return the environment in which the build under test and this module are found."""
    tested = server_environment()
    path = os.pathsep.join((*tested.values(), str(ROOT)))
    return {"PYTHONPATH": path}


@click.group()
@click.option("--faults", "points", default="")
@click.option("--copy-synced", type=_PATH)
@click.option("--hold-file", type=_PATH)
@click.pass_context
def main(
    context: click.Context, points: str, copy_synced: Path | None, hold_file: Path | None
) -> None:
    """Run a command with faults."""
    context.obj = DiskFaults(points, copy_synced, hold_file)


@main.command()
@with_settings
@click.pass_obj
def serve(faults: DiskFaults, /, **options: Any) -> None:
    """Run `headwater serve`."""
    serve_with(options, partial(open_store, faults=faults))


@main.command()
@click.argument("folder", type=_PATH)
@click.argument("target", type=_PATH)
@click.pass_obj
def backup(faults: DiskFaults, folder: Path, target: Path) -> None:
    """Run `headwater backup`."""
    run_backup(folder, target, faults=faults)


@main.command()
@click.argument("folder", type=_PATH)
@click.pass_obj
def repair(faults: DiskFaults, folder: Path) -> None:
    """Run `headwater repair --yes`."""
    with prepare(folder, faults=faults) as plan:
        plan.install()


if __name__ == "__main__":
    main()
