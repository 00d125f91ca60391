"""The JSON Schema of state events, from their types: `python -m headwater.state.json_schema`."""

from typing import Any

import msgspec

from headwater.state.events import ChangeEvent, ControlEvent


def json_schema() -> dict[str, Any]:
    """Describe every message that a state stream may hold."""
    _, parts = msgspec.json.schema_components(
        [ChangeEvent, ControlEvent], ref_template="#/$defs/{name}"
    )
    for name in ("ChangeHeaders", "ControlHeaders"):
        # Headers that the protocol does not name stand beside the others, under any name.
        parts[name]["properties"].pop("others")
        parts[name]["additionalProperties"] = True
    parts["ChangeHeaders"]["not"] = {"required": ["control"]}
    parts["ControlHeaders"]["not"] = {"required": ["operation"]}
    removes = {"properties": {"headers": {"properties": {"operation": {"const": "delete"}}}}}
    parts["ChangeEvent"] |= {"if": removes, "else": {"required": ["value"]}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "State event",
        "anyOf": [{"$ref": "#/$defs/ChangeEvent"}, {"$ref": "#/$defs/ControlEvent"}],
        "$defs": parts,
    }


if __name__ == "__main__":
    print(msgspec.json.format(msgspec.json.encode(json_schema())).decode())  # noqa: T201 - its output
