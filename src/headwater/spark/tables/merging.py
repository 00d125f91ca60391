"""What a rewrite does with one bucket: old rows and new ones in, rows to keep out."""

from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa


class Merged(NamedTuple):
    """What is left of a bucket's rows."""

    kept: pa.Table
    """The bucket from now on: the next merge gets it."""
    closed: pa.Table | None = None
    """Rows that nothing will change any more: they stay in the table and are not read again."""


Merge = Callable[[pa.Table, pa.Table], Merged]
"""A pure function that can be pickled: from a bucket's rows and new rows to what is kept.

New rows may come in several calls, in any order, each with the rows that the last one kept: a
batch is never held in memory as a whole.
"""

Finish = Callable[[pa.Table], Merged]
"""From what a bucket's merges have kept, when all rows of the batch are there, to what it holds.

What only matters among the rows of one batch, such as a deletion, can be kept until then.
"""
