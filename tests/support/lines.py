"""How much work something is, told by the lines of Python that run: no busy machine changes it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import FrameType
from typing import Any, TypeAlias

TraceFunction: TypeAlias = Callable[[FrameType, str, Any], "TraceFunction"]


@contextmanager
def counted_lines() -> Iterator["count[int]"]:
    """Count the lines of Python that run in a block; what runs in C is not seen."""
    lines = count()

    def trace(_: FrameType, event: str, __: object) -> TraceFunction:
        if event == "line":
            next(lines)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(before)
