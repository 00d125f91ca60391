"""Figures over HTTP, for Prometheus on this machine."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from headwater.errors import CannotListen

HOST: Final = "127.0.0.1"
_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@contextmanager
def serving(port: int, text: Callable[[], str]) -> Iterator[str]:
    """Serve figures at /metrics for a block; gives the URL."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            found = self.path.partition("?")[0] in {"/metrics", "/"}
            body = (text() if found else "The figures are at /metrics.\n").encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", _TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Whoever asks every few seconds is no news."""

    try:
        server = ThreadingHTTPServer((HOST, port), Handler)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CannotListen(HOST, port, reason, "port for --metrics") from None
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_address[1]}/metrics"
    finally:
        server.shutdown()
        server.server_close()
