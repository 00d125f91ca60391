"""The one sentence in what Spark says when something fails: its texts are pages of stack traces."""

import re
from typing import Final

_OURS: Final = re.compile(r"headwater\.errors\.\w+: (.+)")
_PYTHON: Final = re.compile(
    r"^(?:\w+\.)*(\w+(?:Error|Exception|Exit|Interrupt)): (.+)$", re.MULTILINE
)
_JAVA: Final = re.compile(r"^: [\w.$]+: (.+)$", re.MULTILINE)
_CONDITION: Final = re.compile(r"^\[[\w.]+\] ")
_STATE: Final = re.compile(r"\.? SQLSTATE: \w+")
_LONGEST: Final = 600
_TRACE: Final = "Traceback (most recent call last)"


def reason_of(error: BaseException | str) -> str:
    """Find what a person has to know: our own error, a Python error, or Spark's first line."""
    text = str(error).strip()
    ours = _OURS.findall(text)
    if ours:
        return _ended(ours[-1])
    python = _PYTHON.findall(text[text.rindex(_TRACE) :]) if _TRACE in text else []
    if python:
        kind, what = python[-1]
        return _ended(f"{kind}: {what}")
    java = _JAVA.search(text) if text.startswith("An error occurred while calling") else None
    if java is not None:
        return _ended(_STATE.sub("", _CONDITION.sub("", java[1])))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return _ended(type(error).__name__)
    return _ended(_STATE.sub("", _CONDITION.sub("", lines[0])).rstrip(";"))


def _ended(text: str) -> str:
    text = text.strip()
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
    return short if short.endswith((".", "!", "?", "…")) else f"{short}."
