"""A job that ends by itself, watched: where it can be stopped.

The job runs in a thread of its own and calls in here between its phases and before each append. At
these points a stop that was asked for ends it; what Spark runs between them is interrupted.
"""

import threading


class JobStopped(Exception):
    """The job has ended because it was asked to."""


class Watch:
    """What a job calls between the things that it does."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    @property
    def is_asked_to_stop(self) -> bool:
        return self._asked.is_set()

    def ask_to_stop(self) -> None:
        self._asked.set()

    def check(self) -> None:
        """End the job here if it was asked to."""
        if self._asked.is_set():
            raise JobStopped
