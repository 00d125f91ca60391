"""Values as they are kept: the bytes that came, decoded when somebody looks."""

import json
from typing import Any, Final

import msgspec

_ANY: Final = msgspec.json.Decoder()


def decode_value(data: bytes) -> Any:
    """Read a value of any JSON kind."""
    try:
        return _ANY.decode(data)
    except msgspec.DecodeError:
        # JSON allows numbers that no float can hold; Python reads 1e400 as infinity.
        return json.loads(data)


def encode_value(value: Any) -> bytes:
    """Write a value; what JSON can't hold raises `ValueError`."""
    try:
        data = msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise ValueError(f"it is not a JSON value: {error}") from None
    return data
