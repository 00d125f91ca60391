"""Globs over stream paths, and an index that finds the globs that match a path (PROTOCOL 6.2).

A glob is a path in which a segment may be `*`, which matches any one segment, or `**`, which
matches any number of segments, including none. A star within a longer segment is an ordinary
character.

The index is a tree of segments, in which a path follows all of its matches at once. The cost of a
lookup depends on the length of the path and the number of its matches, not on the number of globs.
"""

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

ONE: Final = "*"
ANY: Final = "**"
_MAX_CACHED_PATHS: Final = 1 << 16

Key = TypeVar("Key", bound=Hashable)


def segments(pattern: str) -> tuple[str, ...]:
    """Split a pattern into segments; several `**` in a row are equivalent to one."""
    parts = pattern.split("/")
    return tuple(
        part
        for part, before in zip(parts, [None, *parts], strict=False)
        if part != ANY or before != ANY
    )


def literal_prefix(pattern: str) -> str:
    """Return the prefix that all matching paths have."""
    fixed: list[str] = []
    for part in pattern.split("/"):
        if part == ANY and fixed:
            return "/".join(fixed)  # `**` may match no segment, so no slash has to follow
        if part in {ONE, ANY}:
            return "/".join([*fixed, ""]) if fixed else ""
        fixed.append(part)
    return pattern


def matches(pattern: str, path: str) -> bool:
    """Return whether a glob matches a path."""
    states = {0}
    parts = segments(pattern)
    for segment in path.split("/"):
        following = set()
        for state in _skip_any(states, parts):
            if state < len(parts):
                if parts[state] == ANY:
                    following.add(state)
                elif parts[state] in {ONE, segment}:
                    following.add(state + 1)
        states = following
    return len(parts) in _skip_any(states, parts)


def _skip_any(states: set[int], parts: tuple[str, ...]) -> set[int]:
    """Add the states after a `**` that matches no segment."""
    return states | {state + 1 for state in states if state < len(parts) and parts[state] == ANY}


class _Node(Generic[Key]):
    __slots__ = ("any", "children", "is_any", "keys", "one")

    def __init__(self, *, is_any: bool = False) -> None:
        self.children: dict[str, _Node[Key]] = {}
        self.one: _Node[Key] | None = None
        self.any: _Node[Key] | None = None
        self.is_any = is_any
        self.keys: set[Key] = set()

    @property
    def empty(self) -> bool:
        return not (self.children or self.keys or self.one or self.any)


class GlobIndex(Generic[Key]):
    """An index of patterns by key."""

    def __init__(self) -> None:
        self._root: _Node[Key] = _Node()
        self._patterns: dict[Key, str] = {}
        # The same streams are appended to repeatedly, so the matches of a path are cached.
        self._cached: dict[str, tuple[Key, ...]] = {}

    def __len__(self) -> int:
        return len(self._patterns)

    def add(self, key: Key, pattern: str) -> None:
        """Add a pattern under a key, replacing the present one."""
        self.remove(key)
        self._patterns[key] = pattern
        self._cached.clear()
        self._walk(pattern)[-1].keys.add(key)

    def remove(self, key: Key) -> None:
        """Remove the pattern under a key, if there is one."""
        pattern = self._patterns.pop(key, None)
        if pattern is None:
            return
        self._cached.clear()
        nodes = self._walk(pattern)
        nodes[-1].keys.discard(key)
        for parent, segment, node in reversed(
            list(zip(nodes, segments(pattern), nodes[1:], strict=False))
        ):
            if not node.empty:
                return
            if segment == ONE:
                parent.one = None
            elif segment == ANY:
                parent.any = None
            else:
                del parent.children[segment]

    def match(self, path: str) -> tuple[Key, ...]:
        """Return the keys of all patterns that match a path."""
        keys = self._cached.get(path)
        if keys is None:
            if not self._patterns:
                return ()
            keys = tuple(self._find(path))
            if len(self._cached) >= _MAX_CACHED_PATHS:
                self._cached.clear()
            self._cached[path] = keys
        return keys

    def _walk(self, pattern: str) -> list[_Node[Key]]:
        """Return the nodes of a pattern from the root, creating those that are missing."""
        node = self._root
        nodes = [node]
        for segment in segments(pattern):
            if segment == ONE:
                node.one = node.one or _Node()
                node = node.one
            elif segment == ANY:
                node.any = node.any or _Node(is_any=True)
                node = node.any
            else:
                node = node.children.setdefault(segment, _Node())
            nodes.append(node)
        return nodes

    def _find(self, path: str) -> set[Key]:
        active = _reached({self._root})
        for segment in path.split("/"):
            following: set[_Node[Key]] = set()
            for node in active:
                child = node.children.get(segment)
                if child is not None:
                    following.add(child)
                if node.one is not None:
                    following.add(node.one)
                if node.is_any:
                    following.add(node)
            if not following:
                return set()
            active = _reached(following)
        return set().union(*(node.keys for node in active))


def _reached(nodes: set[_Node[Key]]) -> set[_Node[Key]]:
    """Add the children for `**`, which may match no segment."""
    return nodes | {node.any for node in nodes if node.any is not None}
