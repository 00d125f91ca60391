"""Where types hold variants, which no field of a message is read as or written from."""

from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType


def holds_variants(kind: DataType) -> bool:
    """Tell whether a type is a variant, or has one within."""
    match kind:
        case StructType():
            return any(holds_variants(field.dataType) for field in kind.fields)
        case ArrayType():
            return holds_variants(kind.elementType)
        case MapType():
            return holds_variants(kind.valueType)
        case _:
            return isinstance(kind, VariantType)
