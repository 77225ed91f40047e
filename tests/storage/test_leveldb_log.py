"""LevelDB's log format, compared with what LevelDB itself writes."""

import random
from pathlib import Path
from typing import Any, NamedTuple

import plyvel
import pytest

from zonemta_py.storage.leveldb_log import (
    BLOCK_BYTES,
    DamagedBytes,
    Group,
    crc32c,
    is_sound,
    loose_data,
    operations,
    read_groups,
    records,
    written,
)

leveldb: Any = plyvel  # it has no type annotations


class Log(NamedTuple):
    """What LevelDB has written, and the operations of each batch."""

    data: bytes
    batches: list[list[tuple[bytes, bytes | None]]]

    def groups(self) -> list[Group]:
        return [item for item in read_groups(self.data) if isinstance(item, Group)]


@pytest.fixture
def log(directory: Path) -> Log:
    """Batches that end at every place in a block, also in its last seven bytes, and some of several blocks."""
    rng = random.Random(7)
    database = leveldb.DB(str(directory / "db"), create_if_missing=True)
    batches = []
    for number in range(60):
        ops: list[tuple[bytes, bytes | None]] = []
        for k in range(rng.randint(0, 3)):
            size = rng.choice([0, 5, 900, 3000, 40_000 if number % 20 == 0 else 10])
            ops.append((b"key-%d-%d" % (number, k), None if k == 2 else rng.randbytes(size)))
        with database.write_batch() as batch:
            for key, value in ops:
                batch.delete(key) if value is None else batch.put(key, value)
        batches.append(ops)
    database.close()
    return Log(next((directory / "db").glob("*.log")).read_bytes(), batches)


def test_the_sum() -> None:
    """The value of RFC 3720, B.4, and that of the CRC catalogue."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA


def test_a_whole_log(log: Log) -> None:
    assert [list(operations(group.data)) for group in log.groups()] == log.batches
    assert is_sound(log.data) == (True, log.groups()[-1].following)
    assert b"".join(written(log.groups())) == log.data
    assert list(read_groups(b"")) == []
    assert is_sound(b"", 5) == (True, 5)


def test_a_manifest_is_read(directory: Path, log: Log) -> None:
    name = (directory / "db" / "CURRENT").read_text().strip()
    edits = list(records((directory / "db" / name).read_bytes()))
    assert any(b"leveldb.BytewiseComparator" in edit for edit in edits)
    with pytest.raises(ValueError, match="damaged at byte 0"):
        list(records(b"\x01\x01\x01\x01\x01\x00\x01" * 20))


def test_every_flipped_bit_is_set_right(log: Log) -> None:
    """In the heads and in the data; what is before and behind is as it was."""
    rng = random.Random(1)
    heads = [group.start + at for group in log.groups()[:2] for at in range(7)]
    for at in [*heads, *(rng.randrange(len(log.data)) for _ in range(12))]:
        data = bytearray(log.data)
        data[at] ^= 1 << rng.randrange(8)
        found = list(read_groups(bytes(data)))
        assert not any(isinstance(item, DamagedBytes) for item in found)
        assert b"".join(written(item for item in found if isinstance(item, Group))) == log.data


def test_other_damage_is_left_out(log: Log) -> None:
    """Only the batches that it touches; the bytes are between those of the others."""
    rng = random.Random(2)
    for _ in range(12):
        at = rng.randrange(len(log.data) - 600)
        data = bytearray(log.data)
        data[at : at + 600] = rng.choice([bytes(600), rng.randbytes(600)])
        found = list(read_groups(bytes(data)))
        damage = [item for item in found if isinstance(item, DamagedBytes)]
        whole = [item for item in found if isinstance(item, Group)]
        assert damage
        assert all(
            group in whole
            for group in log.groups()
            if group.end <= at or group.start >= at + BLOCK_BYTES
        )
        assert {group.data for group in whole} <= {group.data for group in log.groups()}
        for part in damage:
            loose_data(bytes(data), part)


def test_a_missing_batch_shows(log: Log) -> None:
    """By the sequence numbers, also where no byte is damaged."""
    groups = log.groups()
    with_operations = [n for n, ops in enumerate(log.batches) if ops]
    left_out = with_operations[len(with_operations) // 2]
    data = b"".join(written([*groups[:left_out], *groups[left_out + 1 :]]))
    assert is_sound(data)[0] is False
    damage = [item for item in read_groups(data) if isinstance(item, DamagedBytes)]
    assert [(part.end - part.start, part.following) for part in damage] == [
        (0, groups[left_out].sequence)
    ]


def test_heads_alone(log: Log) -> None:
    """Zeros, and a length behind the end, which LevelDB passes over in silence, are no sound log."""
    for at in (0, BLOCK_BYTES, 2 * BLOCK_BYTES):
        data = bytearray(log.data)
        data[at : at + 4096] = bytes(4096)
        assert is_sound(bytes(data))[0] is False
    last = log.groups()[-1].start
    assert is_sound(log.data[: last + 9])[0] is False
    assert is_sound(log.data[: last + 3])[0] is False
