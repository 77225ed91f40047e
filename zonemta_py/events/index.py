"""Bloom filters over sealed segments: those that may have events of a message, or the acceptance of mail for an address.

    DIRECTORY/date=2026-11-21/hour=09/.index        an entry for each segment that was sealed in this hour

An entry, little-endian:

    4  b"zmbg"          2  length of the name       4  length of the filter in bytes, and of the numbers
    4  CRC-32 of all that follows                   then the name of the segment, 3 of 8 for its numbers, and the filter

The numbers are ``previous``, ``first`` and ``last`` of the trailer. Those of earlier versions begin with b"zmbf" and have no numbers.

Invariants:

- The filter has every key of its segment: a search that skips a segment misses nothing. The opposite is only likely: one in 150
  segments is read in vain (12 bits for each key, 4 probes). A filter of a few keys has 512 bits all the same.
- A segment without an entry is read as a whole. So a lost or torn index costs time and nothing else, and entries are not synced.
- Entries are only appended; the first damaged one ends the reading.

Callers: ``Segment.append`` and ``seal`` (``hashes_in``, ``add_to_index``); ``history`` and ``log`` (``read_index``, ``may_have``).

Example: ``may_have(entry.bits, hash_of(b"a@b.example"))`` is False for a segment without mail for this address.

Source: Bloom, "Space/time trade-offs in hash coding with allowable errors", 1970; Kirsch and Mitzenmacher, "Less hashing, same
performance", 2006, for probes from two hashes.
"""

import re
import struct
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from zonemta_py.core.codec import crc32
from zonemta_py.core.files import no_link

NAME = ".index"
MESSAGE_ID_LENGTH = 24
BITS_PER_KEY = 12
PROBES = 4
FILTER_MIN_BYTES = 64
_MESSAGE = b'"message":"'
_ACCEPTED = b'"event":"accepted"'
_FIELDS = (b'"recipient":"', b'"message_id":"')
_STRING = re.compile(rb'(?:[^"\\]|\\.)*')

_HEAD = struct.Struct("<4sHII")
_NUMBERS = struct.Struct("<QQQ")
_MAGIC, _MAGIC_WITHOUT = b"zmbg", b"zmbf"


def hash_of(key: bytes) -> int:
    """64 bits for a key; ``key`` is a JSON string without its quotes. A cryptographic hash would take three times as long."""
    return crc32(key) << 32 | crc32(key[::-1])


def keys_in(lines: bytes) -> set[bytes]:
    """The message ids in JSON lines of events, and the recipients and Message-ID fields of accepted messages,
    these in lower case.

    Splitting is faster than an expression.
    """
    found = {part[:MESSAGE_ID_LENGTH] for part in lines.split(_MESSAGE)[1:]}
    for accepted in lines.split(_ACCEPTED)[1:]:
        line = accepted.partition(b"\n")[0]
        for field in _FIELDS:
            for part in line.split(field)[1:]:
                key = part[: part.find(b'"')]
                if key.endswith(b"\\"):  # an escaped quote
                    match = _STRING.match(part)
                    key = match[0] if match is not None else key
                found.add(key.lower())
    return found - {b""}


def hashes_in(lines: bytes) -> "array[int]":
    """The hashes of the keys in ``lines``, one for each."""
    return array("Q", map(hash_of, keys_in(lines)))


def make_filter(hashes: Iterable[int], count: int) -> bytes:
    bits = bytearray(max(FILTER_MIN_BYTES, (count * BITS_PER_KEY + 7) // 8))
    size = len(bits) * 8
    for value in hashes:
        low, high = value & 0xFFFFFFFF, value >> 32
        for probe in range(PROBES):
            at = (low + probe * high) % size
            bits[at >> 3] |= 1 << (at & 7)
    return bytes(bits)


def may_have(bits: memoryview, value: int) -> bool:
    """True if the key with this hash may be among those of a filter."""
    size = len(bits) * 8
    low, high = value & 0xFFFFFFFF, value >> 32
    for probe in range(PROBES):
        at = (low + probe * high) % size
        if not bits[at >> 3] & (1 << (at & 7)):
            return False
    return True


Numbers = tuple[int, int, int]  # previous, first and last of a segment


class IndexEntry(NamedTuple):
    """The entry of a segment; ``numbers`` None for one of an earlier version."""

    name: str
    bits: memoryview
    numbers: Numbers | None


def add_to_index(segment: Path, hashes: "array[int]", numbers: Numbers) -> None:
    """Write the entry of a sealed segment. It is not synced: without it the segment is read. Raises OSError."""
    unique = set(hashes)
    entry = index_entry(segment.name.encode(), make_filter(unique, len(unique)), numbers)
    with open(segment.parent / NAME, "ab", opener=no_link) as file:
        file.write(entry)


def index_entry(name: bytes, bits: bytes, numbers: Numbers) -> bytes:
    content = _NUMBERS.pack(*numbers) + bits
    checksum = crc32(content, crc32(name))
    return _HEAD.pack(_MAGIC, len(name), len(content), checksum) + name + content


def read_index(hour: Path) -> Iterator[IndexEntry]:
    """The entries of a directory, as far as they can be read."""
    try:
        data = memoryview((hour / NAME).read_bytes())
    except OSError:
        return
    at = 0
    while at + _HEAD.size <= len(data):
        magic, name_length, length, checksum = _HEAD.unpack_from(data, at)
        start = at + _HEAD.size
        end = start + name_length + length
        if magic not in (_MAGIC, _MAGIC_WITHOUT) or end > len(data):
            return
        name, content = data[start : start + name_length], data[start + name_length : end]
        if crc32(content, crc32(name)) != checksum:
            return
        if magic == _MAGIC:
            yield IndexEntry(
                str(name, "utf-8", "replace"), content[_NUMBERS.size :], _NUMBERS.unpack_from(content)
            )
        else:
            yield IndexEntry(str(name, "utf-8", "replace"), content, None)
        at = end
