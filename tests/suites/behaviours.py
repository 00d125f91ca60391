"""How a suite runs: its behaviours are coroutines, each on a loop and an open store of its own."""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from headwater.storage.store import Store

Suite = TypeVar("Suite")


def runs_behaviours(suite: type[Suite]) -> type[Suite]:
    """Make every `async def test_…` of a class a plain test over the `store` fixture."""
    for name, test in list(vars(suite).items()):
        if name.startswith("test_") and inspect.iscoroutinefunction(test):
            setattr(suite, name, _plain(test))
    return suite


def _plain(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(self: object, store: Store, **given: Any) -> None:
        async def scenario() -> None:
            await store.open()
            try:
                await test(self, store, **given)
            finally:
                await store.close()

        asyncio.run(scenario())

    return run
