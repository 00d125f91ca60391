"""Places in streams, among which those of many rows are found at once.

Rows are looked up in one sorted array instead of being compared with each place, so that thousands
of places cost hardly more than one.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_DIGITS: Final = 10


class Marks:
    """Offsets of streams. What is found is a place among them, null where there is none."""

    def __init__(self, marks: Sequence[tuple[str, str]]) -> None:
        """Take streams and offsets: stream by stream, and those of each in order."""
        streams = pa.array([stream for stream, _ in marks], pa.string())
        self._streams = streams.unique()
        self._of = pc.index_in(streams, value_set=self._streams).to_numpy()
        self._keys = _keys(self._of, pa.array([offset for _, offset in marks], pa.string()))

    def __len__(self) -> int:
        return len(self._of)

    def before(self, rows: pa.Table, column: str) -> pa.Array:
        """Find the last mark before the offset in a column, in the stream of each row."""
        codes, places, keys = self._places(rows, column)
        return self._found(codes, places, np.searchsorted(self._keys, keys) - 1)

    def behind(self, rows: pa.Table, column: str) -> pa.Array:
        """Find the first mark behind the offset in a column, in the stream of each row."""
        codes, places, keys = self._places(rows, column)
        return self._found(codes, places, np.searchsorted(self._keys, keys, side="right"))

    def at(self, rows: pa.Table, column: str) -> pa.Array:
        """Find the mark that is the offset in a column, in the stream of each row."""
        codes, places, keys = self._places(rows, column)
        is_there = np.isin(keys, self._keys)
        return self._found(codes, places[is_there], np.searchsorted(self._keys, keys[is_there]))

    def _places(
        self, rows: pa.Table, column: str
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        """Give the stream of each row, -1 for one without marks, and where the others are."""
        codes = pc.index_in(rows.column("stream"), value_set=self._streams)
        codes = codes.fill_null(-1).to_numpy()
        places = np.flatnonzero(codes >= 0)
        return codes, places, _keys(codes[places], rows.column(column).take(pa.array(places)))

    def _found(
        self, codes: npt.NDArray[Any], places: npt.NDArray[Any], marks: npt.NDArray[Any]
    ) -> pa.Array:
        """Leave out marks of other streams."""
        found = np.full(len(codes), -1, np.int64)
        is_one = (marks >= 0) & (marks < len(self))
        places, marks = places[is_one], marks[is_one]
        is_same = self._of[marks] == codes[places]
        found[places[is_same]] = marks[is_same]
        return pa.array(found, mask=found < 0)


def _keys(streams: npt.NDArray[Any], offsets: pa.Array) -> npt.NDArray[Any]:
    """Make what sorts by stream, and then as offsets do: as texts."""
    codes = pc.utf8_lpad(pa.array(streams).cast(pa.string()), _DIGITS, "0")
    joined = pc.binary_join_element_wise(codes, offsets, "")
    return np.array(joined.to_pylist(), np.bytes_)
