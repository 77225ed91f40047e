"""The index of sealed segments: no key is missed, few segments are read in vain, damage costs time only."""

import struct
from array import array
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.core.codec import crc32, to_json
from zonemta_py.events.index import (
    NAME,
    add_to_index,
    hash_of,
    hashes_in,
    make_filter,
    may_have,
    read_index,
)
from zonemta_py.events.segments import Segment


@given(st.lists(st.text(min_size=1), unique=True, max_size=200))
def test_no_key_is_missed(keys: list[str]) -> None:
    lines = b"".join(b'{"event":"accepted","recipient":%b}\n' % to_json(key) for key in keys)
    hashes = hashes_in(lines)
    bits = memoryview(make_filter(hashes, len(hashes)))
    assert all(may_have(bits, hash_of(to_json(key)[1:-1].lower())) for key in keys)


def test_few_other_keys_seem_to_be_there() -> None:
    hashes = array("Q", (hash_of(b"key-%d" % number) for number in range(5000)))
    bits = memoryview(make_filter(hashes, len(hashes)))
    wrong = sum(may_have(bits, hash_of(b"other-%d" % number)) for number in range(20_000))
    assert wrong < 300, "one in 150 is 133"


def test_another_key_in_a_filter_of_one_is_rare() -> None:
    """Such segments are those of a quiet relay: each search would read several of them."""
    filters = [memoryview(make_filter([hash_of(b"key-%d" % n)], 1)) for n in range(2_000)]
    assert sum(may_have(bits, hash_of(b"other")) for bits in filters) <= 2


def test_an_entry_for_each_segment_of_an_hour(tmp_path: Path) -> None:
    sealed = []
    for seq in (1, 2):
        segment = Segment(tmp_path, "abcdef", seq)
        line = (
            b'{"node":"abcdef","seq":%d,"position":0,"event":"accepted","recipient":"u%d@x.example"}\n'
        )
        segment.append(line % (seq, seq), seq)
        path = segment.seal(1_800_000_000_000)
        assert path is not None
        sealed.append(path)
    entries = list(read_index(sealed[0].parent))
    assert [each.name for each in entries] == [path.name for path in sealed]
    assert [may_have(each.bits, hash_of(b"u1@x.example")) for each in entries] == [True, False]
    assert [each.numbers for each in entries] == [(0, 1, 1), (0, 2, 2)]


def test_damage_ends_the_index_there(tmp_path: Path) -> None:
    for number in range(3):
        add_to_index(tmp_path / f"s{number}", array("Q", [number]), (0, number, number))
    path = tmp_path / NAME
    data = path.read_bytes()
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        found = [each.name for each in read_index(tmp_path)]
        assert found == [f"s{number}" for number in range(len(found))]
    third = len(data) // 3
    path.write_bytes(data[:third] + bytes([data[third] ^ 1]) + data[third + 1 :])
    assert [each.name for each in read_index(tmp_path)] == ["s0"]
    path.unlink()
    assert list(read_index(tmp_path)) == []


def test_an_entry_of_an_earlier_version(tmp_path: Path) -> None:
    """It has no numbers."""
    bits = make_filter([7], 1)
    name = b"abcdef-0000000000000001.jsonl.zst"
    checksum = crc32(bits, crc32(name))
    (tmp_path / NAME).write_bytes(
        struct.pack("<4sHII", b"zmbf", len(name), len(bits), checksum) + name + bits
    )
    [entry] = read_index(tmp_path)
    assert (entry.name.encode(), bytes(entry.bits), entry.numbers) == (name, bits, None)
