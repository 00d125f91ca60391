"""The command line: the server, commands over its streams, and commands over a data directory."""

import click

from headwater import __version__
from headwater.cli._io import OrderedGroup
from headwater.cli.data_directory import backup, check, info, repair
from headwater.cli.pipeline import pipeline
from headwater.cli.runs import runs
from headwater.cli.serve import serve
from headwater.cli.state import state
from headwater.cli.streams import append, close, create, delete, fork, head, read
from headwater.cli.subscriptions import keys, subscriptions

EPILOG = """
\b
Examples:
  headwater create chat/42 '{"role": "user", "text": "Hello"}'
  tail -f app.log | headwater append logs/app
"""


@click.group(
    cls=OrderedGroup,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "-V", "--version", prog_name="headwater")
def main() -> None:
    """Headwater: HTTP becomes a durable log, and the log becomes tables.

    A STREAM is a path on the server, such as chat/42, or a whole URL.
    """


for command in (
    *(serve, create, append, read, head, close, fork, delete),
    *(subscriptions, keys, state, runs, pipeline),
    *(info, check, repair, backup),
):
    main.add_command(command)
