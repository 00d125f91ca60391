"""The one sentence in what Spark says when something fails: its texts are pages of stack traces."""

import re
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # it ships without types
from pyspark.errors import PySparkException

from headwater.errors import BadPipeline, HeadwaterError
from headwater.spark.pipelines.problems import Problem

_OURS: Final = re.compile(r"headwater\.errors\.\w+: (.+)")
_RAISED: Final = re.compile(r"(?:[\w<>]+\.)*(\w+(?:: .*)?)")
_CALLED: Final = "An error occurred while calling"
_JAVA: Final = re.compile(r"^(?:Caused by)?: (?:[\w$]+\.)*([\w$]+)(?:: (.+))?$", re.MULTILINE)
_LOST: Final = re.compile(r"^Job aborted .*\(.* executor \w+\): [\w.$]+: ")
_CONDITION: Final = re.compile(r"^\[[\w.]+\] ")
_STATE: Final = re.compile(r"\.? SQLSTATE: \w+")
_LONGEST: Final = 600
UNANSWERED: Final = (Py4JError, ConnectionError, PySparkException)
"""What a call raises when there is no Spark any more, in this process or behind Connect."""

_ENDED: Final = re.compile(
    r"Broken pipe|Connection (?:reset|refused)|SparkContext was shut down|Python worker exited"
    r"|spawn helper: pid: \d+, signal: \d+"  # a small program that Java was about to start
    r"|exitCode=(?:130|143)\b"  # one that was running, such as Hadoop's chmod
)
_TRACE: Final = "Traceback (most recent call last)"
_NO_MESSAGE: Final = "=== Streaming Query ==="
"""What the text of a failed query begins with if its cause has no message of its own."""


def is_end_of_spark(error: BaseException) -> bool:
    """Tell what a query fails with when a supervisor ends Spark's processes one by one."""
    return _ENDED.search(reason_of(error)) is not None


def reason_of(error: BaseException | str) -> str:
    """Find what a person has to know: our own error, a Python error, or Spark's first line."""
    if isinstance(error, BadPipeline):
        told = (one.told if isinstance(one, Problem) else str(one) for one in error.problems)
        return f"{'; '.join(told).rstrip('.')}."
    text = str(error).strip()
    cause = getattr(error, "_cause", None)  # of a PySparkException; it has no public name
    if text.startswith(_NO_MESSAGE) and isinstance(cause, BaseException):
        return reason_of(cause)
    ours = _OURS.findall(text)
    if ours:
        return _ended(ours[-1])
    raised = _raised(text)
    java = _java(text) if _CALLED in (raised or text[: len(_CALLED)]) else None
    if java is not None or raised is not None:
        return _ended(java or raised or "")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return _ended(type(error).__name__)
    return _ended(_STATE.sub("", _CONDITION.sub("", lines[0])).rstrip(";"))


def named_reason_of(error: BaseException) -> str:
    """Name a Python error's kind as well, which its text often leans on."""
    reason = reason_of(error)
    if isinstance(error, HeadwaterError | PySparkException | Py4JError):
        return reason
    return f"{type(error).__name__}: {reason}"


def _raised(text: str) -> str | None:
    """Find the exception of the last traceback: below it, the first line that is not indented.

    Its name tells nothing: libraries raise a bare `Exception`, and what ends in no `Error`.
    """
    _, _, trace = text.rpartition(f"{_TRACE}:\n")
    line = next((line for line in trace.splitlines() if line[:1].strip()), "")
    found = _RAISED.fullmatch(line) if trace != text else None
    return None if found is None else found[1]


def _java(text: str) -> str | None:
    """Find the innermost cause that says something, below the call into Java that has failed."""
    _, _, trace = text.rpartition(_CALLED)
    causes = [match.groups("") for match in _JAVA.finditer(trace)]
    if not causes:
        return None
    kind, said = next((cause for cause in reversed(causes) if cause[1]), causes[0])
    if " " not in said:  # such as the name of a class that is not found, or nothing
        return f"{kind}: {said}".removesuffix(": ")
    return _STATE.sub("", _CONDITION.sub("", _LOST.sub("", said)))


def _ended(text: str) -> str:
    text = text.strip()
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
    return short if short.endswith((".", "!", "?", "…")) else f"{short}."
