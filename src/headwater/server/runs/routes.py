"""Routes under `/v1/runs`; names in bodies are those of the run contract, in camelCase."""

from datetime import datetime
from typing import Any, Final

import msgspec

from headwater.errors import (
    EventRefused,
    RunError,
    RunNotFound,
    RunQueryRefused,
    RunStoreUnavailable,
)
from headwater.runs.events import event_to_wire, new_event_from_wire
from headwater.runs.store import PAGE, RunPage, RunStore
from headwater.runs.values import RunStatus, snapshot_to_wire
from headwater.server.context import Context
from headwater.server.handlers.live import EventStream
from headwater.server.messages import Head, Headers, Request, Response
from headwater.server.problems import Problem, problem_response, refuse
from headwater.server.routing import by_method, json_response, parse_number, split_path
from headwater.server.runs.event_feed import RunEventFeed
from headwater.server.runs.service import RunService

PREFIX: Final = "/v1/runs"
_MAX_NUMBER: Final = 10**18 - 1

_EVENT_STREAM: Final[Headers] = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

AnyResponse = Response | EventStream


class RunRoutes:
    """Answers requests for runs."""

    def __init__(self, context: Context, service: RunService) -> None:
        self._context = context
        self._service = service

    def owns(self, url_path: str) -> bool:
        """Return whether a path belongs to runs."""
        return url_path.startswith(PREFIX) and url_path[len(PREFIX) :][:1] in {"", "/"}

    async def handle(self, request: Request) -> AnyResponse:
        """Answer a request whose path belongs to runs."""
        segments = split_path(request.head.url_path[len(PREFIX) :].strip("/"))
        try:
            store = await self._service.open()
            return await self._route(request, store, segments)
        except RunError as error:
            return refuse(error)

    async def _route(
        self, request: Request, store: RunStore, segments: list[str] | None
    ) -> AnyResponse:
        head = request.head
        match segments:
            case [""]:
                return await by_method(request, GET=lambda: self._list(head, store))
            case [run_id]:
                return await by_method(
                    request,
                    GET=lambda: self._show(store, run_id),
                    DELETE=lambda: self._delete(store, run_id),
                )
            case [run_id, "events"]:
                return await by_method(
                    request,
                    GET=lambda: self._fetch(head, store, run_id),
                    POST=lambda: self._append(request, store, run_id),
                )
            case [run_id, "snapshot"]:
                return await by_method(request, GET=lambda: self._snapshot(head, store, run_id))
            case [run_id, "lag"]:
                return await by_method(request, GET=lambda: self._lag(store, run_id))
        return problem_response(_no_resource())

    # Events

    async def _append(self, request: Request, store: RunStore, run_id: str) -> AnyResponse:
        try:
            body = msgspec.json.decode(request.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise EventRefused(f"the body is not JSON ({error})") from None
        wires = body if isinstance(body, list) else [body]
        if not wires:
            raise EventRefused("the array is empty")
        events = [new_event_from_wire(_with_run_id(wire, run_id)) for wire in wires]
        results = [msgspec.to_builtins(each) for each in await store.append_events(events)]
        return json_response(200, results if isinstance(body, list) else results[0])

    async def _fetch(self, head: Head, store: RunStore, run_id: str) -> AnyResponse:
        live = _parameter(head, "live")
        if live not in {None, "sse"}:
            raise RunQueryRefused("live", live, "sse")
        after = _number(head, "after", 0)
        if live == "sse":
            # A browser that reconnects sends the id of the last event that it received.
            last = head.header(b"last-event-id")
            if last is not None and last.isascii() and last.isdigit():
                after = max(after, int(last[:18]))
            await _check_exists(store, run_id)
            feed = RunEventFeed(self._context, self._service, store, run_id, after)
            return EventStream(list(_EVENT_STREAM), feed)
        limit = _number(head, "limit", PAGE)
        events = await store.fetch_events(run_id, after, limit)
        if not events:
            await _check_exists(store, run_id)
        return json_response(
            200,
            {
                "events": [event_to_wire(each) for each in events],
                "lastEventSeq": events[-1].run_seq if events else after,
                "upToDate": len(events) < limit,
            },
        )

    # Snapshots

    async def _snapshot(self, head: Head, store: RunStore, run_id: str) -> AnyResponse:
        source = _parameter(head, "source") or "latest"
        if source not in {"latest", "log"}:
            raise RunQueryRefused("source", source, "latest, or log for a full replay")
        if source == "log":
            return json_response(200, snapshot_to_wire(await store.project_snapshot(run_id)))
        snapshot = await store.get_snapshot(run_id)
        if snapshot is None:
            raise RunNotFound(run_id)
        return json_response(200, snapshot_to_wire(snapshot))

    async def _lag(self, store: RunStore, run_id: str) -> AnyResponse:
        await _check_exists(store, run_id)
        projector = self._service.projector
        if projector is None:
            raise RunStoreUnavailable("this server", "the projector is not running")
        lag = await projector.lag_of(run_id)
        health = projector.health(run_id)
        return json_response(
            200,
            {
                "runId": run_id,
                "health": health.value,
                "lagSeconds": lag.seconds,
                "eventsBehind": lag.events_behind,
            },
        )

    # Runs

    async def _list(self, head: Head, store: RunStore) -> AnyResponse:
        status = _parameter(head, "status")
        if status is not None and status not in RunStatus.__members__:
            raise RunQueryRefused("status", status, f"one of {', '.join(RunStatus)}")
        page: RunPage = await store.list_runs(
            status=None if status is None else RunStatus(status),
            created_from=_time(head, "createdFrom"),
            created_before=_time(head, "createdBefore"),
            after=_parameter(head, "after"),
            limit=_number(head, "limit", 100),
        )
        return json_response(200, msgspec.to_builtins(page))

    async def _show(self, store: RunStore, run_id: str) -> AnyResponse:
        info = await store.find_run(run_id)
        if info is None:
            raise RunNotFound(run_id)
        return json_response(200, msgspec.to_builtins(info))

    async def _delete(self, store: RunStore, run_id: str) -> AnyResponse:
        if not await store.delete_run(run_id):
            raise RunNotFound(run_id)
        return Response(204, [])


async def _check_exists(store: RunStore, run_id: str) -> None:
    if await store.find_run(run_id) is None:
        raise RunNotFound(run_id)


def _with_run_id(wire: Any, run_id: str) -> Any:
    """Add the run id of the path to an event; an event with another id is refused."""
    if not isinstance(wire, dict):
        return wire
    own = wire.get("runId", run_id)
    if own != run_id:
        raise EventRefused(f"its runId is {str(own)[:80]!r}, but the path names '{run_id[:80]}'")
    return {"runId": run_id, **wire}


def _parameter(head: Head, name: str) -> str | None:
    values = head.parameters.get(name)
    if values is None:
        return None
    if len(values) > 1:
        raise RunQueryRefused(name, ", ".join(values)[:80], "one value")
    return values[0]


def _number(head: Head, name: str, default: int) -> int:
    text = _parameter(head, name)
    if text is None:
        return default
    number = parse_number(text, 0, _MAX_NUMBER)
    if number is None:
        raise RunQueryRefused(name, text[:80], "a number of at least 0")
    return number


def _time(head: Head, name: str) -> datetime | None:
    text = _parameter(head, name)
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise RunQueryRefused(name, text[:80], "a time such as 2026-02-11T10:00:00Z")
    return time


def _no_resource() -> Problem:
    detail = f"Runs are served below {PREFIX}, such as {PREFIX}/run-001/events."
    return Problem(404, "not-found", "There is no such resource", detail)
