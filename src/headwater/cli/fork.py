"""`headwater fork`: a stream that starts with the data of another."""

import click

from headwater.cli.targets import connected, target, url_option
from headwater.cli.values import check_expiry, offset, time


@click.command(short_help="Create TARGET with the data of SOURCE.")
@click.argument("source")
@click.argument("new_stream", metavar="TARGET")
@click.option(
    "--offset", type=offset, metavar="OFFSET", help="Where to part; the end of SOURCE if not given."
)
@click.option(
    "--sub-offset",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Part N messages (JSON) or bytes behind --offset.",
)
@click.option("--ttl", type=click.IntRange(min=0), metavar="SECONDS", help="Idle time to live.")
@click.option(
    "--expires-at", type=time, metavar="TIME", help="When it ends, such as 2030-01-31T12:00:00Z."
)
@url_option
def fork(
    source: str,
    new_stream: str,
    offset: str | None,
    sub_offset: int,
    ttl: int | None,
    expires_at: str | None,
    url: str,
) -> None:
    """Create TARGET with the data that SOURCE has up to an offset.

    Both go their own ways from there. No data is copied.
    """
    check_expiry(ttl, expires_at)
    at, new = target(source, url), target(new_stream, url)
    with connected(at) as opened:
        try:
            created = opened.fork(
                new.name, offset=offset, sub_offset=sub_offset, ttl=ttl, expires_at=expires_at
            )
        except ValueError as error:
            raise click.UsageError(f"{error}.") from None
    what = f"Forked {at} as {new}" if created.new else f"{new} is already this fork of {at}"
    click.echo(f"{what}; it ends at offset {created.next_offset}.")
