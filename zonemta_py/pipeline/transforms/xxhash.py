"""Spark's ``xxhash64`` of texts, by numpy: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md, with seed 42.

A step handles the same bytes of all texts that have them, so that the cost is that of the longest text's steps.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SEED = 42
PADDING = 32  # bytes that may be read behind the last text

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(each)
    for each in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)

Words = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]


def xxhash64(texts: pa.StringArray, number: int | None = None) -> Numbers:
    """The hash of each text, and of ``number`` (32 bits) besides, as an ``int``; of null that of an empty text."""
    ends = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)
    padded = np.concatenate([data[ends[0] : ends[-1]], np.zeros(PADDING, np.uint8)])
    starts = (ends[:-1] - ends[0]).astype(np.int64)
    lengths = np.diff(ends).astype(np.int64)
    if texts.null_count:
        lengths[texts.is_null().to_numpy(zero_copy_only=False)] = 0
    with np.errstate(over="ignore"):
        found = _hashed(padded, starts, lengths)
        if number is not None:
            mixed = (found + _P5 + np.uint64(4)) ^ (np.uint64(number & 0xFFFFFFFF) * _P1)
            found = _mixed(_rotated(mixed, 23) * _P2 + _P3)
    return found.view(np.int64)


def _hashed(data: npt.NDArray[np.uint8], starts: Numbers, lengths: Numbers) -> Words:
    state = np.full(len(starts), np.uint64(SEED) + _P5)
    at = starts.copy()
    ends = starts + lengths
    long = np.flatnonzero(lengths >= 32)
    if len(long):
        state[long], at[long] = _stripes(data, at[long], ends[long])
    state += lengths.astype(np.uint64)
    while len(rows := np.flatnonzero(at + 8 <= ends)):
        mixed = state[rows] ^ _round(np.zeros(len(rows), np.uint64), _word(data, at[rows], 8))
        state[rows] = _rotated(mixed, 27) * _P1 + _P4
        at[rows] += 8
    if len(rows := np.flatnonzero(at + 4 <= ends)):
        mixed = state[rows] ^ (_word(data, at[rows], 4) * _P1)
        state[rows] = _rotated(mixed, 23) * _P2 + _P3
        at[rows] += 4
    while len(rows := np.flatnonzero(at < ends)):
        mixed = state[rows] ^ (data[at[rows]].astype(np.uint64) * _P5)
        state[rows] = _rotated(mixed, 11) * _P1
        at[rows] += 1
    return _mixed(state)


def _mixed(state: Words) -> Words:
    state = (state ^ (state >> np.uint64(33))) * _P2
    state = (state ^ (state >> np.uint64(29))) * _P3
    return state ^ (state >> np.uint64(32))


def _stripes(data: npt.NDArray[np.uint8], at: Numbers, ends: Numbers) -> tuple[Words, Numbers]:
    """The state after all blocks of 32 bytes, and where they end."""
    seed = np.uint64(SEED)
    lanes = [np.full(len(at), each) for each in (seed + _P1 + _P2, seed + _P2, seed, seed - _P1)]
    while len(rows := np.flatnonzero(at + 32 <= ends)):
        for number, lane in enumerate(lanes):
            lane[rows] = _round(lane[rows], _word(data, at[rows] + 8 * number, 8))
        at[rows] += 32
    state = sum((_rotated(lane, turn) for lane, turn in zip(lanes, (1, 7, 12, 18), strict=True)), np.zeros(len(at), np.uint64))  # fmt: skip
    for lane in lanes:
        state = (state ^ _round(np.zeros(len(at), np.uint64), lane)) * _P1 + _P4
    return state, at


def _round(state: Words, word: Words) -> Words:
    return _rotated(state + word * _P2, 31) * _P1


def _rotated(words: Words, bits: int) -> Words:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))


def _word(data: npt.NDArray[np.uint8], at: Numbers, size: int) -> Words:
    """The little-endian number of ``size`` bytes at each place."""
    windows = np.lib.stride_tricks.sliding_window_view(data, size)[at]
    return np.ascontiguousarray(windows).view(f"<u{size}")[:, 0].astype(np.uint64)
