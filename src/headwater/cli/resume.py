"""A file that remembers how far a reader has come."""

import os
from pathlib import Path

import click

from headwater.cli import values


def load_offset(path: Path) -> str | None:
    """Read the offset, or None where nothing has been saved yet."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"Can't read the offset in {path}: {error}.") from None
    try:
        return values.offset(text)
    except click.BadParameter:
        raise click.ClickException(
            f"{path} holds no offset; delete it to start anew, or name another file."
        ) from None


def save_offset(path: Path, offset: str) -> None:
    """Replace the file at once, so that it always holds one whole offset."""
    fresh = path.with_name(f"{path.name}.new")
    try:
        with fresh.open("w", encoding="ascii") as file:
            file.write(f"{offset}\n")
            file.flush()
            # Else a power cut could leave an empty file under the final name.
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        raise click.ClickException(f"Can't save the offset in {path}: {error}.") from None
