"""`headwater close`: end a stream for good."""

import click

from headwater.cli.targets import connected, target, url_option
from headwater.cli.values import body_of, content_type


@click.command(short_help="Close a stream, with a last append if wanted.")
@click.argument("stream")
@click.argument("data", nargs=-1)
@click.option(
    "--content-type", type=content_type, metavar="TYPE", help="Of DATA; else the stream is asked."
)
@url_option
def close(stream: str, data: tuple[str, ...], content_type: str | None, url: str) -> None:
    """Close a stream, in one step with a last append of DATA if there is any.

    A closed stream can be read and forked, but takes no more appends. Closing it again is harmless.
    """
    at = target(stream, url)
    with connected(at) as opened:
        if data:
            content_type = content_type or opened.head().content_type
            closed = opened.close(body_of(data, content_type), content_type=content_type)
        else:
            closed = opened.close()
    click.echo(f"Closed {at}; it ends at offset {closed.next_offset}.")
