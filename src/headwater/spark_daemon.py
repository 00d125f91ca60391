"""Spark's daemon of Python workers, less a message that alarms without a cause.

Spark ends a worker that was idle for a minute by closing its socket. Through a Unix domain socket
the worker then can't say goodbye, and shows a traceback to the user of a pipeline that merely waits
for events. Here it ends in silence. Nothing else may be imported: the daemon forks, and what
`headwater.spark` imports has threads.
"""

import sys
from socket import socket
from typing import Any

from pyspark import daemon

_work = daemon.worker


def worker(sock: socket, authenticated: bool) -> int:
    """Serve tasks until Spark closes the socket."""
    try:
        return _work(sock, authenticated)
    except BrokenPipeError:
        return 1  # there is nobody left to tell


def end_in_silence() -> None:
    """Have this process, if it is a worker of Spark's own daemon, end as ours do.

    What plans and looks up for a query comes from that one, whatever the settings say.
    """
    program: Any = sys.modules["__main__"]
    spec = getattr(program, "__spec__", None)
    if spec is not None and spec.name == daemon.__name__:
        program.worker = worker


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
