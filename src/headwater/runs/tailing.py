"""Following a run over HTTP by SSE, blocking; it resumes by itself where a connection ended."""

import http.client
import time
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

import msgspec

from headwater.client.failures import failure
from headwater.client.messages import Answer, origin_of, with_query
from headwater.client.sse import EventParser
from headwater.errors import Unreachable
from headwater.runs.calls import runs_url
from headwater.runs.events import StoredEvent, stored_event_from_wire

_SILENCE_SECONDS: Final = 60.0
"""Longer than the server is ever silent: it says every 15 seconds that it is there."""
_PAUSES: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 5.0, 5.0)


def follow(base_url: str, run_id: str, after: int = 0) -> Iterator[StoredEvent]:
    """Give every event behind a number, then each as it comes, without end.

    A connection that ends or breaks is made again; raises `Unreachable` once the server did not
    answer for some 20 seconds, and what it refuses, such as a run that is not there.
    """
    failures = 0
    while True:
        try:
            for event in _connection(base_url, run_id, after):
                failures = 0
                after = event.run_seq
                yield event
            failures = 0
        except (OSError, http.client.HTTPException) as error:
            if failures == len(_PAUSES):
                url = runs_url(base_url, run_id, "events")
                raise Unreachable(url, origin_of(url), str(error)) from error
            time.sleep(_PAUSES[failures])
            failures += 1


def _connection(base_url: str, run_id: str, after: int) -> Iterator[StoredEvent]:
    url = with_query(runs_url(base_url, run_id, "events"), ("after", str(after)), ("live", "sse"))
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_SILENCE_SECONDS)
    try:
        connection.request(
            "GET", f"{parts.path}?{parts.query}", headers={"Accept": "text/event-stream"}
        )
        answer = connection.getresponse()
        if answer.status != 200:
            headers = {name.lower(): value for name, value in answer.getheaders()}
            raise failure(Answer(url, "GET", answer.status, headers, answer.read()))
        parser = EventParser()
        while piece := answer.read1(65536):
            for event in parser.feed(piece):
                if event.name == "run-event":
                    yield stored_event_from_wire(msgspec.json.decode(event.data))
    finally:
        connection.close()
