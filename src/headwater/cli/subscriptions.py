"""`headwater subscriptions` and `headwater keys`: who is woken when streams move."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from headwater.cli._io import Target, make_client, reported, url_option

if TYPE_CHECKING:
    from headwater.client import Client


class InOrder(click.Group):
    """Lists its commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.commands)


@contextmanager
def connected(name: str, url: str) -> Iterator["Client"]:
    """Open a client for a block, and turn what fails in it into one sentence."""
    from headwater.client import origin_of

    try:
        origin_of(url)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    at = Target(name, url, url_typed=False)
    with reported(at), make_client(at) as client:
        yield client


@click.group(cls=InOrder)
def subscriptions() -> None:
    """List, show, create and delete subscriptions."""


@subscriptions.command("list")
@url_option
def list_(url: str) -> None:
    """List all subscriptions, with how their delivery goes."""
    count = 0
    with connected("", url) as client:
        for item in client.subscriptions.list():
            count += 1
            aim = item["wake_stream"] or (item["webhook"] or {}).get("url", "")
            links = f"{item['links']} streams"
            click.echo(f"{item['id']}  {item['type']}  {item['status']}  {links}  {aim}")
    click.echo(f"{count} subscriptions.", err=True)


@subscriptions.command()
@click.argument("subscription")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@url_option
def show(subscription: str, as_json: bool, url: str) -> None:
    """Show a subscription, its streams, and how its delivery goes."""
    import msgspec

    with connected(subscription, url) as client:
        found = client.subscriptions.show(subscription)
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    streams = found.pop("streams")
    shown = {**found, **found.pop("delivery")}
    shown.pop("delivery", None)
    shown.pop("subscription_id", None)
    shown["webhook"] = (shown["webhook"] or {}).get("url")
    rows = {name.replace("_", "-"): value for name, value in shown.items() if value is not None}
    width = max(map(len, rows)) + 1
    for name, value in rows.items():
        click.echo(f"{name + ':':<{width}} {value}")
    click.echo(f"{'streams:':<{width}} {len(streams)}")
    for stream in streams:
        click.echo(f"  {stream['path']}  {stream['link_type']}  acked {stream['acked_offset']}")


@subscriptions.command()
@click.argument("subscription")
@click.option("--pattern", help="Glob over stream paths: * is one segment, ** any number.")
@click.option("--stream", "streams", multiple=True, help="A stream to follow; may be repeated.")
@click.option("--webhook", metavar="HTTPS-URL", help="Call this URL when a stream moves.")
@click.option("--wake-stream", metavar="STREAM", help="Write wake events to this stream.")
@click.option(
    "--lease",
    type=click.FloatRange(1, 600),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a worker may be silent.",
)
@click.option("--description", help="What it is for.")
@url_option
def create(
    subscription: str,
    pattern: str | None,
    streams: tuple[str, ...],
    webhook: str | None,
    wake_stream: str | None,
    lease: float,
    description: str | None,
    url: str,
) -> None:
    """Create a subscription, or confirm one: that re-arms it where its deliveries were given up.

    It follows the streams that --pattern matches and those of --stream, from their present end on.
    """
    if (webhook is None) == (wake_stream is None):
        raise click.UsageError("Give either --webhook or --wake-stream.")
    if pattern is None and not streams:
        raise click.UsageError("Give --pattern, --stream, or both.")
    with connected(subscription, url) as client:
        created = client.subscriptions.create(
            subscription,
            pattern=pattern,
            streams=streams,
            wake_stream=wake_stream,
            webhook=webhook,
            lease=lease,
            description=description,
        )
    what = "Created" if created.new else "Confirmed"
    count = len(created.description["streams"])
    click.echo(f"{what} subscription {subscription}; it follows {count} streams so far.")


@subscriptions.command()
@click.argument("subscription")
@url_option
def delete(subscription: str, url: str) -> None:
    """Delete a subscription: whoever still works for it can't ack any more."""
    with connected(subscription, url) as client:
        client.subscriptions.delete(subscription)
    click.echo(f"Deleted subscription {subscription}.")


@click.group()
def keys() -> None:
    """Manage the keys that webhooks are signed with."""


@keys.command()
@url_option
def rotate(url: str) -> None:
    """Sign webhooks with a new key from now on.

    Old keys stay published until whatever they have signed is too old to be accepted.
    """
    with connected("", url) as client:
        rotated = client.subscriptions.rotate_keys()
    old = len(rotated["published"]) - 1
    click.echo(f"Webhooks are signed with {rotated['kid']} now; {old} old keys stay published.")
