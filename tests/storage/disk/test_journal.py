"""Journal files: batches come back in order, torn ones differ from damaged ones."""

import os
import random
from pathlib import Path
from zlib import crc32

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from headwater.errors import NewerFormat, StoreDamaged
from headwater.storage.disk import journal_reader
from headwater.storage.disk.disk_space import free_bytes
from headwater.storage.disk.journal import (
    BATCH_HEADER,
    START,
    JournalWriter,
    journal_numbers,
    journal_path,
    retire,
)
from headwater.storage.disk.journal_reader import (
    Damage,
    JournalEntry,
    check_header,
    is_unused,
    read_journal,
)
from headwater.storage.disk.records import HEADER as RECORD_HEADER
from headwater.storage.disk.records import MIN_LENGTH, NOTHING_ELSE, encode_append
from tests.support.effort import examples

RECORDS = st.binary(min_size=MIN_LENGTH, max_size=40) | st.just(b"r" * 300_000)
BATCHES = st.lists(st.lists(RECORDS, min_size=1, max_size=4), max_size=6)


def journal(folder: Path, batches: list[list[bytes]], reserve: int = 4096, number: int = 1) -> Path:
    """Write a journal file, each record in two parts."""
    folder.mkdir(exist_ok=True)
    writer = JournalWriter(folder, number, reserve)
    for batch in batches:
        writer.write([[record[:3], record[3:]] for record in batch])
    writer.close()
    return writer.path


def bodies(path: Path) -> list[bytes | Damage]:
    return [item.body if isinstance(item, JournalEntry) else item for item in read_journal(path)]


def record(number: int) -> bytes:
    return b"record %04d" % number


@settings(max_examples=examples(15, 150), deadline=None)
@given(BATCHES, st.sampled_from([0, 4096]))
def test_what_was_written_comes_back_in_order(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[bytes]], reserve: int
) -> None:
    path = journal(tmp_path_factory.mktemp("j"), batches, reserve)
    check_header(path)
    assert bodies(path) == [body for batch in batches for body in batch]


def test_a_batch_of_very_many_parts_is_written_whole(tmp_path: Path) -> None:
    batch = [record(number) * 100 for number in range(3000)]
    assert bodies(journal(tmp_path, [batch, [record(1)]])) == [*batch, record(1)]


def test_a_position_names_the_record(tmp_path: Path) -> None:
    path = journal(tmp_path, [[record(1)], [record(2), record(3)]])
    stored = path.read_bytes()
    entries = [item for item in read_journal(path) if isinstance(item, JournalEntry)]
    assert [stored.index(item.body) - RECORD_HEADER.size for item in entries] == [
        item.position for item in entries
    ]


@pytest.mark.parametrize("batches", [0, 1, 3])
def test_an_unfinished_batch_is_torn_wherever_it_ends(tmp_path: Path, batches: int) -> None:
    before = [[record(number)] for number in range(batches)]
    last = [record(number) for number in range(100, 103)]
    path = journal(tmp_path, [*before, last], 0)
    stored = path.read_bytes()
    batch_at = stored.index(last[0]) - RECORD_HEADER.size - BATCH_HEADER
    whole = [body for batch in before for body in batch]
    for position in range(batch_at, len(stored)):
        path.write_bytes(stored[:position])
        found = bodies(path)
        assert found[: len(whole)] == whole
        rest = found[len(whole) :]
        assert all(isinstance(item, Damage) and item.torn for item in rest), position
        assert all(isinstance(item, Damage) and item.position == batch_at for item in rest)


def test_a_batch_whose_pages_came_out_of_order_is_torn(tmp_path: Path) -> None:
    """A power cut may keep the end of the last batch and lose its beginning."""
    path = journal(tmp_path, [[record(1)], [record(2), record(3), record(4)]], 0)
    stored = path.read_bytes()
    hole = stored.index(record(2))
    path.write_bytes(stored[:hole] + bytes(11) + stored[hole + 11 :])
    first, torn = bodies(path)
    assert first == record(1)
    assert isinstance(torn, Damage)
    assert torn.torn


def test_any_flipped_bit_before_the_last_batch_is_damage_at_its_place(tmp_path: Path) -> None:
    path = journal(tmp_path, [[record(1)], [record(2), record(3)], [record(4)]], 0)
    stored = path.read_bytes()
    last = stored.index(record(4)) - RECORD_HEADER.size - BATCH_HEADER
    for position in range(START, last):
        path.write_bytes(stored[:position] + bytes([stored[position] ^ 4]) + stored[position + 1 :])
        found = list(read_journal(path))
        damages = [item for item in found if isinstance(item, Damage)]
        assert damages, position
        assert not any(damage.torn for damage in damages)
        assert any(damage.position <= position < damage.end for damage in damages), position
        assert record(4) in [item.body for item in found if isinstance(item, JournalEntry)]


def test_a_flipped_bit_costs_only_its_own_record(tmp_path: Path) -> None:
    first, second, third, fourth = appends(4)
    path = journal(tmp_path, [[first, second, third], [fourth]], 0)
    stored = bytearray(path.read_bytes())
    stored[stored.index(second) + 4] ^= 1
    path.write_bytes(stored)
    found = bodies(path)
    assert [item for item in found if isinstance(item, bytes)] == [first, third, fourth]


def test_a_failed_write_leaves_nothing_once_cut(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, 1, 4096)
    writer.write([[record(1)]])
    os.pwrite(writer.fd, b"half a batch", writer.position)
    writer.truncate()
    writer.write([[record(2)]])
    writer.close()
    assert bodies(writer.path) == [record(1), record(2)]


def test_what_is_left_of_the_file_before_is_not_read(tmp_path: Path) -> None:
    """A file is written over an older one: its records must never come back."""
    choose = random.Random(1)
    for number in range(1, 12):
        sizes = [choose.randint(1, 60) for _ in range(choose.randint(0, 30))]
        batches = [[record(number * 1000 + index) * size] for index, size in enumerate(sizes)]
        path = journal(tmp_path, batches, 4096, number)
        assert bodies(path) == [body for batch in batches for body in batch]
        retire(tmp_path, number + 1)
        assert not path.exists()
        assert len(list(tmp_path.glob("*.spare"))) == 1


def test_a_spare_of_a_file_that_was_only_reserved_is_filled(tmp_path: Path) -> None:
    size = 1 << 20
    reserved = JournalWriter(tmp_path, 1, size)
    reserved.write([[record(1)]])
    assert not reserved.is_filled
    assert reserved.path.stat().st_size == size
    reserved.close()
    assert bodies(reserved.path) == [record(1)]
    retire(tmp_path, 2)
    filled = JournalWriter(tmp_path, 2, size, fill=True)
    assert filled.is_filled
    assert filled.path.stat().st_blocks * 512 >= size
    filled.close()
    assert filled.path.stat().st_size == size
    retire(tmp_path, 3)
    again = JournalWriter(tmp_path, 3, size)
    assert again.is_filled  # all of its blocks were written to before
    again.close()


def test_a_file_is_not_filled_with_the_last_room(tmp_path: Path) -> None:
    size = free_bytes(tmp_path) // 3
    writer = JournalWriter(tmp_path, 1, 0, fill=True)
    writer._reserve(size, fill=True)
    assert not writer.is_filled
    writer.close()


def test_only_a_few_spares_are_kept(tmp_path: Path) -> None:
    for number in range(1, 9):
        journal_path(tmp_path, number).write_bytes(b"old")
    retire(tmp_path, 8)
    assert journal_numbers(tmp_path) == [8]
    assert len(list(tmp_path.glob("*.spare"))) <= 2


def test_a_file_that_was_only_being_made_ready_counts_as_never_used(tmp_path: Path) -> None:
    used = journal(tmp_path, [[record(1)]])
    assert not is_unused(used)
    for content in (b"", bytes(START - 5), bytes(10_000)):
        used.write_bytes(content)
        assert is_unused(used)
    # Renamed from a spare, and not yet given its own header.
    older = journal(tmp_path, [[record(1)]], number=2)
    newer = older.rename(journal_path(tmp_path, 3))
    assert is_unused(newer)


def test_a_file_that_is_no_journal_is_named(tmp_path: Path) -> None:
    path = journal(tmp_path, [[record(1)]])
    stored = path.read_bytes()
    path.write_bytes(b"X" + stored[1:])
    with pytest.raises(StoreDamaged, match=path.name):
        check_header(path)


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = journal(tmp_path, [])
    header = path.read_bytes()[: START // 2 - 4]
    newer = header[:8] + (2).to_bytes(4, "little") + header[12:]
    path.write_bytes(2 * (newer + crc32(newer).to_bytes(4, "little")))
    with pytest.raises(NewerFormat):
        check_header(path)


@pytest.mark.parametrize("copy", [0, 1])
def test_one_copy_of_the_header_is_enough_to_read_the_records(tmp_path: Path, copy: int) -> None:
    path = journal(tmp_path, [[record(1)], [record(2)]])
    stored = bytearray(path.read_bytes())
    stored[copy * START // 2 + 13] ^= 1
    path.write_bytes(stored)
    with pytest.raises(StoreDamaged):
        check_header(path)
    assert bodies(path) == [record(1), record(2)]


def test_without_any_header_nothing_can_be_read(tmp_path: Path) -> None:
    path = journal(tmp_path, [[record(1)]])
    stored = path.read_bytes()
    path.write_bytes(b"X" * START + stored[START:])
    assert bodies(path) == [Damage(0, len(stored), torn=False)]


def test_what_a_client_made_look_like_a_batch_is_not_taken_for_one(tmp_path: Path) -> None:
    """After a torn batch it would look like a synced one, and the start would be refused."""
    other = journal(tmp_path / "other", [[record(1)], [record(2)], [record(3)]])
    planted = other.read_bytes()[START:]
    path = journal(tmp_path / "own", [[record(1)], [record(2) + planted]])
    stored = bytearray(path.read_bytes())
    stored[stored.index(record(2))] ^= 1
    path.write_bytes(stored)
    (first, torn) = bodies(path)
    assert first == record(1)
    assert isinstance(torn, Damage)
    assert torn.torn


def appends(count: int) -> list[bytes]:
    """Records of several streams, of different lengths."""
    chance = random.Random(count)
    sizes = [chance.choice([0, 20, 60, 130]) for _ in range(count)]
    return [
        b"".join(encode_append(index + 1, 0, 0.0, NOTHING_ELSE, chance.randbytes(size)))
        for index, size in enumerate(sizes)
    ]


@pytest.mark.parametrize("reserve", [0, 4096])
def test_a_flipped_bit_in_the_last_batch_never_hides_it(tmp_path: Path, reserve: int) -> None:
    """Records in later files may show that it had been synced."""
    first, *last = appends(4)
    path = journal(tmp_path, [[first], last], reserve)
    stored = path.read_bytes()
    batch_at = stored.index(last[0]) - RECORD_HEADER.size - BATCH_HEADER
    for position in range(batch_at, stored.index(last[-1]) + len(last[-1])):
        path.write_bytes(stored[:position] + bytes([stored[position] ^ 4]) + stored[position + 1 :])
        assert bodies(path) == [first, Damage(batch_at, len(stored), torn=True)], position


def test_a_lost_header_and_first_record_do_not_hide_the_last_batch(tmp_path: Path) -> None:
    first, *last = appends(30)
    path = journal(tmp_path, [[first], last], 1 << 20)
    stored = path.read_bytes()
    batch_at = stored.index(last[0]) - RECORD_HEADER.size - BATCH_HEADER
    path.write_bytes(stored[:batch_at] + bytes(512) + stored[batch_at + 512 :])
    assert bodies(path) == [first, Damage(batch_at, len(stored), torn=True)]


def test_whatever_bit_of_a_length_is_flipped_only_its_own_record_is_lost(tmp_path: Path) -> None:
    records = appends(8)
    path = journal(tmp_path, [records, [record(1)]], 0)
    stored = path.read_bytes()
    places = [item.position for item in read_journal(path)]
    for index, place in enumerate(places[:-1]):
        for bit in range(32):
            harmed = bytearray(stored)
            harmed[place + bit // 8] ^= 1 << bit % 8
            path.write_bytes(harmed)
            damage = Damage(place, place + RECORD_HEADER.size + len(records[index]), torn=False)
            expected = [*records[:index], damage, *records[index + 1 :], record(1)]
            assert bodies(path) == expected, (index, bit)


def test_a_long_record_after_a_damaged_one_is_found(tmp_path: Path) -> None:
    long = b"".join(encode_append(2, 0, 0.0, NOTHING_ELSE, random.Random(1).randbytes(200_001)))
    records = [*appends(1), long, *appends(3)]
    path = journal(tmp_path, [records, [record(1)]], 0)
    stored = bytearray(path.read_bytes())
    stored[stored.index(records[0])] ^= 1
    path.write_bytes(stored)
    damage, *rest = bodies(path)
    assert isinstance(damage, Damage)
    assert rest == [*records[1:], record(1)]


def test_what_looks_like_many_long_records_does_not_hold_up_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over each of them a checksum would be computed: over all that follows, again and again."""
    length, count = 2 << 20, 250_000
    head = RECORD_HEADER.pack(length, 0) + encode_append(1, 0, 0.0, NOTHING_ELSE, b"")[0][:9]
    path = journal(tmp_path, [appends(1), [head * count]], 0)
    stored = bytearray(path.read_bytes())
    stored[stored.index(head * 2) - RECORD_HEADER.size - BATCH_HEADER] ^= 1
    path.write_bytes(stored)
    summed = 0

    def counting_crc32(data: bytes, value: int = 0) -> int:
        nonlocal summed
        summed += len(data)
        assert summed < count * length // 100, "whole records are summed, one after another"
        return crc32(data, value)

    monkeypatch.setattr(journal_reader, "crc32", counting_crc32)
    assert len(bodies(path)) == 1
    assert summed > path.stat().st_size  # It did look at all of it.


def test_a_record_too_long_to_be_read_again_is_not_written(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, 1, 0)
    writer.write([[record(1)]])
    with pytest.raises(OSError, match="too long to be read again"):
        writer.write([[bytes(1 << 20)] * 2048])
    writer.truncate()
    writer.write([[record(2)]])
    writer.close()
    assert bodies(writer.path) == [record(1), record(2)]
