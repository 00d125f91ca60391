"""Temporal: a plugin of the worker that records its workflows as runs.

A workflow execution is a run, an activity that it calls is a step. What a workflow sees is recorded
by the workflow itself, in its order, through a local activity: Temporal's own history makes sure
that it happens, and the idempotency keys that it counts once. The start of a step is recorded by
the activity, before its code runs.

    who            emits
    workflow       RunStarted, StepCompleted, StepFailed, what signals cause, the run's end
    activity       StepStarted

Temporal's retries of an activity are attempts of the engine: they show as `engineAttemptId`, and
only the outcome that the workflow sees ends the step. Executions that continue as new are one run.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from msgspec import Struct, to_builtins
from temporalio import activity, workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RetryPolicy
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    FailureError,
    is_cancelled_exception,
)
from temporalio.exceptions import TimeoutError as TemporalTimeoutError
from temporalio.plugin import SimplePlugin
from temporalio.worker import (
    ActivityInboundInterceptor,
    ContinueAsNewInput,
    ExecuteActivityInput,
    ExecuteWorkflowInput,
    HandleSignalInput,
    Interceptor,
    StartActivityInput,
    StartLocalActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

from headwater.errors import RunError, RunStoreUnavailable
from headwater.runs.event_data import PlanRef, RunContext
from headwater.runs.events import NewEvent, event_to_wire, new_event, new_event_from_wire
from headwater.runs.store import RunStore

_APPEND: Final = "headwater_append_run_events"
_HEADER: Final = "headwater-run"
_PATCH: Final = "headwater-runs"
"""Executions that began before they were recorded go on without."""
_ADAPTER: Final = "headwater.runs.temporal/1"
_APPEND_SECONDS: Final = 60
_BEGIN_SECONDS: Final = 5
"""How long an activity waits for the record of its start."""


class _Settings(NamedTuple):
    """What every workflow of a worker is recorded with."""

    plan: Callable[[str], PlanRef]
    context: RunContext
    signals: Mapping[str, str]
    failures: tuple[type[BaseException], ...]


class _Step(Struct):
    """What an activity is told of the step that it carries out."""

    run_id: str
    plan_version: str
    step_id: str
    attempt: int
    engine_run_ref: dict[str, Any]


class RunRecorder(SimplePlugin):
    """Records the workflows of a worker: `Worker(..., plugins=[RunRecorder(store, ...)])`.

    The store must be open, and belong to the worker's event loop. `signals` says which signals
    pause and resume a run; others are recorded as accepted. Where workflows fail by exceptions of
    your own (`failure_exception_types`), name them in `failures`.
    """

    def __init__(
        self,
        store: RunStore,
        *,
        plan: PlanRef | Callable[[str], PlanRef],
        context: RunContext,
        signals: Mapping[str, str] | None = None,
        failures: Sequence[type[BaseException]] = (),
    ) -> None:
        known = {"pause": "RunPaused", "resume": "RunResumed"} if signals is None else signals
        one = plan
        by_type = one if callable(one) else lambda _: one
        settings = _Settings(by_type, context, known, (FailureError, TimeoutError, *failures))
        super().__init__(
            "headwater-runs",
            interceptors=[_Recording(store, settings)],
            activities=[_Append(store).append],
        )


class _Append:
    """The activity that writes what a workflow has to say."""

    def __init__(self, store: RunStore) -> None:
        self._store = store

    @activity.defn(name=_APPEND)
    async def append(self, wires: list[dict[str, Any]]) -> None:
        try:
            await self._store.append_events([new_event_from_wire(wire) for wire in wires])
        except RunStoreUnavailable:
            raise  # Temporal tries again, with the same keys
        except RunError as error:
            raise ApplicationError(str(error), type=error.code, non_retryable=True) from error


class _Recording(Interceptor):
    """Puts the recorders around workflows and activities."""

    def __init__(self, store: RunStore, settings: _Settings) -> None:
        self._store = store
        self._settings = settings

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - Temporal's name
        return _ActivityRecorder(next, self._store)

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,  # noqa: A002, ARG002 - Temporal's name
    ) -> type[WorkflowInboundInterceptor]:
        settings = self._settings

        class Recorder(_WorkflowRecorder):
            """With the settings of this worker: Temporal makes it, and passes nothing."""

            def __init__(self, next: WorkflowInboundInterceptor) -> None:  # noqa: A002 - likewise
                super().__init__(next)
                self.settings = settings

        return Recorder


class _ActivityRecorder(ActivityInboundInterceptor):
    """Records that a step has begun."""

    def __init__(self, next: ActivityInboundInterceptor, store: RunStore) -> None:  # noqa: A002 - Temporal's name
        super().__init__(next)
        self._store = store

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - likewise
        header = input.headers.get(_HEADER)
        if header is not None:
            step = activity.payload_converter().from_payload(header, dict)
            event = _step_started(_Step(**step), datetime.now(UTC), activity.info().attempt)
            try:
                await asyncio.wait_for(self._store.append_event(event), _BEGIN_SECONDS)
            except (RunError, TimeoutError) as error:
                # Failing here would use up an attempt of the user's. The workflow makes up for it.
                activity.logger.warning("the start of the step is recorded later: %s", error)
        return await super().execute_activity(input)


class _WorkflowRecorder(WorkflowInboundInterceptor):
    """Records a run from within its workflow: all here is deterministic, and replayed."""

    settings: _Settings

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        self._is_on: bool | None = None
        super().init(_OutboundRecorder(outbound, self))

    @property
    def is_on(self) -> bool:
        """Whether this execution is recorded; the first question begins the record.

        A signal may come before the workflow itself has begun.
        """
        if self._is_on is None:
            self._is_on = workflow.patched(_PATCH)
            if self._is_on:
                self._begin()
        return self._is_on

    def _begin(self) -> None:
        info = workflow.info()
        self._log = _Log()
        self._plan = self.settings.plan(info.workflow_type)
        self._began = workflow.now()
        self._calls: dict[str, int] = {}
        """How often each step was called."""
        self._ref = {
            "provider": "temporal",
            "namespace": info.namespace,
            "workflowId": info.workflow_id,
            "runId": info.run_id,
            "taskQueue": info.task_queue,
        }
        # Continuing as new keeps the run; a retried or scheduled execution is a run of its own.
        of_its_own = info.attempt > 1 or bool(info.cron_schedule)
        self._run_id = info.run_id if of_its_own else info.first_execution_run_id
        continued = info.headers.get(_HEADER)
        if continued is not None and not of_its_own:
            told = workflow.payload_converter().from_payload(continued, dict)
            self._run_id, self._calls = told["run_id"], told["calls"]
        else:
            self._tell("RunStarted", self._started())

    # What the workflow does

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:  # noqa: A002 - Temporal's name
        if not self.is_on:
            return await super().execute_workflow(input)
        await self._log.drain()  # so that a run begins with its beginning
        try:
            result = await super().execute_workflow(input)
        except workflow.ContinueAsNewError:
            await self._log.drain()
            raise
        except (asyncio.CancelledError, Exception) as error:
            if is_cancelled_exception(error):
                self._tell("RunCancelled", {"completedAt": _text(workflow.now())})
            elif isinstance(error, self.settings.failures):
                self._tell("RunFailed", _failed(error, workflow.now(), self._began))
            else:
                raise  # a fault of the code: Temporal tries the task again, and the run goes on
            await self._log.drain()
            raise
        self._tell("RunCompleted", {"completedAt": _text(workflow.now())})
        await self._log.drain()
        return result

    async def handle_signal(self, input: HandleSignalInput) -> None:  # noqa: A002 - likewise
        if self.is_on:
            signal = str(workflow.uuid4())
            kind = self.settings.signals.get(input.signal, "SignalAccepted")
            data = {"signalId": signal, "reason": input.signal}
            self._tell(kind, data, caused_by_signal_id=signal)
        await super().handle_signal(input)

    def _started(self) -> dict[str, Any]:
        return {
            "engineRunRef": self._ref,
            "engineType": "temporal",
            "planRef": to_builtins(self._plan),
            "context": to_builtins(self.settings.context),
            "startedAt": _text(self._began),
        }

    def _tell(self, event_type: str, data: dict[str, Any], **more: Any) -> None:
        self._log.add(
            new_event(
                self._run_id,
                event_type,
                data,
                plan_version=self._plan.plan_version,
                engine_run_ref=self._ref,
                adapter_version=_ADAPTER,
                event_id=str(workflow.uuid4()),
                emitted_at=workflow.now(),
                **more,
            )
        )

    # What its activities do

    def step_of(self, activity_type: str, activity_id: str | None) -> _Step:
        """Name the step of a call: by its id, or by its type and how often that was called.

        Calling one id again is a retry of the business: the next attempt of that step.
        """
        name = activity_id or activity_type
        count = self._calls[name] = self._calls.get(name, 0) + 1
        if activity_id is None and count > 1:
            name, count = f"{activity_type}#{count}", 1
        elif activity_id is None:
            count = 1
        return _Step(self._run_id, self._plan.plan_version, name, count, self._ref)

    def follow(self, step: _Step, handle: workflow.ActivityHandle[Any]) -> None:
        """Record how a step ends."""
        began = workflow.now()
        handle.add_done_callback(lambda done: self._step_ended(step, began, done))

    def _step_ended(self, step: _Step, began: datetime, handle: asyncio.Task[Any]) -> None:
        now = workflow.now()
        # The activity has told so, unless no worker took it in time, or the store was away.
        self._log.add(_step_started(step, began, event_id=str(workflow.uuid4())))
        error = asyncio.CancelledError() if handle.cancelled() else handle.exception()
        if error is None:
            data: dict[str, Any] = {
                "completedAt": _text(now),
                "artifactRefs": [],
                "durationMs": _milliseconds(now - began),
            }
            self._tell("StepCompleted", data, step_id=step.step_id, logical_attempt_id=step.attempt)
            return
        self._tell(
            "StepFailed",
            _failed(error, now, began),
            step_id=step.step_id,
            logical_attempt_id=step.attempt,
        )

    def header(self, step: _Step) -> dict[str, Payload]:
        """Write what the activity is told."""
        return {_HEADER: workflow.payload_converter().to_payload(to_builtins(step))}

    def continued_header(self) -> dict[str, Payload]:
        """Write what the execution that continues this one is told."""
        told = {"run_id": self._run_id, "calls": self._calls}
        return {_HEADER: workflow.payload_converter().to_payload(told)}


class _OutboundRecorder(WorkflowOutboundInterceptor):
    """Sees which activities a workflow calls, and when it continues as new."""

    def __init__(self, next: WorkflowOutboundInterceptor, recorder: _WorkflowRecorder) -> None:  # noqa: A002 - Temporal's name
        super().__init__(next)
        self._recorder = recorder

    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:  # noqa: A002 - likewise
        if not self._recorder.is_on:
            return super().start_activity(input)
        step = self._recorder.step_of(input.activity, input.activity_id)
        input.headers = {**input.headers, **self._recorder.header(step)}
        handle = super().start_activity(input)
        self._recorder.follow(step, handle)
        return handle

    def start_local_activity(
        self,
        input: StartLocalActivityInput,  # noqa: A002 - likewise
    ) -> workflow.ActivityHandle[Any]:
        if input.activity == _APPEND or not self._recorder.is_on:
            return super().start_local_activity(input)
        step = self._recorder.step_of(input.activity, input.activity_id)
        input.headers = {**input.headers, **self._recorder.header(step)}
        handle = super().start_local_activity(input)
        self._recorder.follow(step, handle)
        return handle

    def continue_as_new(self, input: ContinueAsNewInput) -> Any:  # noqa: A002 - likewise
        if self._recorder.is_on:
            input.headers = {**input.headers, **self._recorder.continued_header()}
        super().continue_as_new(input)


class _Log:
    """Events on their way to the store, in their order: those that wait go together."""

    def __init__(self) -> None:
        self._waiting: list[NewEvent] = []
        self._sending: asyncio.Task[None] | None = None

    def add(self, event: NewEvent) -> None:
        """Send an event behind those before it."""
        self._waiting.append(event)
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())

    async def drain(self) -> None:
        """Wait until all is written."""
        while self._sending is not None:
            await asyncio.wait([self._sending])

    async def _send(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                try:
                    await workflow.execute_local_activity(
                        _APPEND,
                        [event_to_wire(event) for event in batch],
                        start_to_close_timeout=timedelta(seconds=_APPEND_SECONDS),
                        retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=10)),
                    )
                except ActivityError as error:
                    # It was refused for good, as of a run that was deleted: the work goes on.
                    workflow.logger.error("events of the run were refused: %s", error.cause)
        finally:
            self._sending = None


def _step_started(
    step: _Step, at: datetime, engine_attempt: int | None = None, event_id: str | None = None
) -> NewEvent:
    return new_event(
        step.run_id,
        "StepStarted",
        {"startedAt": _text(at)},
        plan_version=step.plan_version,
        step_id=step.step_id,
        logical_attempt_id=step.attempt,
        engine_attempt_id=engine_attempt,
        engine_run_ref=step.engine_run_ref,
        adapter_version=_ADAPTER,
        event_id=event_id,
        emitted_at=at,
    )


def _failed(error: BaseException, now: datetime, began: datetime) -> dict[str, Any]:
    """Say why a step or a run has failed: by the cause that the code itself has raised."""
    cause = error
    while isinstance(cause, FailureError) and not isinstance(cause, ApplicationError):
        if cause.cause is None:
            break
        cause = cause.cause
    code, retryable, category = type(cause).__name__, False, "application"
    if isinstance(cause, ApplicationError):
        code, retryable = cause.type or code, not cause.non_retryable
    elif is_cancelled_exception(cause):
        code, category = "CANCELLED", "cancelled"
    elif isinstance(cause, TemporalTimeoutError | TimeoutError):
        code, retryable, category = "TIMEOUT", True, "timeout"
    text = cause.message if isinstance(cause, FailureError) else str(cause)
    failure = {"code": code, "message": text, "retryable": retryable, "category": category}
    return {
        "failedAt": _text(now),
        "error": failure,
        "durationMs": _milliseconds(now - began),
    }


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _milliseconds(duration: timedelta) -> int:
    return round(duration.total_seconds() * 1000)
