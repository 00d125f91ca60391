"""`headwater head`: what a server knows of a stream, without its data."""

import click

from headwater.cli.targets import connected, target, url_option


@click.command(short_help="Show where a stream ends and what it holds.")
@click.argument("stream")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@url_option
def head(stream: str, as_json: bool, url: str) -> None:
    """Show where a stream ends, what it holds, and whether it is closed."""
    import msgspec

    at = target(stream, url)
    with connected(at) as opened:
        info = opened.head()
    fields = msgspec.structs.asdict(info)
    if as_json:
        click.echo(msgspec.json.encode(fields).decode())
        return
    fields["closed"] = "yes" if info.closed else "no"
    shown = {name.replace("_", "-"): value for name, value in fields.items() if value is not None}
    width = max(map(len, shown)) + 1
    for name, value in shown.items():
        click.echo(f"{name + ':':<{width}} {value}")
