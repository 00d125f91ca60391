"""Following a run over HTTP by SSE, blocking; it resumes by itself where a connection ended."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from headwater.client import Request, SseParser, error_from_response, with_query
from headwater.errors import ConnectionLost, Overloaded, ServerFailed, Unreachable
from headwater.runs.calls import runs_url
from headwater.runs.events import StoredEvent, stored_event_from_wire

if TYPE_CHECKING:
    from headwater.client import Client

_PAUSES: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 5.0, 5.0)
_PASSES: Final = (Unreachable, ConnectionLost, Overloaded, ServerFailed)
"""What may be over in a moment."""


def follow(client: "Client", run_id: str, after: int = 0) -> Iterator[StoredEvent]:
    """Give every event behind a number, then each as it comes, without end.

    A connection that ends or breaks is made again; raises what went wrong once the server did not
    answer for some 20 seconds, and at once what it refuses, such as a run that is not there.
    """
    failures = 0
    while True:
        try:
            for event in _connection(client, run_id, after):
                failures = 0
                after = event.run_seq
                yield event
            failures = 0
        except _PASSES as error:
            if failures == len(_PAUSES):
                raise
            if client.on_retry is not None:
                client.on_retry(error, _PAUSES[failures])
            time.sleep(_PAUSES[failures])
            failures += 1


def _connection(client: "Client", run_id: str, after: int) -> Iterator[StoredEvent]:
    url = runs_url(client.base_url, run_id, "events")
    url = with_query(url, ("after", str(after)), ("live", "sse"))
    request = Request("GET", url, {"Accept": "text/event-stream"}, live=True)
    with client.opened(request) as exchange:
        response = exchange.open()
        if response is not None and response.status != 200:
            raise error_from_response(response)
        parser = SseParser()
        while piece := exchange.receive_more():
            for event in parser.feed(piece):
                if event.name == "run-event":
                    yield stored_event_from_wire(msgspec.json.decode(event.data))
