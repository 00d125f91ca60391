"""Figures as messages of a stream: one per batch.

Appends go out in a thread of their own, so that a slow server delays no batch. What does not fit
into the queue, or is refused, is counted and told at the end.
"""

import logging
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import msgspec
from msgspec.structs import replace

from headwater.client import Client
from headwater.errors import ClientError, StreamNotFound
from headwater.protocol.content_types import JSON
from headwater.spark.pipelines.progress import Figures

log: Final = logging.getLogger("headwater.spark")

_HELD: Final = 1000
_PATIENCE_SECONDS: Final = 5.0


class MetricsStream:
    """Appends figures to a stream."""

    def __init__(self, client: Client, path: str) -> None:
        self._stream = client.stream(path, content_type=JSON)
        self._path = path
        self._queue: queue.Queue[bytes | None] = queue.Queue(_HELD)
        self._thread = threading.Thread(target=self._work, name="metrics-stream", daemon=True)
        self._last: dict[str, tuple[Figures, bool]] = {}
        self.lost = 0
        """Messages that did not get into the stream."""

    def __call__(self, name: str, figures: Figures, is_up: bool) -> None:
        """Take figures; never waits. Another lag alone is no message: there is one per batch."""
        told = (replace(figures, lag_bytes=0, streams=0, ends={}, tails={}), is_up)
        if told == self._last.get(name, (Figures(), True)):
            return
        self._last[name] = told
        message = msgspec.json.encode(
            {
                "pipeline": name,
                "running": is_up,
                "batch": figures.batch,
                "began": figures.told_at,
                "rows": figures.batch_rows,
                "rowsTotal": figures.rows,
                "bytesTotal": figures.bytes,
                "asideTotal": figures.aside,
                "lagBytes": figures.lag_bytes,
                "lagSeconds": figures.batch_lag_seconds,
                "seconds": figures.batch_seconds,
                "phases": dict(figures.phases),
            }
        )
        try:
            self._queue.put_nowait(message)
        except queue.Full:
            self.lost += 1

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Send what is left, for a few seconds."""
        with suppress(queue.Full):
            self._queue.put(None, timeout=_PATIENCE_SECONDS)
        self._thread.join(_PATIENCE_SECONDS)
        if self._thread.is_alive():
            self.lost += self._queue.qsize()

    def _work(self) -> None:
        while (message := self._queue.get()) is not None:
            body = b"[" + message + b"]"
            try:
                self._append(body)
            except ClientError as error:
                if not self.lost:
                    log.warning("metrics are not appended stream=%s reason=%s", self._path, error)
                self.lost += 1

    def _append(self, body: bytes) -> None:
        try:
            self._stream.append(body)
        except StreamNotFound:
            self._stream.create(JSON)
            self._stream.append(body)


@contextmanager
def appending(client: Client, path: str) -> Iterator[MetricsStream]:
    """Append figures to a stream for a block."""
    metrics = MetricsStream(client, path)
    metrics.start()
    try:
        yield metrics
    finally:
        metrics.finish()
