"""Spark's daemon of Python workers, less a message that alarms without a cause.

Spark ends a worker that was idle for a minute by closing its socket. Through a Unix domain socket
the worker then can't say goodbye, and shows a traceback to the user of a pipeline that merely waits
for events. Here it ends in silence. Nothing else may be imported: the daemon forks, and what
`headwater.spark` imports has threads.
"""

from socket import socket

from pyspark import daemon

_work = daemon.worker


def worker(sock: socket, authenticated: bool) -> int:
    """Serve tasks until Spark closes the socket."""
    try:
        return _work(sock, authenticated)
    except BrokenPipeError:
        return 1  # there is nobody left to tell


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
