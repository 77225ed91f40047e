"""LevelDB's log files, read with their checksums: which groups of writes are whole, and what is between them.

A log is a sequence of blocks of 32 KiB. A fragment has a head of 7 bytes (masked CRC-32C of kind and data, length of the data,
kind) and does not cross a block; a group is one FULL fragment, or a FIRST, MIDDLE ones and a LAST. The data of a group are a
write batch: the sequence number of its first operation, their count, the operations. The numbers are consecutive, so a group
that is missing shows. Source: doc/log_format.md and db/log_reader.cc of LevelDB.

LevelDB checks the CRC when it opens a database, but takes a head of zeros for unused space, and a length behind the end of the
file for a write that a crash interrupted. Its repair does not check the CRC at all.
"""

import re
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

BLOCK_BYTES = 32_768
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
ZERO_SECTOR = bytes(512)  # mail has no such run: these bytes never reached the disk

_HEAD = struct.Struct("<IHB")
_BATCH = struct.Struct("<QI")
_MASK = 0xA282EAD8
_POLYNOMIAL = 0x82F63B78  # CRC-32C (Castagnoli), reflected
_SEQUENCE_MAX = 1 << 56

# Where a group may begin: its kind, then a sequence number below 2**40 and a count below 2**24.
_BEGINNING = re.compile(rb"(?=.{6}[\x01\x02].{5}\x00\x00\x00.{3}\x00)", re.DOTALL)


def _table() -> tuple[int, ...]:
    found = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        found.append(value)
    return tuple(found)


_TABLE = _table()
_BY_TOP = {value >> 24: index for index, value in enumerate(_TABLE)}
_BITS = {
    _TABLE[1 << bit]: bit for bit in range(8)
}  # what a flipped bit of the last byte changes in the sum


def crc32c(data: bytes) -> int:
    """The CRC-32C of ``data``; about 15 MB/s."""
    table, crc = _TABLE, 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def _unmasked(crc: int) -> int:
    rotated = (crc - _MASK) & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF


class Group(NamedTuple):
    """A write batch in ``data``, from byte ``start`` to ``end`` of its file.

    ``sequence`` of its first operation, and of the one after it. ``flipped``: it is whole but for one bit in a fragment, which
    is corrected in ``data``.
    """

    start: int
    end: int
    data: bytes
    sequence: int
    following: int
    flipped: bool = False


class DamagedBytes(NamedTuple):
    """Bytes ``start`` to ``end`` of a log that are not a whole group; an empty range when a group is missing there.

    ``following``: the sequence number that was expected, 0 when it is not known.
    """

    start: int
    end: int
    following: int


def read_groups(data: bytes, following: int = 0) -> Iterator[Group | DamagedBytes]:
    """All that is in a log, in its order. ``following``: the sequence number of its first operation, 0 if not known."""
    position = 0
    while position < len(data):
        if len(data) - position <= BLOCK_BYTES - position % BLOCK_BYTES < _HEAD.size:
            return
        group = _group_at(data, position, following, correct=True)
        if group is None:
            group = _next_group(data, position + 1, following)
            end = len(data) if group is None else group.start
            yield DamagedBytes(position, end, following)
            if group is None:
                return
        elif following and group.sequence != following:
            yield DamagedBytes(position, position, following)
        yield group
        position, following = group.end, group.following


def is_sound(data: bytes, following: int = 0) -> tuple[bool, int]:
    """True if the heads in a log are right, without a check of the sums of the data; and the sequence number that follows.

    False does not prove damage: a crash may have interrupted the last write. About 20 ms for each 10,000 groups.
    """
    position, size, open_head = 0, len(data), b""
    is_open = False
    while position < size:
        left = BLOCK_BYTES - position % BLOCK_BYTES
        if left < _HEAD.size:
            position += left
            continue
        if position + _HEAD.size > size:
            return False, following
        _, length, kind = _HEAD.unpack_from(data, position)
        position += _HEAD.size
        if not FULL <= kind <= LAST or length > left - _HEAD.size or position + length > size:
            return False, following
        if (kind in (MIDDLE, LAST)) != is_open:
            return False, following
        if len(open_head) < _BATCH.size:
            open_head += data[position : position + min(length, _BATCH.size)]
        is_open = kind in (FIRST, MIDDLE)
        position += length
        if not is_open:
            if len(open_head) < _BATCH.size:
                return False, following
            sequence, count = _BATCH.unpack_from(open_head)
            if following and sequence != following:
                return False, following
            following, open_head = sequence + count, b""
    return not is_open, following


def _group_at(data: bytes, position: int, following: int, *, correct: bool) -> Group | None:
    """The group that begins at ``position``; None when it is not whole. ``correct``: a flipped bit is set right."""
    start, flipped = position, False
    parts: list[bytes] = []
    while True:
        left = BLOCK_BYTES - position % BLOCK_BYTES
        if left < _HEAD.size:
            position += left
            start = start if parts else position
            continue
        found = _fragment_at(data, position, left, correct=correct)
        if found is None:
            return None
        kind, part, corrected = found
        if (kind in (MIDDLE, LAST)) != bool(parts):
            return None
        parts.append(part)
        flipped |= corrected
        position += _HEAD.size + len(part)
        if kind in (FULL, LAST):
            break
    batch = b"".join(parts)
    if len(batch) < _BATCH.size:
        return None
    sequence, count = _BATCH.unpack_from(batch)
    if sequence < following or sequence >= _SEQUENCE_MAX or not has_operations(batch):
        return None
    if flipped and following and sequence != following:
        return None
    return Group(
        start=start, end=position, data=batch, sequence=sequence, following=sequence + count, flipped=flipped,
    )  # fmt: skip


def _fragment_at(
    data: bytes, position: int, left: int, *, correct: bool
) -> tuple[int, bytes, bool] | None:
    """Kind and data of a fragment, and whether a bit of it was set right; None when it is damaged."""
    if position + _HEAD.size > len(data):
        return None
    stored, length, kind = _HEAD.unpack_from(data, position)
    longest = min(left, len(data) - position) - _HEAD.size
    begin = position + _HEAD.size - 1  # the sum is that of kind and data
    covered = data[begin : begin + 1 + length]
    if length <= longest and FULL <= kind <= LAST and _masked(crc32c(covered)) == stored:
        return kind, covered[1:], False
    if not correct or ZERO_SECTOR in data[position : position + min(length, longest)]:
        return None
    if length <= longest:
        fixed = _corrected(covered, stored)
        if fixed is not None:
            return fixed[0], fixed[1:], True
    for bit in range(16):
        other = length ^ 1 << bit
        covered = data[begin : begin + 1 + other]
        if other <= longest and FULL <= kind <= LAST and _masked(crc32c(covered)) == stored:
            return kind, covered[1:], True
    return None


def _corrected(covered: bytes, stored: int) -> bytes | None:
    """``covered`` as it was, when it or its masked sum ``stored`` differ from that in one bit; else None."""
    crc = crc32c(covered)
    if (_masked(crc) ^ stored).bit_count() == 1:
        return covered if FULL <= covered[0] <= LAST else None
    flip = _flipped_bit(len(covered), crc ^ _unmasked(stored))
    if flip is None:
        return None
    fixed = bytearray(covered)
    fixed[flip[0]] ^= 1 << flip[1]
    return bytes(fixed) if FULL <= fixed[0] <= LAST else None


def _flipped_bit(size: int, difference: int) -> tuple[int, int] | None:
    """The byte and the bit whose change makes that difference of two sums of ``size`` bytes; None when there is none.

    The Hamming distance of CRC-32C is 4 or more up to 2**31 bits: two flipped bits are never taken for one.
    """
    for index in range(size - 1, -1, -1):
        bit = _BITS.get(difference)
        if bit is not None:
            return index, bit
        top = _BY_TOP[difference >> 24]  # the sum as it would be with one byte less behind it
        difference = ((difference ^ _TABLE[top]) << 8 | top) & 0xFFFFFFFF
    return None


def _next_group(data: bytes, position: int, following: int) -> Group | None:
    while (found := _BEGINNING.search(data, position)) is not None:
        position = found.start()
        sequence = int.from_bytes(data[position + 7 : position + 15], "little")
        if sequence >= following and (group := _group_at(data, position, following, correct=False)):
            return group
        position += 1
    return None


def operations(batch: bytes) -> Iterator[tuple[bytes, bytes | None]]:
    """The keys and values of a write batch, None for a removed key. Raises ValueError where it cannot be read."""
    position = _BATCH.size
    while position < len(batch):
        tag = batch[position]
        if tag > 1:
            raise ValueError(f"unknown operation {tag}")
        key, position = bytes_at(batch, position + 1)
        value: bytes | None = None
        if tag:
            value, position = bytes_at(batch, position)
        yield key, value


def has_operations(batch: bytes) -> bool:
    """True if a write batch has as many operations as it says."""
    try:
        return sum(1 for _ in operations(batch)) == int(_BATCH.unpack_from(batch)[1])
    except ValueError:
        return False


def bytes_at(data: bytes, position: int) -> tuple[bytes, int]:
    """The bytes behind their length at ``position``, and the position behind them. Raises ValueError."""
    size, position = varint(data, position)
    if position + size > len(data):
        raise ValueError("a length is behind the end")
    return data[position : position + size], position + size


def varint(data: bytes, position: int) -> tuple[int, int]:
    """A number of one to ten bytes at ``position``, and the position behind it. Raises ValueError."""
    value = 0
    for shift in range(0, 64, 7):
        if position >= len(data):
            break
        byte = data[position]
        value |= (byte & 127) << shift
        position += 1
        if byte < 128:
            return value, position
    raise ValueError("not a number")


def written(groups: Iterable[Group]) -> Iterator[bytes]:
    """A log with these groups, in parts."""
    room = BLOCK_BYTES
    for group in groups:
        rest, is_first = memoryview(group.data), True
        while is_first or rest:
            if room < _HEAD.size:
                yield bytes(room)
                room = BLOCK_BYTES
            part, rest = rest[: room - _HEAD.size], rest[room - _HEAD.size :]
            kind = (LAST if not rest else MIDDLE) if not is_first else (FULL if not rest else FIRST)
            covered = bytes((kind,)) + part
            yield _HEAD.pack(_masked(crc32c(covered)), len(part), kind) + part
            room -= _HEAD.size + len(part)
            is_first = False


def records(data: bytes) -> Iterator[bytes]:
    """The data of all groups of a file in this format, such as a MANIFEST, which has no batches. Raises ValueError for a damaged one.

    A torn end, zeros or a part of a group, ends it, as for LevelDB, which takes damage in the middle for one, too.
    """
    position, parts = 0, list[bytes]()
    while position < len(data):
        left = BLOCK_BYTES - position % BLOCK_BYTES
        if left < _HEAD.size:
            position += left
            continue
        found = _fragment_at(data, position, left, correct=False)
        if found is None:
            if _is_torn(data, position):
                return
            raise ValueError(f"damaged at byte {position}")
        kind, part, _ = found
        position += _HEAD.size + len(part)
        parts.append(part)
        if kind in (FULL, LAST):
            yield b"".join(parts)
            parts = []


def _is_torn(data: bytes, position: int) -> bool:
    """True if the file ends in a fragment that was never whole: LevelDB passes over it, and nothing whole is behind it."""
    rest = len(data) - position
    if rest < _HEAD.size or not data[position:].strip(b"\0"):
        return True
    _, length, kind = _HEAD.unpack_from(data, position)
    is_passed = _HEAD.size + length > rest if FULL <= kind <= LAST else not kind and not length
    return is_passed and not _is_whole_from(data, position)


def _is_whole_from(data: bytes, position: int) -> bool:
    """True if there is a fragment at ``position`` but for one bit, or a whole one anywhere behind it."""
    for at in range(position, len(data) - _HEAD.size + 1):
        left = BLOCK_BYTES - at % BLOCK_BYTES
        is_head = at == position or (left >= _HEAD.size and FULL <= data[at + _HEAD.size - 1] <= LAST)
        if is_head and _fragment_at(data, at, left, correct=at == position) is not None:
            return True
    return False


def loose_data(data: bytes, damage: DamagedBytes) -> bytes:
    """Damaged bytes without the heads of their fragments, as far as these can be found: for a search."""
    position, parts = damage.start, list[bytes]()
    while position < damage.end:
        left = BLOCK_BYTES - position % BLOCK_BYTES
        rest = min(left, damage.end - position)
        part = data[position : position + rest]
        if rest >= _HEAD.size:
            _, length, kind = _HEAD.unpack_from(data, position)
            if FULL <= kind <= LAST and length + _HEAD.size <= left:
                part = data[position + _HEAD.size : min(position + _HEAD.size + length, damage.end)]
                rest = _HEAD.size + length
            elif left < _HEAD.size:
                part = b""
        parts.append(part)
        position += rest
    return b"".join(parts)
