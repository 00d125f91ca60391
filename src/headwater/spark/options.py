"""The options of source and sink, checked before anything runs. Spark gives names in any case."""

import difflib
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from headwater.client import TIMEOUT, Client, Retry, is_url
from headwater.errors import BadOption, ClientError
from headwater.protocol.content_types import JSON
from headwater.protocol.globs import ANY, ONE, matches
from headwater.protocol.paths import parse_path, url_path

log: Final = logging.getLogger("headwater.spark")

Mode = Literal["raw", "state", "runs", "json"]
Position = Literal["earliest", "latest"]

MODES: Final = ("raw", "state", "runs", "json")
VALUE_TYPES: Final = ("string", "binary", "variant")
_LONGEST: Final = 1 << 20
"""No path of a stream has so many bytes."""
SPLIT_BYTES: Final = 64 * 1024 * 1024
WAIT_SECONDS: Final = 1.0
MAX_WAIT: Final = 20.0
PATIENT: Final = Retry(attempts=17)
"""So a server that restarts is waited for: about half a minute."""

_SERVER: Final = ("url", "stream", "headers", "token", "timeoutSeconds")
_SOURCE: Final = (
    *_SERVER,
    "mode",
    "valueType",
    "startingOffsets",
    "endingOffsets",
    "maxBytesPerTrigger",
    "splitBytes",
    "failOnDataLoss",
    "onCorrupt",
    "waitSeconds",
    "types",
    "pushFilters",
)
_SINK: Final = (*_SERVER, "contentType", "createStreams", "writeId", "batchId")
_BETWEEN_US: Final = ("packing",)
"""What a job of ours tells the source."""
_SPARKS_OWN: Final = ("path", "checkpointlocation", "queryname")


class Server(Struct, frozen=True):
    """Where the streams are, and what goes with every request."""

    url: str
    headers: Mapping[str, str] = {}
    token: str | None = None
    timeout: float = TIMEOUT

    def client(self, retry: Retry = PATIENT) -> Client:
        """Make a client; a task makes its own."""
        return Client(
            self.url,
            headers=self.headers or None,
            auth=self.token,
            retry=retry,
            timeout=self.timeout,
            live_timeout=MAX_WAIT + self.timeout,
            on_retry=_tell,
        )


def _tell(error: ClientError, seconds: float) -> None:
    log.warning("trying again in %.1f s error=%s", seconds, error)


class SourceOptions(Struct, frozen=True):
    """What to read, and how."""

    server: Server
    streams: tuple[str, ...]
    """Paths and globs."""
    mode: Mode | None = None
    value_type: str = "string"
    starting: Position | Mapping[str, str] = "earliest"
    ending: Position | Mapping[str, str] = "latest"
    max_bytes: int | None = None
    split_bytes: int = SPLIT_BYTES
    fail_on_data_loss: bool = True
    corrupt_column: bool = False
    wait: float = WAIT_SECONDS
    types: frozenset[str] | None = None
    """In mode `state`: the only types of changes that are wanted."""
    push_filters: bool = False
    """Whether filters of the query are taken into account: such a DataFrame is for one query."""
    packing: str | None = None
    """How changes are packed, for the job that materialises: see `transforms.changes`."""


class SinkOptions(Struct, frozen=True):
    """Where to write, and how."""

    server: Server
    stream: str | None = None
    """Where rows go that name no stream."""
    content_type: str = JSON
    create: bool = True
    write_id: str | None = None
    batch_id: int = 0


def source_options(given: Mapping[str, str]) -> SourceOptions:
    """Read the options of the source."""
    options = _lowered(given, _SOURCE, _BETWEEN_US)
    mode = _choice(options, "mode", (*MODES, ""), "")
    streams = _streams(options)
    return SourceOptions(
        server=_server(options),
        streams=streams,
        mode=mode or None,  # type: ignore[arg-type] # it is one of MODES
        value_type=_choice(options, "valueType", VALUE_TYPES, "string"),
        starting=_offsets(options, "startingOffsets", "earliest", streams),
        ending=_offsets(options, "endingOffsets", "latest", streams),
        max_bytes=_integer(options, "maxBytesPerTrigger", None),
        split_bytes=_integer(options, "splitBytes", SPLIT_BYTES) or SPLIT_BYTES,
        fail_on_data_loss=_boolean(options, "failOnDataLoss", default=True),
        corrupt_column=_choice(options, "onCorrupt", ("fail", "column"), "fail") == "column",
        wait=_seconds(options, "waitSeconds", WAIT_SECONDS, MAX_WAIT),
        types=_types(options, mode),
        push_filters=_boolean(options, "pushFilters", default=False),
        packing=options.get("packing"),
    )


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Read the options of the sink."""
    options = _lowered(given, _SINK)
    stream = options.get("stream", options.get("path", "")).strip().strip("/")
    if is_glob(stream):
        raise BadOption("stream", "a glob can't be written to: name one stream, or use a column")
    if stream and not is_path(stream):
        raise BadOption("stream", "it is the path of a stream; the server is named by 'url'")
    batch = options.get("batchid", "0")
    if not (batch.isascii() and batch.isdigit()):
        raise BadOption("batchId", f"'{batch}' is not a number from 0 on")
    if "batchid" in options and "writeid" not in options:
        raise BadOption("batchId", "it counts the batches of a writeId: set that as well")
    return SinkOptions(
        server=_server(options),
        stream=stream or None,
        content_type=options.get("contenttype", JSON),
        create=_boolean(options, "createStreams", default=True),
        write_id=options.get("writeid"),
        batch_id=int(batch),
    )


def is_path(stream: str) -> bool:
    """Tell the path of a stream from a URL, and from what no server takes for one.

    How long it may be is the server's to say. One of spaces alone is nobody's wish.
    """
    parsed = parse_path(url_path(stream, "/"), "/", _LONGEST)
    return bool(stream.strip().strip("/")) and not is_url(stream) and isinstance(parsed, str)


def is_writable(stream: str) -> bool:
    """Tell a name under which one stream can be written; slashes around it do not count."""
    path = stream.strip("/")
    return is_path(path) and not is_glob(path)


def is_glob(path: str) -> bool:
    """Tell a glob from the path of one stream."""
    return bool({ONE, ANY} & set(path.split("/")))


def _lowered(
    given: Mapping[str, str], names: Sequence[str], hidden: Sequence[str] = ()
) -> dict[str, str]:
    known = {name.lower(): name for name in names}
    for name in sorted(given):
        if name.lower() not in {*known, *hidden, *_SPARKS_OWN}:
            near = difflib.get_close_matches(name.lower(), known, 1)
            hint = f"did you mean '{known[near[0]]}'?" if near else f"there are {_listed(names)}"
            raise BadOption(name, f"there is none of that name; {hint}")
    return {name.lower(): value for name, value in given.items()}


def _server(options: Mapping[str, str]) -> Server:
    url = options.get("url", "")
    if not url.lower().startswith(("http://", "https://")):
        raise BadOption("url", "set it to the server's URL, such as http://127.0.0.1:4437")
    headers = _json(options, "headers") if "headers" in options else {}
    if not all(isinstance(value, str) and _is_one_line(value) for value in headers.values()):
        raise BadOption("headers", "it is a JSON object of texts without line breaks")
    if not _is_one_line(options.get("token", "")):
        raise BadOption("token", "it holds a line break")
    timeout = _seconds(options, "timeoutSeconds", TIMEOUT, 3600.0)
    if not timeout:
        raise BadOption("timeoutSeconds", "no server answers within 0 seconds")
    server = Server(url.rstrip("/"), headers, options.get("token"), timeout)
    try:
        server.client().close()
    except ValueError as error:
        raise BadOption("url", str(error)) from None
    return server


def _is_one_line(text: str) -> bool:
    return not {"\r", "\n"} & set(text)


def _streams(options: Mapping[str, str]) -> tuple[str, ...]:
    text = options.get("stream", options.get("path", "")).strip()
    if text.startswith("["):
        try:
            names = json.loads(text)
        except ValueError as error:
            raise BadOption("stream", f"it is not a JSON array ({error})") from None
        if not all(isinstance(name, str) for name in names):
            raise BadOption("stream", "a JSON array of it holds texts only")
    else:
        names = text.split(",")
    streams = tuple(dict.fromkeys(name.strip().strip("/") for name in names))
    if not streams or not all(streams):
        raise BadOption("stream", "name a stream, several with commas between, or a glob as a/**")
    return streams


def _types(options: Mapping[str, str], mode: str) -> frozenset[str] | None:
    text = options.get("types")
    if text is None:
        return None
    if mode != "state":
        raise BadOption("types", "only changes have types: set the option mode to 'state'")
    return frozenset(name.strip() for name in text.split(","))


def _offsets(
    options: Mapping[str, str], name: str, default: Position, streams: Sequence[str]
) -> Position | dict[str, str]:
    text = options.get(name.lower(), default).strip()
    if text in {"earliest", "latest"}:
        return text  # type: ignore[return-value] # one of the two
    offsets = _json(options, name)
    if not all(isinstance(value, str) and value for value in offsets.values()):
        raise BadOption(name, "a JSON object of it has an offset for each stream")
    for path in offsets:
        if not any(matches(glob, path) for glob in streams):
            raise BadOption(name, f"'{path}' is none of the streams that are read")
    return offsets


def _json(options: Mapping[str, str], name: str) -> dict[str, Any]:
    text = options[name.lower()]
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise BadOption(name, f"{text!r} is not a JSON object")
    return value


def _choice(options: Mapping[str, str], name: str, choices: tuple[str, ...], default: str) -> str:
    text = options.get(name.lower(), default).strip().lower()
    if text not in choices:
        raise BadOption(name, f"{text!r} is none of {_listed(filter(None, choices))}")
    return text


def _boolean(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    return _choice(options, name, ("true", "false"), str(default).lower()) == "true"


def _integer(options: Mapping[str, str], name: str, default: int | None) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return default
    units = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
    number = text.strip().lower()
    unit = units.get(number[-1:], 1)
    digits = number[:-1] if unit > 1 else number
    if not (digits.isascii() and digits.isdigit() and int(digits) > 0):
        raise BadOption(name, f"{text!r} is no number of bytes, such as 1000000 or 64m")
    return int(digits) * unit


def _seconds(options: Mapping[str, str], name: str, default: float, most: float) -> float:
    text = options.get(name.lower(), str(default))
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= most:
        raise BadOption(name, f"{text!r} is not a number of seconds from 0 to {most:g}")
    return seconds


def _listed(names: Any) -> str:
    return ", ".join(sorted(names))
