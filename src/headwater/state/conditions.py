"""Conditions on rows: `field("age") >= 18`, put together with `&`, `|` and `~`."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from headwater.state.paths import member


class Condition:
    """Whether a row is wanted."""

    def __init__(
        self, test: Callable[[Any], bool], equals: Mapping[str, Any] | None = None
    ) -> None:
        self._test = test
        self.equals: Mapping[str, Any] = equals or {}
        """Members that must equal a value, so that an index can find the rows."""

    def __call__(self, row: Any) -> bool:
        return self._test(row)

    def __and__(self, other: "Condition") -> "Condition":
        return Condition(lambda row: self(row) and other(row), {**self.equals, **other.equals})

    def __or__(self, other: "Condition") -> "Condition":
        return Condition(lambda row: self(row) or other(row))

    def __invert__(self) -> "Condition":
        return Condition(lambda row: not self(row))

    def __bool__(self) -> NoReturn:
        raise TypeError("conditions are put together with &, | and ~, not with and, or and not")


class Field:
    """A member of a row; comparing it gives a condition."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __eq__(self, other: object) -> Condition:  # type: ignore[override]  # builds a condition
        return Condition(lambda row: bool(self._of(row) == other), {self.path: other})

    def __ne__(self, other: object) -> Condition:  # type: ignore[override]  # builds a condition
        return Condition(lambda row: bool(self._of(row) != other))

    __hash__ = None  # type: ignore[assignment]  # equality does not compare fields

    def __lt__(self, other: Any) -> Condition:
        return self._compared(lambda value: value < other)

    def __le__(self, other: Any) -> Condition:
        return self._compared(lambda value: value <= other)

    def __gt__(self, other: Any) -> Condition:
        return self._compared(lambda value: value > other)

    def __ge__(self, other: Any) -> Condition:
        return self._compared(lambda value: value >= other)

    def is_in(self, values: Any) -> Condition:
        """Want rows whose member is one of several values."""
        return Condition(lambda row: self._of(row) in values)

    def contains(self, value: Any) -> Condition:
        """Want rows whose member, a text or a list, contains a value."""
        return self._compared(lambda held: value in held)

    def _of(self, row: Any) -> Any:
        return member(row, self.path)

    def _compared(self, test: Callable[[Any], bool]) -> Condition:
        def check(row: Any) -> bool:
            try:
                return bool(test(self._of(row)))
            except TypeError:
                return False  # what can't be compared is neither less nor greater

        return Condition(check)


def field(path: str) -> Field:
    """Name a member of rows, such as `name` or `author.name`."""
    return Field(path)


ANYTHING: Final = Condition(lambda _: True)


def condition(
    given: "Condition | Callable[[Any], bool] | None", equals: Mapping[str, Any]
) -> Condition:
    """Put together what `where` was given: a condition or a function, and members by name."""
    whole = ANYTHING
    if given is not None:
        whole = given if isinstance(given, Condition) else Condition(given)
    for path, value in equals.items():
        equal = Field(path.replace("__", ".")) == value
        whole = equal if whole is ANYTHING else whole & equal
    return whole
