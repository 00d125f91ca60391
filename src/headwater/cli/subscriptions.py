"""`headwater subscriptions` and `headwater keys`: workers and webhooks notified of new data."""

import sys

import click

from headwater.cli._io import (
    OrderedGroup,
    connected,
    counted,
    print_fields,
    server_target,
    url_option,
)
from headwater.cli._progress import Progress


@click.group(cls=OrderedGroup)
def subscriptions() -> None:
    """List, show, create and delete subscriptions."""


@subscriptions.command("list")
@url_option
def list_(url: str) -> None:
    """List all subscriptions, with the state of their delivery."""
    count = 0
    progress = Progress(enabled=not sys.stdout.isatty())
    with connected(server_target(url), progress) as client:
        for item in client.subscriptions.list():
            count += 1
            receiver = item["wake_stream"] or (item["webhook"] or {}).get("url", "")
            links = counted(item["links"], "streams")
            click.echo(f"{item['id']}  {item['type']}  {item['status']}  {links}  {receiver}")
            progress.show(f"{counted(count, 'subscriptions')} listed")
    progress.clear()
    click.echo(f"{counted(count, 'subscriptions')}.", err=True)


@subscriptions.command()
@click.argument("subscription")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@url_option
def show(subscription: str, as_json: bool, url: str) -> None:
    """Show a subscription, its streams, and the state of its delivery."""
    import msgspec

    with connected(server_target(url, subscription)) as client:
        found = client.subscriptions.show(subscription)
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    streams = found.pop("streams")
    shown = {**found, **found.pop("delivery")}
    shown.pop("delivery", None)
    shown.pop("subscription_id", None)
    shown["webhook"] = (shown["webhook"] or {}).get("url")
    shown["streams"] = len(streams)
    print_fields(
        [(name.replace("_", "-"), value) for name, value in shown.items() if value is not None]
    )
    for stream in streams:
        click.echo(f"  {stream['path']}  {stream['link_type']}  acked {stream['acked_offset']}")


@subscriptions.command()
@click.argument("subscription")
@click.option("--pattern", help="Glob for stream paths: * is one segment, ** any number.")
@click.option("--stream", "streams", multiple=True, help="Path of a stream; may be repeated.")
@click.option("--webhook", metavar="HTTPS-URL", help="Call this URL when a stream has new data.")
@click.option("--wake-stream", metavar="STREAM", help="Write wake events to this stream.")
@click.option(
    "--lease",
    type=click.FloatRange(1, 600),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Time after which a silent worker loses its work to another one.",
)
@click.option("--description", help="Text that `show` prints.")
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
    """Create a subscription, or confirm an existing one; its failed deliveries are then resumed.

    It covers the streams that match --pattern and those of --stream, each from its present end.
    """
    if (webhook is None) == (wake_stream is None):
        raise click.UsageError("Pass either --webhook or --wake-stream.")
    if pattern is None and not streams:
        raise click.UsageError("Pass --pattern, --stream, or both.")
    with connected(server_target(url, subscription)) as client:
        created = client.subscriptions.create(
            subscription,
            pattern=pattern,
            streams=streams,
            wake_stream=wake_stream,
            webhook=webhook,
            lease=lease,
            description=description,
        )
    click.echo(
        f"{'Created' if created.new else 'Confirmed'} subscription {subscription}; "
        f"it covers {counted(len(created.description['streams']), 'streams')} so far."
    )


@subscriptions.command()
@click.argument("subscription")
@url_option
def delete(subscription: str, url: str) -> None:
    """Delete a subscription: workers that hold a lease of it can no longer acknowledge."""
    with connected(server_target(url, subscription)) as client:
        client.subscriptions.delete(subscription)
    click.echo(f"Deleted subscription {subscription}.")


@click.group(cls=OrderedGroup)
def keys() -> None:
    """Manage the keys that sign webhooks."""


@keys.command()
@url_option
def rotate(url: str) -> None:
    """Sign webhooks with a new key from now on.

    Old keys stay published until every signature made with them is too old to be accepted.
    """
    with connected(server_target(url)) as client:
        rotated = client.subscriptions.rotate_keys()
    old = counted(len(rotated["published"]) - 1, "old keys")
    stay = "stays" if old.endswith("key") else "stay"
    click.echo(f"Webhooks are signed with {rotated['kid']} now; {old} {stay} published.")
