"""`headwater create`: make a stream, or make sure that it is there."""

import click

from headwater.cli.targets import connected, target, url_option
from headwater.cli.values import body_of, check_expiry, content_type, time


@click.command()
@click.argument("stream")
@click.argument("data", nargs=-1)
@click.option(
    "--content-type",
    type=content_type,
    metavar="TYPE",
    default="application/json",
    show_default=True,
    help="What the stream holds.",
)
@click.option("--ttl", type=click.IntRange(min=0), metavar="SECONDS", help="Idle time to live.")
@click.option(
    "--expires-at", type=time, metavar="TIME", help="When it ends, such as 2030-01-31T12:00:00Z."
)
@click.option("--closed", is_flag=True, help="Close it at once: DATA is all it will ever hold.")
@url_option
def create(
    stream: str,
    data: tuple[str, ...],
    content_type: str,
    ttl: int | None,
    expires_at: str | None,
    closed: bool,
    url: str,
) -> None:
    """Create a stream, with DATA in it if there is any.

    STREAM is a path such as chat/42, or a whole URL. Each DATA is one message. A stream that exists
    with the same configuration is left as it is.
    """
    check_expiry(ttl, expires_at)
    at = target(stream, url)
    body = body_of(data, content_type)
    with connected(at) as opened:
        created = opened.create(
            content_type, ttl=ttl, expires_at=expires_at, data=body or None, closed=closed
        )
    end = f"it {'is closed' if created.closed else 'ends'} at offset {created.next_offset}"
    if created.new:
        click.echo(f"Created {at} ({created.content_type}); {end}.")
    else:
        added = ", and DATA was not added" if data else ""
        click.echo(f"{at} exists already with this configuration{added}; {end}.")
