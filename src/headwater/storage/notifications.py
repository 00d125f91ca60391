"""Who wants to know when a stream changes."""

from collections.abc import Callable

Wake = Callable[[], None]
Observer = Callable[[str], None]


class Watchers:
    """Wake-up calls by stream path; costs nothing for a stream that nobody watches."""

    __slots__ = ("_by_path", "_observers")

    def __init__(self) -> None:
        self._by_path: dict[str, dict[object, Wake]] = {}
        self._observers: tuple[Observer, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._by_path or self._observers)

    def __contains__(self, path: str) -> bool:
        return path in self._by_path

    def add(self, path: str, wake: Wake) -> Callable[[], None]:
        """Register a call; returns what removes it, which may be called twice."""
        watches = self._by_path.setdefault(path, {})
        key = object()  # the same call may watch more than once
        watches[key] = wake

        def remove() -> None:
            if watches.pop(key, None) is not None and not watches:
                self._by_path.pop(path, None)

        return remove

    def observe(self, tell: Observer) -> Callable[[], None]:
        """Have a call told every path that changes; returns what ends it."""
        self._observers += (tell,)

        def remove() -> None:
            self._observers = tuple(item for item in self._observers if item is not tell)

        return remove

    def wake(self, path: str) -> None:
        """Call everyone who watches a path, and those who observe all of them."""
        for tell in self._observers:
            tell(path)
        watches = self._by_path.get(path)
        if watches:
            for wake in tuple(watches.values()):
                wake()
