"""Changes as the job that materialises wants them: many in one row, parted by type and bucket.

A row of the kind `changes` has those of one type and bucket from some thousand messages, `aside`
what is to be kept aside, and `controls` what controls say, with how many `messages` these were made
of and how many of them are `aside`. See docs/decisions/0036.
"""

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

BUCKET: Final = "_bucket"
"""The column that says which bucket of a keyed table rows belong to."""
PACKED: Final = "_rows"
"""The column that holds many rows as one value."""
OBSERVED: Final = "headwater"
"""The name under which a query's progress has how many `rows` its packed ones stand for.

And how many of these were kept `aside`.
"""

TO_PACK: Final = StructType(
    [
        StructField("stream", StringType()),
        StructField("offset", StringType()),
        StructField("value", BinaryType()),
        StructField("content_type", StringType()),
    ]
)
"""What is packed. Only what a stream holds that has no messages comes with its content type."""

_CONTROL: Final = StructType(
    [StructField(name, StringType()) for name in ("stream", "offset", "kind", "time")]
)
PACKED_CHANGES: Final = StructType(
    [
        StructField("kind", StringType()),
        StructField("type", StringType()),
        StructField(BUCKET, IntegerType()),
        StructField(PACKED, BinaryType()),
        StructField("controls", ArrayType(_CONTROL)),
        StructField("messages", LongType()),
        StructField("aside", LongType()),
    ]
)
