"""Journal records: the complete effect of one request.

    length u32 | crc u32 | kind u8 | stream u64 | payload

All numbers are little-endian. The journal adds length and checksum, which starts from its own seed.
Payloads:

    CREATE   meta length u32 | meta (msgpack) | first bytes
    APPEND   start u64 | time f64 | extras length u32 | extras (msgpack) | bytes
    DELETE   time f64
    KEEP     documents (msgpack): key to value, nil for a deleted one; the stream is 0

`start` is the position of the bytes in their stream. A record that is replayed over a state that
already has its bytes changes nothing.
"""

from collections.abc import Mapping
from struct import Struct as Layout
from typing import Final

import msgspec

from headwater.protocol.lifecycle import NewStream

CREATE: Final = 1
APPEND: Final = 2
DELETE: Final = 3
KEEP: Final = 4

HEADER: Final = Layout("<II")
_PREFIX: Final = Layout("<BQ")
_APPEND: Final = Layout("<BQQdI")
_META: Final = Layout("<BQI")
_DELETE: Final = Layout("<BQd")
MIN_LENGTH: Final = _PREFIX.size
MAX_LENGTH: Final = 2**31
"""Every record is shorter than this."""
_SPLIT_BYTES: Final = 8 * 1024


class CreateMeta(msgspec.Struct, array_like=True, frozen=True):
    """The configuration of a new stream, and its fork point."""

    path: str
    content_type: str
    ttl: int | None
    expires_at: str | None
    instant: float | None
    closed: bool
    now: float
    source_path: str | None = None
    source: int = 0
    anchor: tuple[int, int] = (0, 0)
    sub_offset: int = 0
    at: int = 0


def create_meta(path: str, new: NewStream, source: int, now: float) -> CreateMeta:
    """Describe a new stream, whose source has the number `source` if it is a fork."""
    config = new.config
    expiry = config.expiry
    origin = config.origin
    values = (config.content_type, expiry.ttl, expiry.expires_at, expiry.instant, new.closed, now)
    if origin is None:
        return CreateMeta(path, *values)
    anchor = (origin.anchor.epoch, origin.anchor.byte)
    return CreateMeta(path, *values, origin.source, source, anchor, origin.sub_offset, origin.at)


class AppendExtras(msgspec.Struct, array_like=True, frozen=True):
    """What an append changes besides the bytes; most appends change nothing else."""

    close: bool = False
    seq: str | None = None
    producer: tuple[str, int, int] | None = None


class CreateRecord(msgspec.Struct, frozen=True):
    """A stream was created."""

    stream: int
    meta: CreateMeta
    data: bytes


class AppendRecord(msgspec.Struct, frozen=True):
    """Bytes were appended to a stream, it was closed, or both."""

    stream: int
    start: int
    now: float
    extras: AppendExtras
    data: bytes


class DeleteRecord(msgspec.Struct, frozen=True):
    """A stream was deleted by a client, or expired."""

    stream: int
    now: float


class KeepRecord(msgspec.Struct, frozen=True):
    """Documents were written or deleted, all of them together."""

    stream: int
    """Always 0: documents belong to no stream."""
    documents: dict[str, bytes | None]


Record = CreateRecord | AppendRecord | DeleteRecord | KeepRecord

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_meta: Final = msgspec.msgpack.Decoder(CreateMeta).decode
_decode_extras: Final = msgspec.msgpack.Decoder(AppendExtras).decode
_decode_documents: Final = msgspec.msgpack.Decoder(dict[str, bytes | None]).decode
NOTHING_ELSE: Final = AppendExtras()


class DamagedRecord(ValueError):
    """The checksum is right, but the bytes are not a valid record."""


def encode_append(
    stream: int, start: int, now: float, extras: AppendExtras, data: bytes
) -> list[bytes]:
    """Encode an append in one part, or in two so that large data is not copied."""
    if extras is NOTHING_ELSE:
        head = _APPEND.pack(APPEND, stream, start, now, 0)
    else:
        more = _encode(extras)
        head = _APPEND.pack(APPEND, stream, start, now, len(more)) + more
    return _parts(head, data)


def encode_create(stream: int, meta: CreateMeta, data: bytes) -> list[bytes]:
    """Encode a creation in one part or two."""
    encoded = _encode(meta)
    return _parts(_META.pack(CREATE, stream, len(encoded)) + encoded, data)


def encode_delete(stream: int, now: float) -> list[bytes]:
    """Encode a deletion."""
    return [_DELETE.pack(DELETE, stream, now)]


def encode_keep(documents: Mapping[str, bytes | None]) -> list[bytes]:
    """Encode a change of documents."""
    return [_PREFIX.pack(KEEP, 0) + _encode(documents)]


def _parts(head: bytes, data: bytes) -> list[bytes]:
    return [head + data] if len(data) <= _SPLIT_BYTES else [head, data]


def decode(body: bytes) -> Record:
    """Decode the body of a record, whose checksum was verified."""
    kind = body[0]
    try:
        if kind == APPEND:
            _, stream, start, now, length = _APPEND.unpack_from(body)
            end = _APPEND.size + length
            extras = _decode_extras(body[_APPEND.size : end]) if length else NOTHING_ELSE
            return AppendRecord(stream, start, now, extras, body[end:])
        if kind == CREATE:
            _, stream, length = _META.unpack_from(body)
            end = _META.size + length
            return CreateRecord(stream, _decode_meta(body[_META.size : end]), body[end:])
        if kind == DELETE:
            _, stream, now = _DELETE.unpack_from(body)
            return DeleteRecord(stream, now)
        if kind == KEEP:
            return KeepRecord(0, _decode_documents(body[_PREFIX.size :]))
    except Exception as error:
        raise DamagedRecord(f"a record of kind {kind} can't be read: {error}") from error
    raise DamagedRecord(f"records of kind {kind} are not known to this version")


def stream_of(body: bytes) -> int:
    """Return the number of the stream that a record belongs to."""
    number: int = _PREFIX.unpack_from(body)[1]
    return number
