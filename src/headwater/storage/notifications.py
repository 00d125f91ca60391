"""Notifications of changed streams.

A store reports a change once it is durable and its writer has been acknowledged. Callbacks run in a
later turn of the event loop, once for all changes of a stream in one turn.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

log: Final = logging.getLogger("headwater.storage")

Watcher = Callable[[], None]
Observer = Callable[[str], None]


class Notifications:
    """The watchers of single streams, and the observers of all of them."""

    __slots__ = ("_changed", "_observers", "_watchers")

    def __init__(self) -> None:
        self._watchers: dict[str, dict[object, Watcher]] = {}
        self._observers: tuple[Observer, ...] = ()
        self._changed: dict[str, None] = {}

    def is_watched(self, path: str) -> bool:
        """Return whether a stream has watchers."""
        return path in self._watchers

    def watch(self, path: str, callback: Watcher) -> Callable[[], None]:
        """Call `callback` after each change of a stream, until the returned function is called."""
        watchers = self._watchers.setdefault(path, {})
        key = object()  # the same callback may be registered more than once
        watchers[key] = callback

        def unwatch() -> None:
            if watchers.pop(key, None) is not None and not watchers:
                self._watchers.pop(path, None)

        return unwatch

    def observe(self, callback: Observer) -> Callable[[], None]:
        """Call `callback` with each path that changes, until the returned function is called."""
        self._observers += (callback,)

        def unobserve() -> None:
            self._observers = tuple(item for item in self._observers if item is not callback)

        return unobserve

    def changed(self, paths: Iterable[str]) -> None:
        """Schedule the calls for streams that have changed."""
        if not self._observers and not self._watchers:
            return
        if not self._changed:
            asyncio.get_running_loop().call_soon(self._deliver)
        self._changed.update(dict.fromkeys(paths))

    def _deliver(self) -> None:
        changed, self._changed = self._changed, {}
        for path in changed:
            for observer in self._observers:
                _call(partial(observer, path))
            for watcher in tuple(self._watchers.get(path, {}).values()):
                _call(watcher)


def _call(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception:  # the other callbacks must run
        log.exception("notifying readers failed")
