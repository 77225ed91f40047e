"""Export and import of queues: byte for byte, whatever interrupts them."""

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
from zonemta_py.queue.upkeep import transfer
from zonemta_py.queue.upkeep import transfer as archive
from zonemta_py.queue.upkeep.startup import begin_boot
from zonemta_py.queue.upkeep.transfer import export_queue, import_queue
from zonemta_py.storage.interface import Op, Store
from zonemta_py.storage.memory import MemoryStore
from zonemta_py.storage.open import open_store

KINDS = ("leveldb", "filesystem", "memory")


def quiet(count: int) -> None:
    """No progress."""


def everything(store: Store) -> dict[bytes, bytes]:
    """All but the node, which an import chooses anew."""
    return {key: value for key, value in store.scan(b"", transfer.LAST) if key != keys.META_NODE}


def filled(store: Store, records: dict[bytes, bytes]) -> Store:
    """A queue with an identity and ``records``."""
    begin_boot(store)
    ops: list[Op] = list(records.items())
    store.write(store.batch(ops, sync=True))
    return store


RECORDS = {b"message/%024d/%06d" % (n, 1): bytes([n % 256]) * (n * 997 % 65_537) for n in range(200)}


PAIRS = [(one, other) for one in KINDS for other in KINDS]
PAIRS += [("leveldb", "redis"), ("redis", "s3"), ("s3", "leveldb")]


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_between_all_stores(directory: Path, source: str, target: str) -> None:
    """Every key and value, and nothing else."""
    one = filled(open_store(queue_settings(directory / "one", source)), RECORDS)
    other = open_store(queue_settings(directory / "other", target))
    path = directory / "queue.export"
    progress: list[int] = []
    assert export_queue(one, path, progress.append) == len(RECORDS) + 3 == sum(progress)
    assert import_queue(other, path, quiet) == len(RECORDS) + 3
    assert everything(other) == everything(one)
    one.close()
    other.close()


async def test_a_real_queue(directory: Path) -> None:
    """The recipients of an accepted message are in the other store."""
    async with opened(directory / "one") as queue:
        await accept(queue, "a@x.example", "b@y.example")
        found = everything(queue.store)
    store = open_store(QueueSettings(directory=directory / "one"))
    export_queue(store, directory / "f", quiet)
    store.close()
    assert (directory / "f").stat().st_mode & 0o777 == 0o600, "it has all mail"
    other = open_store(QueueSettings(directory=directory / "two"))
    import_queue(other, directory / "f", quiet)
    waiting = {key for key in everything(other) if key.startswith(keys.WAITING)}
    assert waiting == {key for key in found if key.startswith(keys.WAITING)} != set()
    other.close()


class Stopped(Exception):
    """The process ended here."""


class StoppingAfter:
    """Ends the work when progress is reported for the given time."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self, count: int) -> None:
        self.left -= 1
        if self.left == 0:
            raise Stopped


@pytest.mark.parametrize("after", [1, 2, 3, 5])
def test_interrupted(directory: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Export and import continue where they ended; until then no relay opens the queue."""
    monkeypatch.setattr(archive, "FRAME_BYTES", 100_000)
    one, other, path = filled(MemoryStore(), RECORDS), MemoryStore(), directory / "q"
    with pytest.raises(Stopped):
        export_queue(one, path, StoppingAfter(after))
    assert not path.exists()
    export_queue(one, path, quiet)
    with pytest.raises(Stopped):
        import_queue(other, path, StoppingAfter(after))
    if after > 1:
        with pytest.raises(LocalError, match="import of this queue is not finished"):
            begin_boot(other)
        with pytest.raises(LocalError, match="its import is not finished"):
            export_queue(other, directory / "half", quiet)
    import_queue(other, path, quiet)
    assert everything(other) == everything(one)
    begin_boot(other)


def test_two_imports_of_one_export(directory: Path) -> None:
    """Each gets a node of its own, so that no event of one has the identity of another's."""
    one = filled(MemoryStore(), RECORDS)
    export_queue(one, directory / "queue.export", quiet)
    copies = [MemoryStore(), MemoryStore()]
    for copy in copies:
        import_queue(copy, directory / "queue.export", quiet)
    assert len({store.get(keys.META_NODE) for store in (one, *copies)}) == 3


def test_a_damaged_file(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut or changed anywhere it is refused; as an unfinished export it is continued."""
    monkeypatch.setattr(archive, "FRAME_BYTES", 300_000)
    one, path = filled(MemoryStore(), RECORDS), directory / "q"
    export_queue(one, path, quiet)
    whole = path.read_bytes()
    cuts = [0, 5, 16, 40, *range(1000, len(whole), len(whole) // 9), len(whole) - 1]
    for cut in cuts:
        path.write_bytes(whole[:cut])
        with pytest.raises(LocalError, match="incomplete or damaged"):
            import_queue(MemoryStore(), path, quiet)
        path.rename(directory / "q.part")
        export_queue(one, path, quiet)
        assert path.read_bytes() == whole
    for a, b in pairwise(cuts[4:]):
        middle = (a + b) // 2
        path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
        with pytest.raises(LocalError, match="incomplete or damaged"):
            import_queue(MemoryStore(), path, quiet)


def test_refusals(directory: Path) -> None:
    """No export of no queue or to an existing file, no import of another file or into a queue."""
    one, path = filled(MemoryStore(), {b"a": b"1"}), directory / "q"
    with pytest.raises(LocalError, match="there is no queue to export"):
        export_queue(MemoryStore(), path, quiet)
    export_queue(one, path, quiet)
    with pytest.raises(LocalError, match="exists already"):
        export_queue(one, path, quiet)
    with pytest.raises(LocalError, match="there is a queue here already"):
        import_queue(one, path, quiet)
    (directory / "other").write_bytes(b"PK something else")
    with pytest.raises(LocalError, match="does not contain an exported queue"):
        import_queue(MemoryStore(), directory / "other", quiet)
    half = MemoryStore()
    with pytest.raises(Stopped):
        import_queue(half, path, StoppingAfter(2))
    two = filled(MemoryStore(), {b"b": b"2"})
    export_queue(two, directory / "q2", quiet)
    with pytest.raises(LocalError, match="import of another file is not finished"):
        import_queue(half, directory / "q2", quiet)


def test_an_export_of_an_earlier_boot(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The relay ran in between: the interrupted export is not continued."""
    monkeypatch.setattr(archive, "FRAME_BYTES", 100_000)
    one, path, other = filled(MemoryStore(), RECORDS), directory / "q", MemoryStore()
    with pytest.raises(Stopped):
        export_queue(one, path, StoppingAfter(4))
    begin_boot(one)
    one.write(one.batch([(next(iter(RECORDS)), None)], sync=True))
    export_queue(one, path, quiet)
    import_queue(other, path, quiet)
    assert everything(other) == everything(one)


@given(st.dictionaries(st.binary(min_size=1, max_size=40), st.binary(max_size=300), max_size=30), st.integers(1, 500))  # fmt: skip
def test_any_records(tmp_path_factory: pytest.TempPathFactory, records: dict[bytes, bytes], frame: int) -> None:  # fmt: skip
    records = {key: value for key, value in records.items() if key < transfer.LAST and not key.startswith(b"meta/")}  # fmt: skip
    directory = tmp_path_factory.mktemp("transfer")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive, "FRAME_BYTES", frame)
        one, other = filled(MemoryStore(), records), MemoryStore()
        export_queue(one, directory / "q", quiet)
        import_queue(other, directory / "q", quiet)
    assert everything(other) == everything(one)
