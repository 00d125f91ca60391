"""The path index lists the same paths as a sorted set."""

import hypothesis.strategies as st
from hypothesis import given

from headwater.storage.path_index import PathIndex

PATHS = st.text(alphabet="ab/", max_size=4)
STEPS = st.lists(st.tuples(st.sampled_from(["add", "discard", "list"]), PATHS, PATHS), max_size=60)


@given(STEPS)
def test_it_lists_the_same_paths_as_a_sorted_set(steps: list[tuple[str, str, str]]) -> None:
    index = PathIndex()
    model: set[str] = set()
    for step, path, after in steps:
        if step == "add":
            index.add(path)
            model.add(path)
        elif step == "discard":
            index.discard(path)
            model.discard(path)
        else:
            expected = sorted(one for one in model if one > after and one.startswith(path))
            assert list(index.after(after, path)) == expected


def test_removed_paths_do_not_accumulate() -> None:
    index = PathIndex()
    for number in range(10_000):
        index.add(f"{number}")
        index.discard(f"{number}")
        if number % 100 == 0:
            assert list(index.after("", "")) == []
    assert len(index._sorted) < 2_000  # what a page has to pass over
