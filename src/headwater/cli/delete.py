"""`headwater delete`: remove a stream and its data."""

import sys

import click

from headwater.cli.targets import connected, target, url_option


@click.command(short_help="Delete a stream and its data.")
@click.argument("stream")
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
@url_option
def delete(stream: str, yes: bool, url: str) -> None:
    """Delete a stream and its data; its forks keep what they share with it."""
    at = target(stream, url)
    if not yes and sys.stdin.isatty():
        click.confirm(f"Delete {at} and all its data?", abort=True, err=True)
    with connected(at) as opened:
        opened.delete()
    click.echo(f"Deleted {at}.")
