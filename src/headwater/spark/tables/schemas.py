"""Schemas of tables, in which everything may be null.

That `1 AS n` is never null is a fact about one batch: it must not bind those that come later.
"""

import pyarrow as pa


def nullable(schema: pa.Schema) -> pa.Schema:
    """Give a schema whose fields may be null, those within others too."""
    return pa.schema([_nullable(field) for field in schema])


def nullable_type(kind: pa.DataType) -> pa.DataType:
    """Give a type whose parts may be null; the keys of a map never are."""
    if pa.types.is_struct(kind):
        return pa.struct([_nullable(kind.field(at)) for at in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, _nullable(kind.item_field))
    if pa.types.is_list(kind):
        return pa.list_(_nullable(kind.value_field))
    return kind


def _nullable(field: pa.Field) -> pa.Field:
    return field.with_nullable(True).with_type(nullable_type(field.type))
