"""What a table's log promises: which files make up the table, and which batches are in it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from msgspec import Struct

SMALL_FILES: Final = 100
"""So many files that are only added are made fewer."""


class DataFile(Struct, frozen=True):
    """A Parquet file of a table."""

    path: str
    """Below the table's folder."""
    size: int
    rows: int
    bucket: int | None = None
    """Whose rows it holds; None: it is only ever added to the table, and not rewritten."""


class Snapshot(Struct, frozen=True):
    """A table as it is at one moment."""

    version: int
    schema: pa.Schema
    """Without the bucket."""
    buckets: int
    files: tuple[DataFile, ...]
    committed: int = -1
    """The last batch that is in it of the writer who looks; -1 if none is."""


class Log(ABC):
    """Knows the files of one table. Only drivers commit; a commit is seen as a whole or not."""

    @abstractmethod
    def create(self, schema: pa.Schema, buckets: int) -> None:
        """Make an empty table; one that is there is left as it is."""

    @abstractmethod
    def snapshot(self, writer: str = "") -> Snapshot | None:
        """Look at the table, as a writer or as nobody; None where there is none."""

    @abstractmethod
    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        """Add columns, which are null in the files that are there."""

    @abstractmethod
    def commit(
        self,
        seen: Snapshot,
        added: Sequence[DataFile],
        removed: Sequence[DataFile],
        *,
        writer: str,
        batch: int,
    ) -> None:
        """Add and remove files, and remember the batch; raises `TableChanged` if it is not as seen.

        Files that were only added by others meanwhile are no reason to refuse.
        """

    @abstractmethod
    def tidy(self, keep_seconds: float) -> list[str]:
        """Delete files that left the table so long ago that no reader still wants them.

        And those that it does not know and are a day old: the tasks that wrote them have failed.
        Many files that were only added become few before; gives those, which have just left.
        """
