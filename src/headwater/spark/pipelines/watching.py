"""A job that ends by itself, watched: how far it is, and where it can be stopped.

The job runs in a thread of its own and calls in here between its phases and before each append. At
these points a stop that was asked for ends it; what Spark runs between them is interrupted. What
its tasks have written is seen at the server: their streams grow.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from headwater.errors import StreamNotFound
from headwater.spark.pipelines.status import client_of
from headwater.spark.pipelines.values import Server
from headwater.spark.ranges import byte_of

Goals: TypeAlias = Mapping[str, tuple[int, int | None]]
"""Streams that are filled: from which byte, and to which where that is known."""

_MOST_AT_A_TIME: Final = 50


class JobStopped(Exception):
    """The job has ended because it was asked to."""


class Watch:
    """What a job calls between the things that it does; `tell` hears of rows and of bytes."""

    def __init__(self, server: Server, tell: Callable[[int, int], None]) -> None:
        self._server = server
        self._tell = tell
        self._asked = threading.Event()
        self._goals: Goals = {}
        self._placed: dict[str, int] = {}
        self._turn = 0
        self.total_bytes: int | None = None
        self.total_rows: int | None = None
        self.doing = ""
        """What it is at, where its streams do not show it."""

    @property
    def is_asked_to_stop(self) -> bool:
        return self._asked.is_set()

    def ask_to_stop(self) -> None:
        self._asked.set()

    def check(self) -> None:
        """End the job here if it was asked to."""
        if self._asked.is_set():
            raise JobStopped

    def filling(self, goals: Goals) -> None:
        """Take which streams are filled from now on."""
        self.check()
        sizes = [end - begin for begin, end in goals.values() if end is not None]
        self.total_bytes = sum(sizes) if len(sizes) == len(goals) else None
        self._goals = goals

    def begin(self, doing: str) -> None:
        """Take what it is at from now on."""
        self.check()
        self.doing = doing

    def sent(self, rows: int, total: int) -> None:
        """Take how many rows are in their place."""
        self.total_rows = total
        self._tell(rows, 0)
        self.check()

    def look(self) -> None:
        """Ask the server how far the streams are; of many, some at a time."""
        goals = self._goals
        left = [
            path
            for path, (begin, end) in goals.items()
            if end is None or self._placed.get(path, 0) < end - begin
        ]
        if not left:
            return
        first = self._turn % len(left)
        self._turn += _MOST_AT_A_TIME
        with client_of(self._server) as client:
            for path in left[first : first + _MOST_AT_A_TIME]:
                begin, end = goals[path]
                try:
                    at = byte_of(client.stream(path).head().next_offset)
                except StreamNotFound:
                    at = begin
                self._placed[path] = max(0, (at if end is None else min(at, end)) - begin)
        self._tell(0, sum(self._placed.values()))

    def complete(self) -> None:
        """Take it that everything is in its place: the job has ended."""
        if self.total_bytes is not None:
            self._tell(0, self.total_bytes)
