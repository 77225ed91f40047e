"""The use of segments, without files: places, what may be removed and when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.queue.format import keys
from zonemta_py.storage import segments
from zonemta_py.storage.segments import FILE_HEADER, SegmentUse

BODY = "0" * 24
CHUNKS = [keys.chunk_key(BODY, number) for number in range(1, 200)]
SIZE = keys.CHUNK_BYTES
HEADER = len(FILE_HEADER)


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", HEADER + 20 * SIZE)


def test_a_new_segment_for_each_process_and_when_one_is_full() -> None:
    use = SegmentUse({3: HEADER + SIZE}, [keys.segment_key(3, CHUNKS[0])], 4)
    assert [use.place(key, SIZE) for key in CHUNKS[:2]] == [(5, HEADER), (5, HEADER + SIZE)]
    assert [use.place(key, SIZE)[0] for key in CHUNKS[2:21]] == [5] * 18 + [6]
    assert use.size_bytes() == 3 * HEADER + 22 * SIZE


def test_what_is_on_disk_and_not_needed_is_removed_at_the_start() -> None:
    use = SegmentUse({1: 100, 2: 100}, [keys.segment_key(2, CHUNKS[0])], 0)
    assert use.take_unneeded() == [1]
    assert not use.has_unneeded()


def test_nothing_is_removed_while_a_view_may_read_it() -> None:
    use = SegmentUse({1: 100}, [keys.segment_key(1, CHUNKS[0])], 1)
    use.place(CHUNKS[1], SIZE)
    use.release(1, CHUNKS[0])
    with use.pinned():
        assert use.take_unneeded() == []
    assert use.take_unneeded() == [1]
    with use.pinned():
        assert use.postpone([1])
    assert use.take_unneeded() == [1]
    assert not use.postpone([1])


def test_the_newest_segment_stays_until_another_is_the_newest() -> None:
    use = SegmentUse({}, [], 0)
    for key in CHUNKS[:20]:
        use.place(key, SIZE)
    for key in CHUNKS[:20]:
        use.release(1, key)
    assert use.take_unneeded() == []
    use.place(CHUNKS[20], SIZE)
    assert use.take_unneeded() == [1]


def test_a_sparse_segment_that_is_damaged_is_left() -> None:
    use = SegmentUse({}, [], 0)
    for key in CHUNKS[:21]:
        use.place(key, SIZE)
    for key in CHUNKS[3:20]:
        use.release(1, key)
    assert use.sparsest() is None, "more than a tenth is needed"
    use.release(1, CHUNKS[2])
    assert use.sparsest() == 1
    use.mark_damaged(1)
    assert use.sparsest() is None


@given(st.lists(st.tuples(st.booleans(), st.integers(0, len(CHUNKS) - 1)), max_size=300))
def test_a_segment_is_removed_when_it_is_not_needed_and_not_before(
    steps: list[tuple[bool, int]],
) -> None:
    use = SegmentUse({}, [], 0)
    places: dict[bytes, int] = {}
    removed: set[int] = set()
    for stored, number in steps:
        key = CHUNKS[number]
        if key in places:
            use.release(places.pop(key), key)
        if stored:
            places[key], offset = use.place(key, SIZE)
            assert HEADER <= offset <= HEADER + 19 * SIZE
        removed.update(use.take_unneeded())
        assert not removed & set(places.values())
    assert removed == set(range(1, use.newest)) - set(places.values())
    assert use.has_firsts() == (CHUNKS[0] in places)
