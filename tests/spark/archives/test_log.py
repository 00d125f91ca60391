"""The log of an archive: whole entries only, whoever writes them."""

import os
import threading
import time
from pathlib import Path

import pytest

from headwater.errors import ArchiveDamaged, ArchiveOvertaken, BadOption, NotAnArchive
from headwater.spark.archives import ArchivedFile, Entry, commit, load
from headwater.spark.archives.log import (
    ENTRIES_PER_SUMMARY,
    LEFT_OVER_SECONDS,
    archive_folder,
    load_or_begin,
    sweep,
)


def file(stream: str, number: int) -> ArchivedFile:
    last = f"{1:016d}_{number + 1:016d}"
    return ArchivedFile(stream, "text/plain", f"streams/{stream}/{number}", number, last, 1, 1)


def test_a_folder_is_a_path_or_a_url_of_one() -> None:
    assert archive_folder("kept/a") == Path.cwd() / "kept" / "a"
    assert archive_folder("/kept/a b%20") == archive_folder("file:///kept/a b%20")
    assert archive_folder("file:///kept/a") == Path("/kept/a")


@pytest.mark.parametrize("folder", ["s3://bucket/a", "hdfs://host/a", "file://host/a", "file://"])
def test_what_is_no_folder_of_every_machine_is_refused(folder: str) -> None:
    with pytest.raises(BadOption, match="is no folder of this machine"):
        archive_folder(folder)


def test_an_archive_is_begun_once_and_keeps_its_name(tmp_path: Path) -> None:
    with pytest.raises(NotAnArchive, match="it has no log"):
        load(tmp_path)
    first = load_or_begin(tmp_path)
    assert first.archive
    assert load_or_begin(tmp_path).archive == load(tmp_path).archive == first.archive


def test_entries_are_read_again_over_summaries(tmp_path: Path) -> None:
    contents = load_or_begin(tmp_path)
    count = 3 * ENTRIES_PER_SUMMARY + 7
    for number in range(count):
        contents = commit(tmp_path, contents, Entry(added=[file("s", number)]))
    again = load(tmp_path)
    assert again == contents
    assert [each.start for each in again.files()] == list(range(count))
    assert len(list((tmp_path / "_log").iterdir())) < 2 * ENTRIES_PER_SUMMARY + 20


def test_writers_of_different_streams_both_get_through(tmp_path: Path) -> None:
    load_or_begin(tmp_path)

    def write(stream: str) -> None:
        contents = load(tmp_path)
        for number in range(30):
            contents = commit(tmp_path, contents, Entry(added=[file(stream, number)]))

    threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    streams = load(tmp_path).streams
    assert {name: len(each[0].files) for name, each in streams.items()} == dict.fromkeys("abc", 30)


@pytest.mark.parametrize("more", [1, ENTRIES_PER_SUMMARY, 4 * ENTRIES_PER_SUMMARY])
def test_an_entry_is_kept_however_many_others_have_written_meanwhile(
    tmp_path: Path, more: int
) -> None:
    contents = load_or_begin(tmp_path)
    for number in range(50):
        contents = commit(tmp_path, contents, Entry(added=[file("s", number)]))
    late = load(tmp_path)
    for number in range(50, 50 + more):
        contents = commit(tmp_path, contents, Entry(added=[file("s", number)]))
    after = commit(tmp_path, late, Entry(added=[file("late", 0)]))
    assert after == load(tmp_path)
    assert after.reached("late") == file("late", 0).last
    assert len(list(after.files())) == 50 + more + 1


def test_a_writer_that_was_overtaken_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    late = load_or_begin(tmp_path)
    commit(tmp_path, load(tmp_path), Entry(added=[file("s", 0)]))
    with pytest.raises(ArchiveOvertaken):
        commit(tmp_path, late, Entry(added=[file("s", 0)]))
    assert len(list(load(tmp_path).files())) == 1


def test_a_draft_that_was_left_is_ignored_and_a_damaged_entry_is_told(tmp_path: Path) -> None:
    contents = load_or_begin(tmp_path)
    commit(tmp_path, contents, Entry(added=[file("s", 0)]))
    (tmp_path / "_log" / ".draft").write_bytes(b"{")
    assert len(list(load(tmp_path).files())) == 1
    (tmp_path / "_log" / f"{1:020d}.json").write_bytes(b'{"added": [')
    with pytest.raises(ArchiveDamaged, match="can't be used"):
        load(tmp_path)


def test_files_that_were_merged_stay_for_a_day_from_then_on(tmp_path: Path) -> None:
    contents = load_or_begin(tmp_path)
    parts = [file("s", number) for number in range(2)]
    whole = ArchivedFile("s", "text/plain", "streams/s/whole", 0, parts[-1].last, 2, 2)
    (tmp_path / "streams" / "s").mkdir()
    long_ago = time.time() - 3 * LEFT_OVER_SECONDS
    for each in (*parts, whole):
        (tmp_path / each.name).write_bytes(b"x")
        os.utime(tmp_path / each.name, (long_ago, long_ago))
    contents = commit(tmp_path, contents, Entry(added=parts))
    contents = commit(tmp_path, contents, Entry(merged=[([each.name for each in parts], whole)]))
    assert sweep(tmp_path, contents) == 0
    for each in parts:
        assert (tmp_path / each.name).exists()  # a reader may be about to open it
        a_day_ago = time.time() - LEFT_OVER_SECONDS - 1
        os.utime(tmp_path / each.name, (a_day_ago, a_day_ago))
    assert sweep(tmp_path, contents) == 2
    assert (tmp_path / whole.name).exists()


def test_a_draft_that_vanishes_does_not_stop_the_sweeping(tmp_path: Path) -> None:
    contents = load_or_begin(tmp_path)
    folder = tmp_path / "streams" / "s"
    folder.mkdir()
    for number in range(3):  # listed, and not there when they are looked at
        (folder / f".{number}").symlink_to(folder / "gone")
    (folder / "old").write_bytes(b"x")
    assert sweep(tmp_path, contents, age=-1) == 1
    assert not (folder / "old").exists()
