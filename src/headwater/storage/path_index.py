"""Paths in their order, for listing them page by page.

A set says which paths there are; the sorted list is brought up to date when it is asked for, so
that creating a stream costs no more than adding to a set, and a page no more than what it holds.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

_SPARE: Final = 1024


class PathIndex:
    """A set of paths that can be listed from any place."""

    __slots__ = ("_added", "_paths", "_sorted")

    def __init__(self) -> None:
        self._paths: set[str] = set()
        self._sorted: list[str] = []
        """May hold paths that are gone, and a path twice that went and came back."""
        self._added: list[str] = []

    def add(self, path: str) -> None:
        """Take a path in."""
        if path not in self._paths:
            self._paths.add(path)
            self._added.append(path)
            if self._is_mostly_gone():
                self._sort()

    def discard(self, path: str) -> None:
        """Let go of a path, if it is here."""
        self._paths.discard(path)

    def behind(self, after: str, prefix: str) -> Iterator[str]:
        """Give the paths with a prefix that sort behind another, in order."""
        self._sort()
        paths = self._sorted
        place = max(bisect_left(paths, prefix), bisect_right(paths, after))
        last = after
        while place < len(paths) and paths[place].startswith(prefix):
            path = paths[place]
            place += 1
            if path != last and path in self._paths:
                last = path
                yield path

    def _is_mostly_gone(self) -> bool:
        return len(self._sorted) + len(self._added) > 2 * len(self._paths) + _SPARE

    def _sort(self) -> None:
        if self._is_mostly_gone():
            self._sorted = sorted(self._paths)
        elif self._added:
            self._sorted = sorted(self._sorted + self._added)  # two runs: hardly more than a copy
        self._added = []
