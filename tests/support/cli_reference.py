"""Writes docs/cli.md, the reference of all commands, from the commands themselves.

Use: `python -m tests.support.cli_reference`. A test fails while the page is not up to date.
"""

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from headwater.cli import main

PAGE: Final = Path(__file__).parents[2] / "docs/cli.md"
_INTRODUCTION: Final = """# Commands

Every command of `headwater`, with its arguments and options. A STREAM is a path on the server, such
as `chat/42`, or a whole URL. `headwater COMMAND --help` prints the same text. The exit code is 0 on
success, 1 on failure, 2 on wrong usage and 130 after Ctrl-C.
"""
_SEE_SETTINGS: Final = (
    "The options are the settings of the server: see [configuration](configuration.md)."
)


def reference() -> str:
    """Return the page."""
    parts = [_INTRODUCTION]
    for path, command in _commands("headwater", main):
        parts += _section(path, command)
    return "\n".join(parts)


def _commands(path: str, group: click.Group) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from _commands(f"{path} {name}", command)


def _section(path: str, command: click.Command) -> list[str]:
    # A command remembers its help option, so its names have to be those of the program.
    context = click.Context(command, click.Context(main, **main.context_settings), path)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    level = "#" * min(len(path.split()), 3)
    text = re.sub(r"(?m)^\x08\n", "", inspect.cleandoc(command.help or ""))
    section = [f"{level} {path}\n", f"```text\n{usage}\n```\n", f"{text}\n"]
    if path == "headwater serve":
        return [*section, f"{_SEE_SETTINGS}\n"]
    options = [param for param in command.params if isinstance(param, click.Option)]
    rows = [_row(*(option.get_help_record(context) or ("", ""))) for option in options]
    if rows:
        section += ["| option | meaning |\n|---|---|", *rows, ""]
    return section


def _row(names: str, meaning: str) -> str:
    names, meaning = (" ".join(text.split()).replace("|", "\\|") for text in (names, meaning))
    return f"| `{names}` | {meaning.replace('*', '&ast;')} |"


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
    sys.stdout.write(f"Wrote {PAGE}.\n")
