"""What is wrong with a pipeline: where, and what to do about it."""

from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct


class Problem(Struct, frozen=True):
    """One line for the person who wrote the pipeline."""

    where: str
    """The field, such as `source.stream`; empty for a file as a whole, which is named before it."""
    what: str
    is_warning: bool = False

    def __str__(self) -> str:
        kind = "warning" if self.is_warning else "error"
        return f"{kind}: {self.told}"

    @property
    def told(self) -> str:
        """Say it where its kind is known."""
        return f"{self.where}: {self.what}" if self.where else self.what


def are_fatal(problems: Iterable[Problem]) -> bool:
    """Tell whether the pipeline can't run."""
    return any(not problem.is_warning for problem in problems)


def is_within(place: str, other: str) -> bool:
    """Tell whether a place is another one, or a part of it."""
    return place == other or place.startswith(f"{other}.")


def is_known(place: str, unknown: Collection[str]) -> bool:
    """Tell whether nothing of a place is unknown, nor what it is a part of."""
    return not any(is_within(place, each) or is_within(each, place) for each in unknown)


def sorted_problems(problems: Sequence[Problem]) -> list[Problem]:
    """Put what stops the pipeline before what does not."""
    return sorted(dict.fromkeys(problems), key=lambda problem: problem.is_warning)
