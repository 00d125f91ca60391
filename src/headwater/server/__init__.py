"""The HTTP server: the application, the wire it speaks itself, and an ASGI adapter."""

from headwater.server.app import Application
from headwater.server.asgi import AsgiApp, asgi_app
from headwater.server.serve import Server, run, serve
from headwater.server.settings import Settings

__all__ = ["Application", "AsgiApp", "Server", "Settings", "asgi_app", "run", "serve"]
