"""The jobs as commands of their own: `headwater pipeline materialize --stream … --to …`."""

import click

JOBS: tuple[click.Command, ...] = ()
