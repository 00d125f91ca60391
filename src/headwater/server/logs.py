"""Structured log lines: `key=value` text for people, JSON for machines. Never a payload."""

import json
import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

_CONVERSION: Final = r"%[-#0+]*\d*(?:\.\d+)?[a-zA-Z%]"
"""A conversion of a message, such as `%s` or `%.2f`."""
_PART: Final = re.compile(
    rf"\s*\b(?P<key>\w+)=(?P<value>(?:{_CONVERSION}|\S)+?)(?=[,;:.]?(?:\s|$))|{_CONVERSION}"
)
"""`key=value`, or a conversion outside of one."""


class TextFormatter(logging.Formatter):
    """`time level logger message key=value …`."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)} {record.levelname.lower():7} {record.name} {record.getMessage()}"
        # A value from the wire must not start a line of its own.
        line = line.replace("\r", "\\r").replace("\n", "\\n")
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object a line, with the `key=value` pairs of the message as members."""

    def format(self, record: logging.LogRecord) -> str:
        event, fields = _event_and_fields(record)
        document = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": event,
            **fields,
        }
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document)


def _event_and_fields(record: logging.LogRecord) -> tuple[str, dict[str, str]]:
    """Separate the `key=value` pairs of a message from the rest of it.

    They are found before the arguments are filled in: an argument may hold spaces, or `key=value`.
    """
    if isinstance(record.args, Mapping):  # the message names its arguments, none of ours does
        return record.getMessage(), {}
    arguments = iter(record.args or ())
    fields: dict[str, str] = {}

    def fill(conversion: re.Match[str]) -> str:
        text = conversion.group()
        return "%" if text.endswith("%") else text % (next(arguments),)

    def take(part: re.Match[str]) -> str:
        key, value = part["key"], part["value"]
        if key is None:
            return fill(part) if record.args else part.group()
        fields[key] = re.sub(_CONVERSION, fill, value) if record.args else value
        return ""

    event = _PART.sub(take, str(record.msg))
    return event.strip(), fields


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def configure(level: str, form: str) -> None:
    """Send the log of this process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger("headwater")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
