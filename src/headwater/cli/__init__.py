"""The command line: `headwater serve`, and the everyday commands over a running server."""

import click

from headwater import __version__
from headwater.cli.serve import serve


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "-V", "--version", prog_name="headwater")
def main() -> None:
    """Headwater: HTTP becomes a durable log, and the log becomes tables."""


main.add_command(serve)
