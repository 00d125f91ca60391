"""The requests of `/v1/runs`, without I/O: for `Client.run` and `AsyncClient.run`."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct

from headwater.client import (
    Call,
    Request,
    Response,
    error_from_response,
    unexpected_response,
    with_query,
)
from headwater.runs.events import NewEvent, StoredEvent, event_to_wire, stored_event_from_wire
from headwater.runs.store import PAGE, AppendResult, RunPage
from headwater.runs.values import RunSnapshot, snapshot_from_wire

T = TypeVar("T")


class EventPage(Struct, frozen=True):
    """Some events of a run."""

    events: list[StoredEvent]
    last_event_seq: int
    """Where to go on behind."""
    up_to_date: bool


def runs_url(base_url: str, *parts: str) -> str:
    """Find the URL of something below `/v1/runs`."""
    path = "".join(f"/{quote(part, safe='')}" for part in parts)
    return f"{base_url.rstrip('/')}/v1/runs{path}"


def append(base_url: str, run_id: str, events: Sequence[NewEvent]) -> Call[list[AppendResult]]:
    """Append a batch; repeating it is safe, since its keys tell what was there before."""
    body = msgspec.json.encode([event_to_wire(each) for each in events])
    url = runs_url(base_url, run_id, "events")
    request = Request("POST", url, {"Content-Type": "application/json"}, body)
    return Call(request, _reading(lambda wire: msgspec.convert(wire, list[AppendResult])))


def fetch(base_url: str, run_id: str, after: int = 0, limit: int = PAGE) -> Call[EventPage]:
    """Read some events behind a number."""
    url = with_query(
        runs_url(base_url, run_id, "events"), ("after", str(after)), ("limit", str(limit))
    )
    return Call(Request("GET", url), _reading(_event_page))


def snapshot(base_url: str, run_id: str, *, replayed: bool = False) -> Call[RunSnapshot]:
    """Ask for the snapshot: the latest, or one that is replayed from the whole log."""
    url = runs_url(base_url, run_id, "snapshot")
    if replayed:
        url = with_query(url, ("source", "log"))
    return Call(Request("GET", url), _reading(snapshot_from_wire))


def page(base_url: str, **query: str | None) -> Call[RunPage]:
    """List runs; the names of the query are those of the wire."""
    given = [(name, value) for name, value in query.items() if value is not None]
    url = with_query(runs_url(base_url), *given)
    return Call(Request("GET", url), _reading(lambda wire: msgspec.convert(wire, RunPage)))


def delete(base_url: str, run_id: str) -> Call[None]:
    """Delete a run."""

    def interpret(response: Response) -> None:
        # A second attempt finds nothing where the first one succeeded without being answered.
        if response.status != 204 and not (response.status == 404 and response.attempt):
            raise error_from_response(response)

    return Call(Request("DELETE", runs_url(base_url, run_id)), interpret)


def _event_page(wire: Any) -> EventPage:
    events = [stored_event_from_wire(each) for each in wire["events"]]
    return EventPage(events, wire["lastEventSeq"], wire["upToDate"])


def _reading(convert: Callable[[Any], T]) -> Callable[[Response], T]:
    def interpret(response: Response) -> T:
        if response.status != 200:
            raise error_from_response(response)
        try:
            return convert(msgspec.json.decode(response.body))
        except (msgspec.MsgspecError, KeyError, TypeError) as error:
            raise unexpected_response(
                response, f"an answer that is none of runs ({error})"
            ) from None

    return interpret
