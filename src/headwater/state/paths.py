"""Members of values by their path, such as `author.name`."""

from collections.abc import Mapping
from typing import Any


def member(value: Any, path: str) -> Any:
    """Find a member of a decoded value, of a mapping or of an object; None where there is none."""
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
        if value is None:
            return None
    return value
