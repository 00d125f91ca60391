"""Coroutines without a task: their result is reported once, and a cancelled one is closed."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from headwater.server.http1.inline_tasks import InlineTask, start
from headwater.storage.immediate_future import ImmediateFuture

Waits = Callable[[], Awaitable[Any]]


class Handler:
    """A coroutine that waits for something, and what became of it."""

    def __init__(self) -> None:
        self.log: list[object] = []

    def start(self, waits: Waits) -> InlineTask | None:
        return start(self._run(waits), lambda result, error: self.log.append(error or result))

    async def _run(self, waits: Waits) -> str:
        try:
            await waits()
            return "finished"
        finally:
            self.log.append("left")


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    errors: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        await scenario()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert not errors


async def nothing() -> None:
    """Wait for nothing."""


def test_a_coroutine_that_does_not_wait_has_reported_when_start_returns() -> None:
    async def scenario() -> None:
        handler = Handler()
        assert handler.start(nothing) is None
        assert handler.log == ["left", "finished"]

    run(scenario)


def test_an_error_is_reported() -> None:
    async def scenario() -> None:
        async def fail() -> None:
            raise error

        error = ValueError()
        handler = Handler()
        assert handler.start(fail) is None
        assert handler.log == ["left", error]

    run(scenario)


@pytest.mark.parametrize("kind", [asyncio.Future, ImmediateFuture])
def test_a_coroutine_resumes_when_its_future_is_done(kind: Any) -> None:
    async def scenario() -> None:
        handler = Handler()
        future = kind(loop=asyncio.get_running_loop())
        assert handler.start(lambda: future) is not None
        assert handler.log == []
        future.set_result(None)
        await asyncio.sleep(0)
        assert handler.log == ["left", "finished"]

    run(scenario)


@pytest.mark.parametrize("kind", [asyncio.Future, ImmediateFuture])
def test_a_coroutine_that_waits_is_closed_at_once_when_it_is_cancelled(kind: Any) -> None:
    async def scenario() -> None:
        handler = Handler()
        future = kind(loop=asyncio.get_running_loop())
        task = handler.start(lambda: future)
        assert task is not None
        task.cancel()
        assert handler.log == ["left"]
        future.set_result(None)
        await asyncio.sleep(0)
        assert handler.log == ["left"]

    run(scenario)


def test_a_coroutine_whose_future_is_done_is_closed_instead_of_resumed() -> None:
    async def scenario() -> None:
        handler = Handler()
        future = asyncio.get_running_loop().create_future()
        task = handler.start(lambda: future)
        assert task is not None
        future.set_result(None)
        task.cancel()
        await asyncio.sleep(0)
        assert handler.log == ["left"]

    run(scenario)


def test_a_coroutine_that_yields_is_closed_in_the_next_turn() -> None:
    async def scenario() -> None:
        handler = Handler()
        task = handler.start(lambda: asyncio.sleep(0))
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        assert handler.log == ["left"]

    run(scenario)
