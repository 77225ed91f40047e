"""Which store is opened, and the error when it cannot be."""

import os
import shutil
from pathlib import Path

import pytest

from tests.kit.stores import MARK, put
from zonemta_py.config.schema import QueueSettings
from zonemta_py.core.errors import LocalError, QueueCorrupt, QueueLocked, QueueUnavailable
from zonemta_py.queue.format import keys
from zonemta_py.storage.interface import Access
from zonemta_py.storage.open import locked_files, open_store


@pytest.mark.parametrize("kind", ["leveldb", "filesystem"])
def test_a_second_opener_is_refused(directory: Path, kind: str) -> None:
    """The error names the process that has the store."""
    settings = QueueSettings(directory=directory, store=kind)
    store = open_store(settings)
    try:
        with pytest.raises(QueueLocked, match=f"process {os.getpid()}"):
            open_store(settings)
    finally:
        store.close()
    open_store(settings).close()


@pytest.mark.parametrize("other", ["filesystem", "memory"])
def test_a_queue_in_another_store(directory: Path, other: str) -> None:
    """Its mail would wait unseen: refused."""
    open_store(QueueSettings(directory=directory)).close()
    with pytest.raises(LocalError, match="store 'leveldb' here"):
        open_store(QueueSettings(directory=directory, store=other))


@pytest.mark.parametrize("kind", ["leveldb", "filesystem"])
@pytest.mark.parametrize("replaced", [False, True])
def test_files_that_were_deleted(directory: Path, kind: str, replaced: bool) -> None:
    """A write is refused, although the open files take it: no later opening would find it."""
    settings = QueueSettings(directory=directory / "queue", store=kind)
    store = open_store(settings)
    put(store, {b"meta/a": b"1"})
    (directory / "queue").rename(directory / "moved")
    if replaced:
        shutil.copytree(directory / "moved", directory / "queue")
    for _ in range(2):
        with pytest.raises(QueueUnavailable, match="deleted or replaced while it was in use"):
            put(store, {b"meta/b": b"2"})
    store.close()
    again = open_store(settings)
    assert dict(again.scan(b"meta/", b"meta0")) == ({b"meta/a": b"1"} if replaced else {})
    again.close()


def test_a_segment_that_was_deleted(directory: Path) -> None:
    store = open_store(QueueSettings(directory=directory))
    put(store, {keys.chunk_key("1" * 24, 2): b"c" * keys.CHUNK_BYTES, MARK: b"x"})
    shutil.rmtree(directory / "db" / "bodies")
    with pytest.raises(QueueUnavailable, match=r"00000001\.segment"):
        put(store, {keys.chunk_key("2" * 24, 2): b"c" * keys.CHUNK_BYTES, MARK: b"x"})
    store.close()


@pytest.mark.parametrize("access", [Access.CREATE, Access.READ])
def test_a_damaged_database(directory: Path, access: Access) -> None:
    """The error is one of damage, and names the database, also when its files are read in another place."""
    settings = QueueSettings(directory=directory)
    open_store(settings).close()
    (directory / "db" / "CURRENT").write_text("MANIFEST-999999\n")
    with pytest.raises(QueueCorrupt) as caught:
        open_store(settings, access=access)
    assert f"{directory}/db: Corruption: CURRENT points to" in str(caught.value)
    assert f"{directory}/db/MANIFEST-999999" in str(caught.value)


def test_a_path_with_the_word_lock(directory: Path) -> None:
    """An error of its files is not a lock of another process."""
    settings = QueueSettings(directory=directory / "blockstore")
    open_store(settings).close()
    database = directory / "blockstore" / "db"
    (database / "MANIFEST-000099").mkdir()
    (database / "CURRENT").write_text("MANIFEST-000099\n")
    with pytest.raises(LocalError, match="Is a directory") as caught:
        open_store(settings)
    assert not isinstance(caught.value, QueueLocked)


@pytest.mark.parametrize(
    ("kind", "text"), [("s3", "s3 has no files"), ("leveldb", "no queue to repair")]
)
def test_nothing_to_repair(directory: Path, kind: str, text: str) -> None:
    """A store on a server cannot be repaired here, and a queue has to be there."""
    settings = QueueSettings(directory=directory, store=kind)
    with pytest.raises(LocalError, match=text), locked_files(settings):
        pass
