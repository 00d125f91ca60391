"""Log lines as text or as JSON; they never contain a payload.

Log calls pass their fields as `extra`, so a message never has to be parsed:

    log.warning("cut off a torn batch", extra={"file": path, "position": position})
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final

_RECORD_ATTRIBUTES: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
"""Attributes of every record; any others were passed as `extra`."""


class TextFormatter(logging.Formatter):
    """Format a record as `time level logger message key=value …`."""

    def format(self, record: logging.LogRecord) -> str:
        # A value that a client sent must not start a line of its own.
        message = record.getMessage().replace("\r", "\\r").replace("\n", "\\n")
        fields = "".join(f" {name}={_quoted(value)}" for name, value in _fields(record).items())
        line = f"{_time(record)} {record.levelname.lower():7} {record.name} {message}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """Format a record as one JSON object on one line, with the fields as members."""

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        for name, value in _fields(record).items():
            document.setdefault(name, value)
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document, default=str)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _RECORD_ATTRIBUTES}


def _quoted(value: object) -> str:
    """Return a value as text, quoted as in JSON if it would be ambiguous without quotes."""
    text = str(value)
    plain = text.isprintable() and text and not any(char in text for char in ' "=')
    return text if plain else json.dumps(text)


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
