"""What an archive holds: it grows without gaps, and its names can be read again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headwater.errors import ArchiveDamaged, ArchiveGap, ArchiveOvertaken
from headwater.spark.archives.contents import (
    ArchivedFile,
    Contents,
    Entry,
    Seen,
    folder_name,
    mergeable,
    stream_name,
)


def offset(epoch: int, byte: int) -> str:
    return f"{epoch:016d}_{byte:016d}"


def file(start: int, end: int, epoch: int = 1, stream: str = "s") -> ArchivedFile:
    name = f"{stream}/{epoch}-{start}-{end}"
    return ArchivedFile(stream, "application/json", name, start, offset(epoch, end), 1, 10)


def test_files_that_follow_each_other_are_one_incarnation() -> None:
    contents = Contents()
    contents.take(Entry(added=[file(0, 5), file(5, 9)]))
    contents.take(Entry(added=[file(9, 20, epoch=3)]))  # a fork goes on in its own epoch
    (only,) = contents.streams["s"]
    assert (only.begin, only.reached, len(only.files)) == (0, offset(3, 20), 3)
    assert contents.reached("s") == offset(3, 20)
    assert contents.reached("other") == ""


def test_a_file_that_leaves_a_gap_is_refused() -> None:
    contents = Contents()
    contents.take(Entry(added=[file(0, 9)]))
    with pytest.raises(ArchiveGap, match="the messages in between are missing"):
        contents.take(Entry(added=[file(10, 30)]))


@pytest.mark.parametrize("start", [0, 8])
def test_a_file_of_what_is_archived_is_refused_and_nothing_is_called_missing(start: int) -> None:
    contents = Contents()
    contents.take(Entry(added=[file(0, 9)]))
    with pytest.raises(ArchiveOvertaken, match=f"up to offset {offset(1, 9)}"):
        contents.take(Entry(added=[file(start, 30)]))


def test_a_stream_that_begins_anew_in_a_later_epoch_is_another_incarnation() -> None:
    contents = Contents()
    contents.take(Entry(added=[file(0, 9), file(0, 4, epoch=2)]))
    assert [each.reached for each in contents.streams["s"]] == [offset(1, 9), offset(2, 4)]


def test_a_stream_that_does_not_know_what_was_reached_is_another_incarnation() -> None:
    contents = Contents()
    contents.take(Entry(added=[file(0, 9, epoch=2)]))
    # A fork of an older stream: its first bytes have the older epoch.
    fork = [file(0, 12, epoch=1), file(12, 15, epoch=3)]
    entry = Entry(added=[replace(each, other_than=offset(2, 9)) for each in fork])
    contents.take(entry)
    first, second = contents.streams["s"]
    assert (first.reached, second.reached) == (offset(2, 9), offset(3, 15))
    assert (second.begin, len(second.files)) == (0, 2)
    with pytest.raises(ArchiveOvertaken):
        contents.take(entry)


def test_a_closed_stream_takes_nothing_more_unless_it_is_another() -> None:
    contents = Contents()
    contents.take(Entry(added=[file(0, 9)]))
    seen = Seen("s", "application/json", offset(1, 9), closed=True)
    assert contents.news([seen]) == [seen]
    contents.take(Entry(seen=[seen]))
    assert contents.news([seen]) == []
    with pytest.raises(ArchiveGap):
        contents.take(Entry(added=[file(9, 12)]))


def test_a_closing_that_was_seen_before_all_was_read_is_not_news_yet() -> None:
    contents = Contents()
    contents.take(Entry(added=[file(0, 9)]))
    assert contents.news([Seen("s", "application/json", offset(1, 12), closed=True)]) == []


def test_merged_files_take_the_place_of_those_that_they_hold() -> None:
    contents = Contents()
    contents.take(Entry(added=[file(0, 5), file(5, 9), file(9, 12)]))
    merged = ArchivedFile("s", "application/json", "m", 5, offset(1, 12), 2, 20)
    contents.take(Entry(merged=[(["s/1-5-9", "s/1-9-12"], merged)]))
    assert [each.name for each in contents.files()] == ["s/1-0-5", "m"]
    with pytest.raises(ArchiveDamaged, match="does not have"):
        contents.take(Entry(merged=[(["s/1-5-9"], merged)]))


def test_small_files_are_merged_when_there_are_eight_and_each_size_rarely() -> None:
    assert mergeable([1000] * 7) == 0
    assert mergeable([1000] * 8) == 8
    assert mergeable([1] * 100) == 0
    assert mergeable([100 << 20, *[1000] * 8]) == 8
    assert mergeable([100 << 20] * 50) == 0
    sizes: list[int] = []
    written = 0
    for _ in range(4096):
        sizes.append(1000)
        count = mergeable(sizes)
        if count:
            written += sum(sizes[-count:])
            sizes[-count:] = [sum(sizes[-count:])]
    assert len(sizes) < 40
    assert written <= 5 * 4096 * 1000


@given(st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=300))
def test_a_folder_is_named_after_its_stream_and_can_be_read_again(stream: str) -> None:
    name = folder_name(stream)
    assert len(name) <= 200
    assert set(name) <= set("~-_.") | set(
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    )
    assert name[0] not in "._"
    assert stream_name(name) in (stream, None)
    assert stream_name(name) == stream or len(stream.encode()) > 60


def test_long_names_stay_apart() -> None:
    assert folder_name("a" * 300) != folder_name("a" * 301)
