"""Chunks of large bodies in segment files: what is read back, when files go, what a crash or damage leaves."""

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.queue import Clock, accept, begin, lease, make_queue, opened, problems, settle
from zonemta_py.core.errors import QueueCorrupt, QueueUnavailable
from zonemta_py.core.model import OutcomeKind
from zonemta_py.queue.format import keys
from zonemta_py.storage import leveldb_store
from zonemta_py.storage import segments as segment_use
from zonemta_py.storage.interface import MOVE_CHUNKS, Access, Op
from zonemta_py.storage.leveldb import LevelDB
from zonemta_py.storage.leveldb_store import LevelDBStore
from zonemta_py.storage.segments import Append, Reference, SegmentFiles, decode_reference

ONE, TWO, THREE = (f"{n:024x}" for n in (1, 2, 3))
SEGMENT_BYTES = 5 * keys.CHUNK_BYTES


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of four chunks."""
    monkeypatch.setattr(segment_use, "SEGMENT_BYTES", SEGMENT_BYTES)


@pytest.fixture
def store(directory: Path) -> Iterator[LevelDBStore]:
    found = LevelDBStore(directory / "db")
    yield found
    found.close()


def chunk(seed: int) -> bytes:
    return random.Random(seed).randbytes(keys.CHUNK_BYTES)


def write(store: LevelDBStore, *ops: Op, sync: bool = True) -> None:
    store.write(store.batch(ops, sync=sync))


def put_body(store: LevelDBStore, message: str, count: int) -> list[Op]:
    """Write a body of ``count`` whole chunks and a marker, as the queue does; returns all of it."""
    body: list[Op] = [(keys.chunk_key(message, n), chunk(n)) for n in range(1, count + 1)]
    write(store, *body)
    write(store, (keys.mark_key(message), b"mark"))
    return [(keys.mark_key(message), b"mark"), *body]


def remove(store: LevelDBStore, message: str) -> None:
    prefix = keys.message_prefix(message)
    write(store, *((key, None) for key in list(store.keys(prefix, keys.end_of(prefix)))))


def segments(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "db" / "bodies").glob("*"))


def test_a_reference_has_this_layout() -> None:
    reference = Reference(1, 16, 65_536, 0xDEADBEEF)
    assert reference.encode().hex() == "007365677265660100000001000000100001" + "0000deadbeef"
    assert decode_reference(reference.encode()) == reference
    assert decode_reference(b"x" * 24) is None


def test_whole_chunks_are_in_a_segment(directory: Path, store: LevelDBStore) -> None:
    body = put_body(store, ONE, 4)
    assert list(store.scan(b"", b"\xff")) == body
    assert [key for key, _ in body] == list(store.keys(keys.MESSAGE, keys.end_of(keys.MESSAGE)))
    [name] = segments(directory)
    header, *chunks = (
        (directory / "db" / "bodies" / name).read_bytes().partition(b"zonemta bodies 1")[1:]
    )
    assert header == b"zonemta bodies 1"
    assert chunks == [b"".join(value or b"" for _, value in body[1:])]
    assert store.get(body[3][0]) == body[3][1]
    with store.frozen() as view:
        assert view.get(body[4][0], checked=False) == body[4][1]


def test_nothing_is_in_a_segment_without_the_setting(directory: Path) -> None:
    store = LevelDBStore(directory / "db", segments_from=None)
    body = put_body(store, ONE, 4)
    assert store.get(body[4][0]) == body[4][1]
    assert segments(directory) == []
    store.close()


@pytest.mark.parametrize(
    ("size", "segments_from", "number", "is_there"),
    [
        (32 << 10, 32 << 10, 1, True),
        ((32 << 10) - 1, 32 << 10, 1, False),
        (64 << 10, 100_000, 1, False),
        (40_000, 100_000, 2, True),
        (30_000, 32 << 10, 5, False),
    ],
)
def test_which_chunks_are_in_a_segment(
    directory: Path, size: int, segments_from: int, number: int, is_there: bool
) -> None:
    """Those of 32 KiB or more that end behind ``segments_from``."""
    store = LevelDBStore(directory / "db", segments_from=segments_from)
    key, value = keys.chunk_key(ONE, number), b"x" * size
    write(store, (key, value), (keys.mark_key(ONE), b"mark"))
    assert store.get(key) == value
    assert bool(segments(directory)) == is_there
    remove(store, ONE)
    assert list(store.check()) == []
    store.close()


def test_first_chunks_are_counted(directory: Path) -> None:
    """While none is in a segment, the removal of one is not looked up: small mail costs nothing more."""
    store = LevelDBStore(directory / "db")
    write(
        store, (keys.chunk_key(ONE, 1), b"short"), (keys.chunk_key(TWO, 1), chunk(1)), (b"open/x", b"")
    )
    store.close()
    store = LevelDBStore(directory / "db")
    assert store._use._firsts == 1
    remove(store, ONE)
    assert store._use._firsts == 1
    remove(store, TWO)
    assert store._use._firsts == 0
    assert list(store._database.keys(keys.SEGMENT, keys.end_of(keys.SEGMENT))) == []
    store.close()


def test_a_short_chunk_that_looks_like_a_reference_is_itself(
    directory: Path, store: LevelDBStore
) -> None:
    """A client could write one, and would be sent other mail."""
    put_body(store, ONE, 3)
    forged = Reference(1, 16, 65_536, 0).encode()
    for number in (1, 2):
        write(store, (keys.chunk_key(TWO, number), forged))
        write(store)
        assert store.get(keys.chunk_key(TWO, number)) == forged
    write(store, (b"outbox/1", forged))
    assert dict(store.scan(b"", b"\xff"))[b"outbox/1"] == forged
    remove(store, TWO)
    assert list(store.check()) == [""]


def test_references_wait_for_the_next_other_batch(directory: Path, store: LevelDBStore) -> None:
    """Until then the bytes are not synced, and a reader finds nothing."""
    key = keys.chunk_key(ONE, 2)
    write(store, (key, chunk(2)))
    assert store.get(key) is None
    write(store, (b"open/x", b""))
    assert store.get(key) == chunk(2)
    write(store, (keys.chunk_key(ONE, 3), chunk(3)))
    write(store, (keys.chunk_key(ONE, 3), None))
    write(store)
    assert store.get(keys.chunk_key(ONE, 3)) is None


def test_references_are_written_after_four_megabytes(store: LevelDBStore) -> None:
    count = leveldb_store.UNSYNCED_BYTES_MAX // keys.CHUNK_BYTES
    for number in range(2, count + 2):
        write(store, (keys.chunk_key(ONE, number), b"%065536d" % number))
    assert len(list(store.keys(keys.MESSAGE, keys.end_of(keys.MESSAGE)))) == count


@pytest.mark.usefixtures("small_segments")
def test_a_segment_goes_with_its_last_chunk(directory: Path, store: LevelDBStore) -> None:
    put_body(store, ONE, 3)
    put_body(store, TWO, 3)
    put_body(store, THREE, 3)
    assert segments(directory) == ["00000001.segment", "00000002.segment", "00000003.segment"]
    remove(store, ONE)
    assert "00000001.segment" in segments(directory)
    with store.frozen() as view:
        remove(store, TWO)
        assert view.get(keys.chunk_key(TWO, 3)) == chunk(3)
    assert "00000001.segment" in segments(directory)
    write(store)
    assert segments(directory) == ["00000002.segment", "00000003.segment"]
    assert store.get(keys.chunk_key(THREE, 3)) == chunk(3)


@pytest.mark.usefixtures("small_segments")
def test_a_view_that_begins_before_the_write_keeps_its_segments(
    directory: Path, store: LevelDBStore
) -> None:
    """The batch that removes a segment's last chunk was made before the view, and is written meanwhile, as by another thread."""
    for message in (ONE, TWO, THREE):
        put_body(store, message, 3)
    remove(store, ONE)
    prefix = keys.message_prefix(TWO)
    batch = store.batch(
        [(key, None) for key in list(store.keys(prefix, keys.end_of(prefix)))], sync=True
    )
    with store.frozen() as view:
        store.write(batch)
        assert view.get(keys.chunk_key(TWO, 3)) == chunk(3)
        write(store)
    assert "00000001.segment" in segments(directory)
    write(store)
    assert segments(directory) == ["00000002.segment", "00000003.segment"]
    assert store.get(keys.chunk_key(THREE, 3)) == chunk(3)


def test_a_segment_that_is_removed_while_the_directory_is_read(directory: Path) -> None:
    """A check of a running relay lists segments that a batch removes meanwhile."""
    files = SegmentFiles(directory / "bodies")
    assert (files.sizes(), files.strangers()) == ({}, [])
    files.directory.mkdir()
    (files.directory / "00000001.segment").write_bytes(b"body")
    (files.directory / "00000002.segment").symlink_to(directory / "gone")  # listed, and not there
    (files.directory / "notes.txt").write_bytes(b"")
    assert files.sizes() == {1: 4}
    assert files.strangers() == ["notes.txt"]


@pytest.mark.usefixtures("small_segments")
def test_an_opening_removes_what_no_key_needs(directory: Path) -> None:
    """The number of one that had references is not used again."""
    store = LevelDBStore(directory / "db")
    put_body(store, ONE, 3)
    put_body(store, TWO, 3)
    remove(store, ONE)
    store.close()
    (directory / "db" / "bodies" / "00000009.segment").write_bytes(b"of a writer that was killed")
    LevelDBStore(directory / "db", Access.READ).close()
    assert "00000009.segment" in segments(directory)
    store = LevelDBStore(directory / "db")
    assert segments(directory) == ["00000001.segment", "00000002.segment"]
    assert store.get(keys.chunk_key(TWO, 3)) == chunk(3)
    remove(store, TWO)
    store.close()
    store = LevelDBStore(directory / "db")
    put_body(store, THREE, 1)
    assert segments(directory) == ["00000003.segment"]
    store.close()


def test_a_sparse_segment_is_emptied(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_use, "SEGMENT_BYTES", 40 * keys.CHUNK_BYTES)
    store = LevelDBStore(directory / "db")
    put_body(store, ONE, 37)
    kept = put_body(store, TWO, 1)
    put_body(store, THREE, 3)
    assert not store.is_sparse()
    remove(store, ONE)
    assert store.is_sparse()
    write(store, (MOVE_CHUNKS, None))
    write(store)
    assert not store.is_sparse()
    assert segments(directory) == ["00000002.segment"]
    assert dict(store.scan(keys.message_prefix(TWO), keys.end_of(keys.message_prefix(TWO)))) == dict(
        kept
    )
    assert [text for text in store.check() if text] == []
    store.close()


@pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
def test_damage_is_an_error_of_its_message(directory: Path, store: LevelDBStore, how: str) -> None:
    put_body(store, ONE, 2)
    path = directory / "db" / "bodies" / "00000001.segment"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(data if how == "flipped" else data[:70_000])
    number = 1 if how == "flipped" else 2
    with pytest.raises(QueueCorrupt, match=r"00000001\.segment"):
        store.get(keys.chunk_key(ONE, number))
    remove(store, ONE)
    assert store.get(keys.chunk_key(ONE, number)) is None


@pytest.mark.usefixtures("small_segments")
def test_a_repair_finds_out_what_is_needed(directory: Path) -> None:
    """A repair of the database may lose SEGMENT keys, and the next opening must not remove the bodies."""
    store = LevelDBStore(directory / "db")
    body = put_body(store, ONE, 4)
    store.close()
    database = LevelDB(directory / "db")
    lost = list(database.keys(keys.SEGMENT, keys.end_of(keys.SEGMENT)))
    database.write(database.batch([(key, None) for key in lost], sync=True))
    database.close()
    LevelDBStore(directory / "db", Access.REPAIR).close()
    store = LevelDBStore(directory / "db")
    assert store.get(keys.chunk_key(ONE, 4)) == body[4][1]
    store.close()


def test_a_full_disk_is_final(store: LevelDBStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(QueueUnavailable, match="No space"):
        write(store, (keys.chunk_key(ONE, 2), chunk(2)), (b"open/x", b""))
    assert store.get(keys.chunk_key(ONE, 2)) is None


def test_a_write_in_parts(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may write less than it was given."""
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda handle, parts, at: real(handle, [parts[0][:10]], at))
    files = SegmentFiles(directory / "bodies")
    files.append(Append(1, 16, [b"a" * 20, b"b" * 20]))
    files.finish(sync=True)
    assert files.read(Reference(1, 16, 40, 0), b"", checked=False) == b"a" * 20 + b"b" * 20
    files.close()


Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["body", "body", "chunks", "remove", "remove", "move", "empty", "open"]),
        st.integers(0, 5),
        st.integers(1, 6),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_it_holds_what_a_dictionary_holds(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step]
) -> None:
    """After any bodies, removals, moves and openings, also in one batch; nothing is left behind."""
    directory = tmp_path_factory.mktemp("segments")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_use, "SEGMENT_BYTES", SEGMENT_BYTES)
        patch.setattr(segment_use, "SPARSE_PART", 2)
        store, model = LevelDBStore(directory / "db"), dict[bytes, bytes]()
        for what, which, count in steps:
            message = f"{which:024x}"
            mine = [key for key in model if keys.owner_of(key) == message]
            ops: list[Op] = []
            if what in ("body", "chunks") and not mine:
                ops = [
                    (keys.chunk_key(message, n), bytes([n]) * keys.CHUNK_BYTES)
                    for n in range(1, count + 1)
                ]
                ops += [(keys.mark_key(message), b"")] if what == "body" else []
            elif what == "remove":
                ops = [(key, None) for key in mine[:count]]
            elif what == "move":
                ops = [(MOVE_CHUNKS, None), *((key, None) for key in mine[:1])]
            elif what == "open":
                write(store)
                store.close()
                store = LevelDBStore(directory / "db")
            if ops or what == "empty":
                write(store, *ops)
            for key, value in ops:
                if value is None:
                    model.pop(key, None)
                else:
                    model[key] = value
        write(store)
        held = dict(store.scan(keys.MESSAGE, keys.end_of(keys.MESSAGE)))
        assert held == model
        assert [text for text in store.check() if text] == []
        for key in list(model):
            write(store, (key, None))
        store.close()
        store = LevelDBStore(directory / "db")
        assert segments(directory) == []
        store.close()
    shutil.rmtree(directory)


async def test_a_large_body_goes_through_the_queue(directory: Path) -> None:
    """Accepted, killed (copied while it is open), opened, delivered, removed with its segment."""
    clock, body = Clock(), random.Random(1).randbytes(9_000_000)
    queue = make_queue(directory / "queue", clock)
    await begin(queue)
    await accept(queue, "a@x.example", body=body)
    shutil.copytree(directory / "queue", directory / "copy")
    await queue.close()
    async with opened(directory / "copy", clock) as queue:
        assert problems(queue.store) == []
        held = lease(queue, "x.example")
        assert b"".join(queue.bodies.read(held.active)) == body
        await settle(queue, held, OutcomeKind.DELIVERED)
        await queue.cleanup.remove_chunks(held.active.id)
        assert queue.store.freed_chunk_bytes() < 2 * keys.CHUNK_BYTES
    async with opened(directory / "copy", clock) as queue:
        assert problems(queue.store) == []
        assert list((directory / "copy" / "db" / "bodies").iterdir()) == []
