"""The values that options and arguments take, checked before anything is sent."""

import re
from collections.abc import Sequence

import click

from headwater.protocol import content_types
from headwater.protocol.content_types import is_json
from headwater.protocol.headers import BadHeader, parse_expiry

_NEVER_IN_OFFSETS = frozenset(" ,&=?/")  # PROTOCOL 8
_NUMBER = re.compile(r"\d{1,15}", re.ASCII)


def offset(text: str) -> str:
    """Take an offset as a server returned it, a sentinel, or a position: OFFSET,NUMBER."""
    start, comma, skipped = text.partition(",")
    printable = start.isascii() and start.isprintable() and not set(start) & _NEVER_IN_OFFSETS
    if not start or not printable or (comma and not _NUMBER.fullmatch(skipped)):
        raise click.BadParameter(
            f"'{text}' is not an offset: use one that a command printed, or -1."
        )
    return text


def content_type(text: str) -> str:
    """Take a media type, perhaps with parameters."""
    if media_type(text) == "" or not text.isascii() or not text.isprintable():
        raise click.BadParameter(f"'{text}' is not a content type such as text/plain.")
    return text


def time(text: str) -> str:
    """Take a time as RFC 3339 writes it."""
    expiry = parse_expiry(None, text)
    if isinstance(expiry, BadHeader):
        raise click.BadParameter(f"'{text}' is not {expiry.expected}.")
    return text


def check_expiry(ttl: int | None, expires_at: str | None) -> None:
    """Refuse two answers to the same question."""
    if ttl is not None and expires_at is not None:
        raise click.UsageError("--ttl and --expires-at exclude each other.")


def media_type(content_type: str) -> str:
    """Reduce a content type to what two of them are compared by."""
    return content_types.media_type(content_type) or ""


def body_of(messages: Sequence[str], content_type: str) -> bytes:
    """Make one body of the messages that stand on the command line."""
    from headwater.client.calls import check_json, join_messages

    if not messages:
        return b""
    # What the shell passed, byte for byte, whatever the locale.
    encoded = [message.encode("utf-8", "surrogateescape") for message in messages]
    if is_json(media_type(content_type)):
        for text, message in zip(encoded, messages, strict=True):
            wrong = check_json(text)
            if wrong is not None:
                hint = """a text needs quotes, as in '"hello"'"""
                raise click.ClickException(f"'{message}' is not JSON ({hint}): {wrong}.")
    return join_messages(encoded, content_type)


def counted(number: int, unit: str) -> str:
    """Write a number of things, with the unit given in the plural."""
    return f"{number:,} {unit.removesuffix('s') if number == 1 else unit}"
