"""Queues from one store to another: byte for byte, whatever breaks off."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.queue import accept, opened
from tests.kit.servers import queue_settings
from zonemta_py.config.schema import QueueSettings
from zonemta_py.core.errors import LocalError
from zonemta_py.queue.format import keys
from zonemta_py.queue.upkeep import transfer as moving
from zonemta_py.queue.upkeep.recovery import identify
from zonemta_py.queue.upkeep.transfer import export_queue, import_queue
from zonemta_py.storage import archive
from zonemta_py.storage.interface import Op, Store
from zonemta_py.storage.memory import MemoryStore
from zonemta_py.storage.open import open_store

KINDS = ("leveldb", "filesystem", "memory")


def quiet(count: int) -> None:
    """No progress."""


def everything(store: Store) -> dict[bytes, bytes]:
    return dict(store.scan(b"", moving.LAST))


def filled(store: Store, records: dict[bytes, bytes]) -> Store:
    """A queue with an identity and ``records``."""
    identify(store)
    ops: list[Op] = list(records.items())
    store.write(store.batch(ops, sync=True))
    return store


RECORDS = {b"message/%024d/%06d" % (n, 1): bytes([n % 256]) * (n * 997 % 65_537) for n in range(200)}


PAIRS = [(one, other) for one in KINDS for other in KINDS]
PAIRS += [("leveldb", "redis"), ("redis", "s3"), ("s3", "leveldb")]


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_between_all_stores(folder: Path, source: str, target: str) -> None:
    """Every key and value, and nothing else."""
    one = filled(open_store(queue_settings(folder / "one", source)), RECORDS)
    other = open_store(queue_settings(folder / "other", target))
    path = folder / "queue.export"
    told: list[int] = []
    assert export_queue(one, path, told.append) == len(RECORDS) + 3 == sum(told)
    assert import_queue(other, path, quiet) == len(RECORDS) + 3
    assert everything(other) == everything(one)
    one.close()
    other.close()


async def test_a_real_queue(folder: Path) -> None:
    """What was accepted is found, and checked, in the other store."""
    async with opened(folder / "one") as queue:
        await accept(queue, "a@x.example", "b@y.example")
        found = everything(queue.store)
    store = open_store(QueueSettings(directory=folder / "one"))
    export_queue(store, folder / "f", quiet)
    store.close()
    other = open_store(QueueSettings(directory=folder / "two"))
    import_queue(other, folder / "f", quiet)
    waiting = {key for key in everything(other) if key.startswith(keys.WAITING)}
    assert waiting == {key for key in found if key.startswith(keys.WAITING)} != set()
    other.close()


class Stopped(Exception):
    """The process ended here."""


class StoppingAfter:
    """Ends the work at the so-many-th word of progress."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self, count: int) -> None:
        self.left -= 1
        if self.left == 0:
            raise Stopped


@pytest.mark.parametrize("after", [1, 2, 3, 5])
def test_broken_off(folder: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Export and import go on where they were; meanwhile no relay opens half a queue."""
    monkeypatch.setattr(archive, "FRAME_BYTES", 100_000)
    one, other, path = filled(MemoryStore(), RECORDS), MemoryStore(), folder / "q"
    with pytest.raises(Stopped):
        export_queue(one, path, StoppingAfter(after))
    assert not path.exists()
    export_queue(one, path, quiet)
    with pytest.raises(Stopped):
        import_queue(other, path, StoppingAfter(after))
    if after > 1:
        with pytest.raises(LocalError, match="import of this queue is not finished"):
            identify(other)
        with pytest.raises(LocalError, match="its import is not finished"):
            export_queue(other, folder / "half", quiet)
    import_queue(other, path, quiet)
    assert everything(other) == everything(one)
    identify(other)


def test_a_file_that_is_torn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut or changed anywhere it is refused, or, as the part of an export, finished."""
    monkeypatch.setattr(archive, "FRAME_BYTES", 300_000)
    one, path = filled(MemoryStore(), RECORDS), folder / "q"
    export_queue(one, path, quiet)
    whole = path.read_bytes()
    cuts = [0, 5, 16, 40, *range(1000, len(whole), len(whole) // 9), len(whole) - 1]
    for cut in cuts:
        path.write_bytes(whole[:cut])
        with pytest.raises(LocalError, match="not whole"):
            import_queue(MemoryStore(), path, quiet)
        path.rename(folder / "q.part")
        export_queue(one, path, quiet)
        assert path.read_bytes() == whole
    for a, b in pairwise(cuts[4:]):
        place = (a + b) // 2
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(LocalError, match="not whole"):
            import_queue(MemoryStore(), path, quiet)


def test_what_is_refused(folder: Path) -> None:
    one, path = filled(MemoryStore(), {b"a": b"1"}), folder / "q"
    with pytest.raises(LocalError, match="there is no queue to export"):
        export_queue(MemoryStore(), path, quiet)
    export_queue(one, path, quiet)
    with pytest.raises(LocalError, match="there is something already"):
        export_queue(one, path, quiet)
    with pytest.raises(LocalError, match="there is a queue here already"):
        import_queue(one, path, quiet)
    (folder / "other").write_bytes(b"PK something else")
    with pytest.raises(LocalError, match="no queue that was exported"):
        import_queue(MemoryStore(), folder / "other", quiet)
    half = MemoryStore()
    with pytest.raises(Stopped):
        import_queue(half, path, StoppingAfter(2))
    two = filled(MemoryStore(), {b"b": b"2"})
    export_queue(two, folder / "q2", quiet)
    with pytest.raises(LocalError, match="another file was being imported"):
        import_queue(half, folder / "q2", quiet)


def test_a_part_of_another_life(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The relay ran in between: what was written of the queue before is worth nothing."""
    monkeypatch.setattr(archive, "FRAME_BYTES", 100_000)
    one, path, other = filled(MemoryStore(), RECORDS), folder / "q", MemoryStore()
    with pytest.raises(Stopped):
        export_queue(one, path, StoppingAfter(4))
    identify(one)
    one.write(one.batch([(next(iter(RECORDS)), None)], sync=True))
    export_queue(one, path, quiet)
    import_queue(other, path, quiet)
    assert everything(other) == everything(one)


@given(st.dictionaries(st.binary(min_size=1, max_size=40), st.binary(max_size=300), max_size=30), st.integers(1, 500))  # fmt: skip
def test_any_records(tmp_path_factory: pytest.TempPathFactory, records: dict[bytes, bytes], frame: int) -> None:  # fmt: skip
    records = {key: value for key, value in records.items() if key < moving.LAST and not key.startswith(b"meta/")}  # fmt: skip
    folder = tmp_path_factory.mktemp("move")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive, "FRAME_BYTES", frame)
        one, other = filled(MemoryStore(), records), MemoryStore()
        export_queue(one, folder / "q", quiet)
        import_queue(other, folder / "q", quiet)
    assert everything(other) == everything(one)
