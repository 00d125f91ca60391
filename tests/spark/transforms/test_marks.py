"""Marks are found as if each row were compared with all of them."""

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.spark.transforms.marks import Marks

OFFSETS = st.builds(
    lambda epoch, byte: f"{epoch:016}_{byte:016}", st.integers(1, 2), st.integers(0, 12)
)
PLACES = st.lists(st.tuples(st.sampled_from(["a", "b", "é/long", "z"]), OFFSETS), max_size=20)


def rows_of(places: list[tuple[str, str]]) -> pa.Table:
    streams, offsets = [stream for stream, _ in places], [offset for _, offset in places]
    return pa.table(
        {"stream": pa.array(streams, pa.string()), "at": pa.array(offsets, pa.string())}
    )


@settings(deadline=None)
@given(PLACES.map(lambda places: sorted(set(places))), PLACES)
def test_marks_are_found_before_behind_and_at_each_row(
    places: list[tuple[str, str]], asked: list[tuple[str, str]]
) -> None:
    marks, rows = Marks(places), rows_of(asked)

    def mine(stream: str) -> list[tuple[int, str]]:
        return [(at, offset) for at, (name, offset) in enumerate(places) if name == stream]

    before = [[at for at, mark in mine(name) if mark < offset] for name, offset in asked]
    behind = [[at for at, mark in mine(name) if mark > offset] for name, offset in asked]
    same = [[at for at, mark in mine(name) if mark == offset] for name, offset in asked]
    assert marks.before(rows, "at").to_pylist() == [max(each, default=None) for each in before]
    assert marks.behind(rows, "at").to_pylist() == [min(each, default=None) for each in behind]
    assert marks.at(rows, "at").to_pylist() == [min(each, default=None) for each in same]
    assert len(marks) == len(places)
