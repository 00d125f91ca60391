"""Validators: one small interface over everything that can say what a value must look like.

It is Python's counterpart of Standard Schema. A validator reads a value from JSON and writes it
back. Pydantic and jsonschema are used where a schema asks for them; nothing else needs them.
"""

import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import msgspec

from headwater.errors import SchemaError
from headwater.state.values import decode_value, encode_value

T = TypeVar("T")


@runtime_checkable
class Validator(Protocol[T]):
    """What a collection asks of its schema. Anything with these members is one."""

    fingerprint: str
    """Changes when the schema does, as far as that can be told."""

    def decode(self, data: bytes) -> T:
        """Read a value from JSON; raise `ValueError` with the reason where it does not fit."""
        ...

    def encode(self, value: T) -> bytes:
        """Write a value as JSON; raise `ValueError` where that can't be done."""
        ...


def validator_for(schema: Any) -> Validator[Any]:
    """Find the validator of a schema.

    A schema is a Pydantic model, a msgspec Struct, a dataclass, a TypedDict or any other type that
    msgspec reads; a JSON Schema document as a dict; a validator; any callable that returns the
    value or raises `ValueError`; or None, which any JSON value fits.
    """
    if schema is None:
        return AnyValue()
    if isinstance(schema, Mapping):
        return JsonSchema(schema)
    if not isinstance(schema, type) and isinstance(schema, Validator):
        return schema
    if hasattr(schema, "model_validate_json"):
        return PydanticModel(schema)
    try:
        return TypedValue(schema)
    except TypeError as error:
        if callable(schema) and not isinstance(schema, type):
            return CallableValidator(schema)
        raise SchemaError(
            f"{schema!r} can't be used as a schema: {error}. Use a Pydantic model, a msgspec "
            "Struct, a dataclass, a TypedDict, a JSON Schema document or a callable."
        ) from None


class AnyValue:
    """Any JSON value, null included."""

    fingerprint = "any"

    def decode(self, data: bytes) -> Any:
        """Read whatever is there."""
        return decode_value(data)

    def encode(self, value: Any) -> bytes:
        """Write whatever is there."""
        return encode_value(value)


class TypedValue(Generic[T]):
    """A type that msgspec reads: Struct, dataclass, TypedDict, builtin, or a union of them."""

    def __init__(self, type: Any) -> None:
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(type)
        self.fingerprint = _fingerprint(_document(type))

    def decode(self, data: bytes) -> T:
        """Read the value, strictly: a number in quotes is no number."""
        try:
            return self._decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise ValueError(str(error)) from None

    def encode(self, value: T) -> bytes:
        """Write the value."""
        return encode_value(value)


class PydanticModel:
    """A Pydantic model, as strict or lenient as its configuration says."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.fingerprint = _fingerprint(model.model_json_schema())

    def decode(self, data: bytes) -> Any:
        """Read the value; Pydantic's own error is a `ValueError` with all reasons."""
        try:
            return self._model.model_validate_json(data)
        except ValueError as error:
            raise ValueError(_one_line(error)) from None

    def encode(self, value: Any) -> bytes:
        """Write an instance by its aliases, which are what it is read by, or plain data."""
        if not isinstance(value, self._model):
            return encode_value(value)
        written: str = value.model_dump_json(by_alias=True)
        return written.encode()


class JsonSchema:
    """A JSON Schema document, of any draft that the jsonschema package knows."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        try:
            import jsonschema  # noqa: PLC0415 - only those who use it need it
        except ImportError:
            raise SchemaError(
                "A JSON Schema document needs the jsonschema package: pip install jsonschema."
            ) from None
        kind = jsonschema.validators.validator_for(
            document, default=jsonschema.Draft202012Validator
        )
        try:
            kind.check_schema(document)
        except jsonschema.SchemaError as error:
            raise SchemaError(
                f"A JSON Schema document is not valid at {error.json_path}: {error.message}."
            ) from None
        self._validator = kind(document)
        self.fingerprint = _fingerprint(document)

    def decode(self, data: bytes) -> Any:
        """Read the value; of all errors the most telling is given."""
        value = decode_value(data)
        errors = sorted(self._validator.iter_errors(value), key=lambda error: len(error.path))
        if errors:
            raise ValueError(f"{errors[0].message} - at `{errors[0].json_path}`")
        return value

    def encode(self, value: Any) -> bytes:
        """Write the value."""
        return encode_value(value)


class CallableValidator:
    """A function from a JSON value to the value; it raises `ValueError` where it does not fit."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        try:
            source = inspect.getsource(function)
        except (OSError, TypeError):
            source = getattr(function, "__qualname__", repr(type(function)))
        self.fingerprint = _fingerprint(source)

    def decode(self, data: bytes) -> Any:
        """Read the value and hand it to the function."""
        try:
            return self._function(decode_value(data))
        except (ValueError, TypeError, KeyError, AttributeError, LookupError) as error:
            # A check that trips over data of another kind than it expects has refused it.
            raise ValueError(f"{type(error).__name__}: {error}") from None

    def encode(self, value: Any) -> bytes:
        """Write the value."""
        return encode_value(value)


def _document(type_: Any) -> Any:
    try:
        return msgspec.json.schema(type_)
    except TypeError:
        return repr(type_)


def _fingerprint(described: Any) -> str:
    data = msgspec.json.encode(described, order="sorted", enc_hook=repr)
    return hashlib.sha256(data).hexdigest()[:16]


def _one_line(error: ValueError) -> str:
    """Give the reasons of a Pydantic error without its links and repeated input."""
    details = getattr(error, "errors", None)
    if details is None:
        return str(error)
    return "; ".join(
        f"{each['msg']} - at `{'.'.join(('$', *map(str, each['loc'])))}`"
        for each in details(include_url=False)
    )
