"""Structured log lines: `key=value` text for people, JSON for machines. Never a payload."""

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Final

_FIELD: Final = re.compile(r"(\w+)=(\S+)")


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
        message = record.getMessage()
        document = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": _FIELD.sub("", message).strip(),
            **dict(_FIELD.findall(message)),
        }
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document)


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
