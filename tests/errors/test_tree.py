"""The public error tree: its drawing, its names, and what can be imported."""

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from headwater import errors
from headwater.errors import HeadwaterError

MODULES = [
    path.stem for path in Path(errors.__file__).parent.glob("*.py") if path.stem != "__init__"
]


def drawn(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield each name of the drawing with the name that it hangs from."""
    parents: list[str] = []
    for line in text.splitlines():
        if found := re.match(r"    ((?:│   |    )*(?:[├└]── )?)([A-Z]\w+)", line):
            depth = len(found[1]) // 4
            del parents[depth:]
            yield found[2], parents[-1] if parents else None
            parents.append(found[2])


def defined() -> Iterator[type[HeadwaterError]]:
    for module in MODULES:
        for value in vars(import_module(f"headwater.errors.{module}")).values():
            if isinstance(value, type) and issubclass(value, HeadwaterError):
                yield value


def test_the_docstring_draws_every_error_below_its_base() -> None:
    tree = dict(drawn(errors.__doc__ or ""))
    assert tree.pop("HeadwaterError") is None
    classes = {each.__name__: each.__bases__[0].__name__ for each in defined()}
    del classes["HeadwaterError"]
    assert tree == classes


def test_every_error_is_imported_from_the_package_and_says_so() -> None:
    for error in defined():
        assert getattr(errors, error.__name__) is error
        assert error.__module__ == "headwater.errors"


def test_the_package_exports_errors_only() -> None:
    exported = {name for name in vars(errors) if not name.startswith("_")}
    assert exported == {each.__name__ for each in defined()} | set(MODULES)
