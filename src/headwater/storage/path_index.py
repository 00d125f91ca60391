"""An ordered set of paths, for listing streams page by page.

The sorted list is updated only when it is read. So adding a path is as cheap as adding to a set,
and the cost of a page depends on the number of its paths.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

_SPARE: Final = 1024


class PathIndex:
    """A set of paths that can be listed from any position."""

    __slots__ = ("_added", "_paths", "_sorted")

    def __init__(self) -> None:
        self._paths: set[str] = set()
        self._sorted: list[str] = []
        """May contain removed paths, and duplicates of paths that were removed and added again."""
        self._added: list[str] = []

    def add(self, path: str) -> None:
        """Add a path."""
        if path not in self._paths:
            self._paths.add(path)
            self._added.append(path)
            if self._is_mostly_gone():
                self._sort()

    def discard(self, path: str) -> None:
        """Remove a path if it is present."""
        self._paths.discard(path)

    def after(self, path: str, prefix: str) -> Iterator[str]:
        """Yield the paths with a prefix that sort after `path`, in order."""
        self._sort()
        paths = self._sorted
        place = max(bisect_left(paths, prefix), bisect_right(paths, path))
        last = path
        while place < len(paths) and paths[place].startswith(prefix):
            found = paths[place]
            place += 1
            if found != last and found in self._paths:
                last = found
                yield found

    def _is_mostly_gone(self) -> bool:
        return len(self._sorted) + len(self._added) > 2 * len(self._paths) + _SPARE

    def _sort(self) -> None:
        if self._is_mostly_gone():
            self._sorted = sorted(self._paths)
        elif self._added:
            self._sorted = sorted(self._sorted + self._added)  # two sorted runs: close to a copy
        self._added = []
