"""Which segments there are, how many chunks of each are needed, and where the next chunk goes: it decides, and touches no file."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from zonemta_py.queue.format import keys
from zonemta_py.storage.segments import FILE_HEADER, NUMBER_DIGITS

SEGMENT_BYTES = 64 << 20
SPARSE_PART = 10  # a segment with less than a tenth still needed is emptied
FIRST = b"/000001"  # the end of the key of a body's first chunk


class SegmentUse:
    """The segments of a store.

    ``sizes``: in bytes, of those on disk; ``segment_keys``: the keys that keep chunks; ``last``: no new segment has a
    number up to this one.
    """

    def __init__(self, sizes: dict[int, int], segment_keys: Iterable[bytes], last: int) -> None:
        self._sizes = sizes
        self._needed = Counter[int]()
        self._firsts = 0
        number = slice(len(keys.SEGMENT), len(keys.SEGMENT) + NUMBER_DIGITS)
        for key in segment_keys:
            self._needed[int(key[number])] += 1
            self._firsts += key.endswith(FIRST)
        self.newest = max(last, *sizes, *self._needed, 0)
        self._end = SEGMENT_BYTES  # the first chunk begins a new segment
        self._damaged: set[int] = set()  # cannot be emptied
        self._unneeded = self._sizes.keys() - self._needed.keys()
        self._postponed: list[int] = []  # unneeded ones that a frozen view may read
        self._pins = 0  # frozen views, which may read what was removed since

    def has_firsts(self) -> bool:
        """Whether the first chunk of any body is in a segment."""
        return self._firsts > 0

    def size_bytes(self) -> int:
        """The size of all; any thread may ask."""
        return sum(self._sizes.copy().values())

    def place(self, key: bytes, size: int) -> tuple[int, int]:
        """The segment and the offset for a chunk of ``size`` bytes: in the newest one, or in a new one."""
        if self._end + size > SEGMENT_BYTES:
            full, self.newest = self.newest, self.newest + 1
            self._mark_if_unneeded(full)
            self._end = len(FILE_HEADER)
        offset, self._end = self._end, self._end + size
        self._needed[self.newest] += 1
        self._firsts += key.endswith(FIRST)
        self._sizes[self.newest] = self._end
        return self.newest, offset

    def release(self, number: int, key: bytes) -> None:
        """The chunk of ``key`` in segment ``number`` is not needed any more."""
        self._needed[number] -= 1
        self._firsts -= key.endswith(FIRST)
        self._mark_if_unneeded(number)

    def _mark_if_unneeded(self, number: int) -> None:
        if self._needed[number] <= 0 and number != self.newest and number in self._sizes:
            self._unneeded.add(number)

    # ---- removal

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """Until its end no segment is to be removed."""
        self._pins += 1
        try:
            yield
        finally:
            self._pins -= 1

    def has_unneeded(self) -> bool:
        """Whether ``take_unneeded`` may return any."""
        return bool(self._unneeded or self._postponed)

    def take_unneeded(self) -> list[int]:
        """The segments to remove with the next batch: none while they are pinned. They count as removed."""
        if self._pins:
            return []
        unneeded, self._unneeded = sorted(self._unneeded), set()
        for number in unneeded:
            del self._sizes[number], self._needed[number]
        postponed, self._postponed = self._postponed, []
        return postponed + unneeded

    def postpone(self, numbers: list[int]) -> bool:
        """Whether segments that were taken must stay for now: a view has begun since the batch was made and may read them."""
        if self._pins:
            self._postponed += numbers
        return self._pins > 0

    # ---- emptying

    def sparsest(self) -> int | None:
        """A segment of which less than a tenth is needed."""
        for number, size in self._sizes.items():
            used = self._needed[number] * keys.CHUNK_BYTES
            if 0 < used * SPARSE_PART < size and number not in self._damaged and number != self.newest:
                return number
        return None

    def mark_damaged(self, number: int) -> None:
        """Segment ``number`` cannot be emptied."""
        self._damaged.add(number)
