"""Every kind of schema checks and writes values through one interface."""

from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from headwater.errors import InvalidEvent, InvalidValue, SchemaError
from headwater.state import collection, validator_for


class Model(pydantic.BaseModel):
    id: str
    n: int


class Plain(msgspec.Struct):
    id: str
    n: int


@dataclass
class Data:
    id: str
    n: int


class Typed(TypedDict):
    id: str
    n: int


def function(value: Any) -> Any:
    if not isinstance(value["n"], int):
        raise TypeError("n must be a number")
    return value


DOCUMENT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["id", "n"]}


@pytest.mark.parametrize("schema", [Model, Plain, Data, Typed, function, DOCUMENT])
def test_a_schema_takes_what_fits_and_refuses_what_does_not(schema: Any) -> None:
    definition = collection(schema, type="t", key="id")
    value = definition.validator.decode(b'{"id":"a","n":1}')
    event = definition.insert(value)
    assert (event.key, event.value) == ("a", {"id": "a", "n": 1})
    for bad in (b'{"id":"a","n":"x"}', b"[]", b"null"):
        assert definition.violation("a", bad)
    with pytest.raises(InvalidValue):
        definition.insert({"id": "a", "n": "x"})


def test_fingerprints_tell_schemas_apart() -> None:
    prints = {validator_for(each).fingerprint for each in (Model, Plain, Data, DOCUMENT, None, int)}
    assert len(prints) >= 5
    assert validator_for(Plain).fingerprint == validator_for(Plain).fingerprint


def test_what_is_no_schema_is_refused() -> None:
    with pytest.raises(SchemaError, match="can't be used as a schema"):
        validator_for(5)
    with pytest.raises(SchemaError, match="is not valid at"):
        validator_for({"type": "nothing"})
    with pytest.raises(SchemaError, match="on_invalid='ignore'"):
        collection(type="t", on_invalid="ignore")  # type: ignore[call-overload] # wrong on purpose


def test_a_key_comes_from_the_value_or_is_asked_for() -> None:
    numbers = collection(dict, type="t", key="id")
    assert numbers.insert({"id": 7}).key == "7"
    assert numbers.delete(old_value={"id": "x"}).key == "x"
    with pytest.raises(InvalidEvent, match="key is missing"):
        numbers.insert({"id": ""})
    with pytest.raises(InvalidEvent, match=r"headers\.timestamp must be an RFC 3339"):
        numbers.insert({"id": "x"}, timestamp="now")
