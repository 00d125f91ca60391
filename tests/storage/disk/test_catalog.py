"""The catalog: a checkpoint changes it as a whole, and it counts what is still needed."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.storage.disk.catalog import Catalog, CatalogChanges, StreamRow
from headwater.storage.disk.segments import Extent


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    catalog = Catalog(tmp_path)
    yield catalog
    catalog.close()


def row(number: int, path: str = "", *, deadline: float | None = None, end: int = 0) -> StreamRow:
    return StreamRow(
        id=number,
        path=path or f"stream/{number}",
        content_type="text/plain",
        ttl=None,
        expires_at=None,
        instant=None,
        last_access=1.0,
        deadline=deadline,
        start=0,
        end=end,
        closed=0,
        closed_by=None,
        last_seq=None,
        deleted=0,
        forks=0,
        source=0,
        origin=None,
        inherited=None,
    )


def changes(
    *rows: StreamRow,
    producers: list[tuple[int, str, int, int]] | None = None,
    removed: list[int] | None = None,
    extents: list[Extent] | None = None,
    segment: int = 1,
    journal_from: int = 2,
) -> CatalogChanges:
    size = sum(extent.length for extent in extents or [])
    return CatalogChanges(
        list(rows),
        producers or [],
        removed or [],
        extents or [],
        size,
        segment,
        journal_from,
        100,
        "{}",
    )


def test_a_new_catalog_starts_with_the_first_journal(catalog: Catalog) -> None:
    assert (catalog.meta("journal_from"), catalog.meta("next_epoch")) == (1, 1)
    assert catalog.living("", "", 10) == []
    assert catalog.segments() == []


def test_streams_are_found_by_path_and_by_number(catalog: Catalog) -> None:
    catalog.apply(changes(row(7, "a/b"), row(8)))
    assert catalog.stream_at("a/b") == catalog.stream(7) == row(7, "a/b")
    assert catalog.stream_at("a/c") is None
    assert catalog.meta("journal_from") == 2


def test_a_path_goes_to_the_next_stream_in_one_step(catalog: Catalog) -> None:
    catalog.apply(changes(row(1, "p"), extents=[Extent(1, 0, 5, 1, 50)]))
    unused = catalog.apply(changes(row(2, "p"), removed=[1], segment=2))
    assert catalog.stream_at("p") == row(2, "p")
    assert catalog.stream(1) is None
    assert unused == [1]
    assert catalog.extents_in(1) == catalog.extents_in(2) == []


def test_a_change_that_fails_changes_nothing(catalog: Catalog) -> None:
    catalog.apply(changes(row(1, end=5), extents=[Extent(1, 0, 5, 1, 50)]))
    clash = [Extent(1, 5, 5, 2, 50), Extent(1, 0, 5, 2, 90)]
    with pytest.raises(sqlite3.IntegrityError):
        catalog.apply(changes(row(1, end=10), row(2), extents=clash, segment=2, journal_from=9))
    assert catalog.stream(2) is None
    assert catalog.stream(1) == row(1, end=5)
    assert catalog.meta("journal_from") == 2
    catalog.apply(changes(row(2), segment=3, journal_from=3))
    assert catalog.stream(2) == row(2)


def test_a_stream_ends_where_its_extents_do(catalog: Catalog) -> None:
    catalog.apply(changes(row(1, end=5), row(2, end=3), extents=[Extent(1, 0, 5, 1, 50)]))
    catalog.apply(changes(extents=[Extent(1, 5, 7, 2, 50)], segment=2))
    assert catalog.stream(1) == catalog.stream_at("stream/1") == row(1, end=12)
    assert catalog.living("", "", 9) == [row(1, end=12), row(2, end=3)]


def test_a_row_is_saved_again_with_what_changes(catalog: Catalog) -> None:
    catalog.apply(changes(row(1), row(2)))
    changed = row(1)._replace(last_access=2.0, deadline=3.0, closed=1, closed_by="[]", last_seq="s")
    changed = changed._replace(deleted=1, forks=2, end=9)
    catalog.apply(changes(changed, segment=2))
    assert catalog.stream(1) == changed
    assert catalog.stream(2) == row(2)
    assert list(catalog.expired(3.0)) == ["stream/1"]


def test_producers_keep_their_newest_state(catalog: Catalog) -> None:
    catalog.apply(changes(row(1), producers=[(1, "p", 0, 4), (1, "q", 2, 0)]))
    catalog.apply(changes(producers=[(1, "p", 1, 0)], segment=2))
    assert catalog.producer(1, "p") == (1, 0)
    assert catalog.producer(1, "q") == (2, 0)
    assert catalog.producer(2, "p") is None
    catalog.apply(changes(removed=[1], segment=3))
    assert catalog.producer(1, "q") is None


def test_extents_of_a_range_are_those_that_hold_it(catalog: Catalog) -> None:
    extents = [Extent(1, start, 10, 1, 100 + start) for start in range(0, 50, 10)]
    catalog.apply(changes(row(1), row(2), extents=[*extents, Extent(2, 3, 99, 1, 500)]))
    for begin in range(50):
        for end in range(begin + 1, 51):
            expected = [item for item in extents if item.start < end and item.end > begin]
            assert catalog.extents(1, begin, end) == expected


def test_segments_count_what_is_still_needed_of_them(catalog: Catalog) -> None:
    catalog.apply(
        changes(row(1), row(2), extents=[Extent(1, 0, 30, 1, 50), Extent(2, 0, 70, 1, 90)])
    )
    assert catalog.segments() == [(1, 100, 100)]
    assert catalog.apply(changes(removed=[2], segment=2)) == []
    assert catalog.segments() == [(1, 100, 30)]
    assert catalog.extents_in(1) == [Extent(1, 0, 30, 1, 50)]
    assert catalog.apply(changes(removed=[1], segment=3)) == [1]
    assert catalog.segments() == []


def test_segments_are_swapped_for_another_in_one_step(catalog: Catalog) -> None:
    catalog.apply(changes(row(1), extents=[Extent(1, 0, 10, 1, 50)]))
    catalog.apply(changes(extents=[Extent(1, 10, 10, 2, 80)], segment=2))
    catalog.apply(changes(extents=[Extent(1, 20, 10, 3, 80)], segment=3))
    new = [Extent(1, 0, 20, 5, 50)]
    assert catalog.replace_segments([1, 2], new, 5, 20) == [1, 2]
    assert catalog.extents(1, 0, 30) == [*new, Extent(1, 20, 10, 3, 80)]
    assert catalog.segments() == [(3, 10, 10), (5, 20, 20)]


def test_a_stream_that_was_removed_meanwhile_is_not_swapped(catalog: Catalog) -> None:
    catalog.apply(
        changes(row(1), row(2), extents=[Extent(1, 0, 10, 1, 50), Extent(2, 0, 5, 1, 80)])
    )
    catalog.apply(changes(removed=[1], segment=2))
    new = [Extent(1, 0, 10, 5, 50), Extent(2, 0, 5, 5, 80)]
    assert catalog.replace_segments([1], new, 5, 15) == [1]
    assert catalog.extents(1, 0, 10) == []
    assert catalog.segments() == [(5, 15, 5)]
    catalog.apply(changes(removed=[2], segment=6))
    assert catalog.replace_segments([5], [Extent(2, 0, 5, 7, 50)], 7, 5) == [7]


def test_expired_streams_are_listed_page_by_page(catalog: Catalog) -> None:
    rows = [row(number, deadline=float(number % 50)) for number in range(1, 1000)]
    catalog.apply(changes(*rows, row(2000)))
    found = list(catalog.expired(24.0))
    assert len(found) == len(set(found)) == sum(number % 50 <= 24 for number in range(1, 1000))


def test_it_is_all_there_when_opened_again(tmp_path: Path) -> None:
    first = Catalog(tmp_path)
    saved = row(1, end=5)
    extent = Extent(1, 0, 5, 1, 50)
    first.apply(changes(saved, producers=[(1, "p", 0, 4)], extents=[extent]))
    first.close()
    again = Catalog(tmp_path)
    assert again.stream(1) == saved
    assert again.producer(1, "p") == (0, 4)
    assert again.extents_in(1) == [extent]
    assert again.segments() == [(1, 5, 5)]
    again.close()
