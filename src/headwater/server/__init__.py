"""The server: one application, with its own HTTP/1.1 listener and an ASGI adapter."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.server.app import Application
    from headwater.server.asgi import AsgiApp, asgi_app
    from headwater.server.listener import Server, run
    from headwater.server.settings import Settings

__all__ = ["Application", "AsgiApp", "Server", "Settings", "asgi_app", "run"]

_MODULES = {
    "Application": "app",
    "AsgiApp": "asgi",
    "Server": "listener",
    "Settings": "settings",
    "asgi_app": "asgi",
    "run": "listener",
}


def __getattr__(name: str) -> Any:
    # Imported on first use: the command line needs the settings, but not the server.
    if name in _MODULES:
        return getattr(import_module(f"headwater.server.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
