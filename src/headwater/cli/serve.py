"""`headwater serve`: every setting is an option and an environment variable."""

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from headwater.errors import HeadwaterError
from headwater.server.settings import Settings, option_name, variable_name

if TYPE_CHECKING:
    from headwater.storage.store import Store

Command = Callable[..., None]


def with_settings(command: Command) -> Command:
    """Add one option for each setting."""
    for item in reversed(fields(Settings)):
        choices = item.metadata["choices"].split()
        kind: Any = click.Choice(choices) if choices else type(item.default)
        name = option_name(item)
        if kind is bool:
            name = f"{name}/--no-{name[2:]}"
        command = click.option(
            name,
            item.name,
            type=kind,
            default=item.default,
            envvar=variable_name(item),
            help=item.metadata["help"],
            show_default=True,
            show_envvar=True,
        )(command)
    return command


@click.command()
@with_settings
def serve(**options: Any) -> None:
    """Start the stream server.

    Ctrl-C or SIGTERM stops it: requests in progress are answered, live readers receive the offset
    at which to continue, then the server exits.
    """
    from headwater.server.listener import open_store

    serve_with(options, open_store)


def serve_with(options: dict[str, Any], open_store: "Callable[[Settings], Store]") -> None:
    """Serve a store until the process is asked to stop."""
    from headwater.server.listener import run
    from headwater.server.logs import configure

    try:
        settings = Settings(**options)
        configure(settings.log_level, settings.log_format)
        run(settings, _announce, open_store(settings))
    except HeadwaterError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(
            f"Can't use '{options['store']}' as a store: {error.strerror or error}."
        ) from None
    click.echo("Headwater has stopped.", err=True)


def _announce(url: str) -> None:
    click.echo(f"Headwater listens on {url}", err=True)
