"""Directories with damaged logs: what is opened, what is refused, what a repair names."""

import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from zonemta_py.core.errors import LocalError, QueueCorrupt, QueueLocked
from zonemta_py.queue.format import keys
from zonemta_py.storage import leveldb
from zonemta_py.storage.interface import Access
from zonemta_py.storage.leveldb import LevelDB
from zonemta_py.storage.leveldb_log import Group, read_groups
from zonemta_py.storage.leveldb_recovery import (
    MANIFESTS,
    WRITTEN,
    NamedRecipient,
    clean_logs,
    cut_torn_end,
    live_logs,
)

ID = "019a1b2c3d4e000001abcdef"
ACCEPTED = b'{"node":"abcdef","seq":1,"position":0,"event":"accepted","message":"%b","recipients":[{"index":0,"recipient":"%b","zone":"bulk"}]}\n'


def put(database: LevelDB, *ops: tuple[bytes, bytes | None]) -> None:
    database.write(database.batch(ops, sync=True))


@pytest.fixture
def database(directory: Path) -> Path:
    """Five batches in a log."""
    opened = LevelDB(directory / "db")
    put(opened, (keys.META_FORMAT, b"5"))
    for number in range(4):
        address = f"a{number}@x.example"
        put(
            opened,
            (keys.waiting_key("default", ID, address), b"record"),
            (keys.deferred_key("default", ID, "r" * 120 + address), None),
            (keys.chunk_key(ID, 1), b"c" * 5000),
            (keys.outbox_key(number + 1), ACCEPTED % (ID.encode(), b"e%d@x.example" % number)),
        )
    opened.close()
    return directory / "db"


def groups(path: Path) -> list[Group]:
    return [item for item in read_groups(path.read_bytes()) if isinstance(item, Group)]


def spoil(path: Path, at: int, value: bytes = b"\x99\x98\x97") -> None:
    data = path.read_bytes()
    path.write_bytes(data[:at] + value + data[at + len(value) :])


@pytest.mark.parametrize("tail", [bytes(3), bytes(64), b"\x00\x01\x02\x03\x40\x00\x01abc"])
def test_a_manifest_with_a_torn_end(database: Path, tail: bytes) -> None:
    """LevelDB accepts it; a lost log is noticed all the same."""
    (path,) = live_logs(database)
    (manifest,) = database.glob("MANIFEST-*")
    manifest.write_bytes(manifest.read_bytes() + tail)
    assert live_logs(database) == [path]
    path.write_bytes(b"")
    with pytest.raises(QueueCorrupt, match="is empty"):
        LevelDB(database)


@pytest.fixture
def several_tables(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database whose MANIFEST has a record for each of its tables."""
    monkeypatch.setattr(leveldb, "WRITE_BUFFER_BYTES", 1 << 16)
    opened = LevelDB(directory / "db")
    for number in range(40):
        put(opened, (b"key-%02d" % number, b"%d" % number * 4500))
    opened.close()
    return directory / "db"


def heads(manifest: bytes) -> list[int]:
    found, at = [], 0
    while at < len(manifest):
        found.append(at)
        at += 7 + int.from_bytes(manifest[at + 4 : at + 6], "little")
    return found


@pytest.mark.parametrize(
    "damage", [bytes(7), bytes(16), b"\x01\x02\x03\x04\x00\x70\x01", b"\x01\x02\x03\x04\x00\x00\x00"]
)
def test_a_manifest_with_damage_in_the_middle(several_tables: Path, damage: bytes) -> None:
    """LevelDB passes over it, opens the rest and deletes the tables that this does not name: so it is not opened."""
    (manifest,) = several_tables.glob("MANIFEST-*")
    whole, names = manifest.read_bytes(), {each.name for each in several_tables.iterdir()}
    assert len(heads(whole)) > 4
    for at in heads(whole)[:-2]:
        manifest.write_bytes(whole[:at] + damage + whole[at + len(damage) :])
        for access in (Access.READ, Access.EXISTING):
            with pytest.raises(
                QueueCorrupt, match=f"{several_tables}: {manifest.name}: damaged at byte"
            ):
                LevelDB(several_tables, access)
        assert {each.name for each in several_tables.iterdir()} == names


def test_a_repair_without_a_manifest_looks_at_all_logs(several_tables: Path) -> None:
    (manifest,) = several_tables.glob("MANIFEST-*")
    at = heads(manifest.read_bytes())[2]
    spoil(manifest, at, bytes(7))
    newest = several_tables / f"{int((several_tables / WRITTEN).read_text()):06}.log"
    spoil(newest, groups(newest)[0].start + 400)
    made_anew, left_out = clean_logs(several_tables)
    assert f"{manifest.name}: damaged at byte {at}: made anew" in made_anew.text
    assert (made_anew.is_lost, left_out.is_lost) == (False, True)
    assert f"{newest.name}: " in left_out.text
    newest.rename(newest.with_suffix(".away"))
    assert [each.is_lost for each in clean_logs(several_tables)] == [False, True]
    (several_tables / "CURRENT").unlink()
    assert [each.is_lost for each in clean_logs(several_tables)] == [False, True]
    newest.with_suffix(".away").rename(newest)
    leveldb.repair_database(several_tables)
    opened = LevelDB(several_tables, Access.EXISTING)
    assert len(list(opened.keys(b"key", b"kez"))) >= 38
    opened.close()


def test_a_log_that_a_compaction_has_begun(directory: Path) -> None:
    """Behind the last write, so it stays empty: nothing is lost."""
    opened = LevelDB(directory / "db")
    put(opened, (keys.META_FORMAT, b"6"))
    batch = opened.batch([(b"z", b"1")], sync=True)
    batch.write()
    opened.compact()
    opened._sync_names()
    opened.close()
    again = LevelDB(directory / "db")
    assert again.get(b"z") == b"1"
    again.close()


def test_the_newest_log_is_noted(database: Path) -> None:
    (path,) = live_logs(database)
    assert (database / WRITTEN).read_text() == f"{int(path.stem)}\n"
    opened = LevelDB(database, Access.EXISTING)
    put(opened, (b"k", b"v"))
    opened.close()
    (newer,) = live_logs(database)
    assert (database / WRITTEN).read_text() == f"{int(newer.stem)}\n" != f"{int(path.stem)}\n"
    (database / WRITTEN).unlink()  # an earlier version
    newer.write_bytes(b"")
    LevelDB(database, Access.EXISTING).close()


def test_names_are_on_disk_before_a_write_is_answered(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of CURRENT and of each log: LevelDB syncs the directory only in front of its MANIFEST."""
    synced: set[str] = set()

    def sync(path: Path) -> None:
        if (path / WRITTEN).exists():  # it names no log whose own name could be lost
            assert f"{int((path / WRITTEN).read_text()):06}.log" in synced
        synced.update(each.name for each in path.iterdir())

    monkeypatch.setattr(leveldb, "sync_directory", sync)
    monkeypatch.setattr(leveldb, "WRITE_BUFFER_BYTES", 1 << 16)
    opened = LevelDB(directory / "db")
    logs = set()
    for number in range(60):
        put(opened, (b"%d" % number, b"v" * 9000))
        newest = max((directory / "db").glob("*.log"), key=lambda path: int(path.stem))
        logs.add(newest.name)
        assert {newest.name, "CURRENT"} <= synced
    assert len(logs) > 3
    opened.close()


# ---- an opening that a power cut interrupts: see ``finish_opening``; other states: ``tests/crash/states``


@pytest.mark.parametrize("kept", ["nothing", "manifest"])
def test_the_rename_of_current_is_lost(directory: Path, kept: str) -> None:
    """And what LevelDB has removed after it is gone; of the old MANIFEST nothing, or not the log that it needs."""
    path = directory / "db"
    opened = LevelDB(path)
    put(opened, (b"k", b"v"))
    opened.close()
    current = (path / "CURRENT").read_text()
    manifest = (path / current.strip()).read_bytes()
    again = LevelDB(path)
    put(again, (b"k2", b"v2"))
    again.close()
    assert (path / "CURRENT").read_text() != current
    (path / "CURRENT").write_text(current)
    if kept == "manifest":
        (path / current.strip()).write_bytes(manifest)
    with pytest.raises(LocalError):
        LevelDB(path, Access.READ)  # changes nothing
    found = LevelDB(path, Access.EXISTING)
    assert (found.get(b"k"), found.get(b"k2")) == (b"v", b"v2")
    found.close()


@pytest.mark.parametrize("current", ["", MANIFESTS[0]])
@pytest.mark.parametrize("manifests", [MANIFESTS[:1], MANIFESTS[1:], MANIFESTS])
@pytest.mark.parametrize("left", [b"", bytes(41)], ids=["empty", "zeros"])
def test_a_database_that_was_being_made(
    directory: Path, current: str, manifests: Sequence[str], left: bytes
) -> None:
    path = directory / "db"
    path.mkdir(mode=0o700)
    for name in manifests:
        (path / name).write_bytes(left)
    if current:
        (path / "CURRENT").write_text(f"{current}\n")
        (path / "000003.log").touch()
    opened = LevelDB(path)
    put(opened, (b"k", b"v"))
    opened.close()


def test_a_repair_that_has_found_nothing(directory: Path) -> None:
    """It leaves an empty database, which is there."""
    path = directory / "db"
    LevelDB(path).close()
    for log in path.glob("*.log"):
        log.unlink()
    leveldb.repair_database(path)
    LevelDB(path, Access.EXISTING).close()


@pytest.mark.parametrize("other", ["000003.log", "000005.ldb", "MANIFEST-000003", WRITTEN])
def test_a_database_that_has_had_something_is_not_made_anew(directory: Path, other: str) -> None:
    path = directory / "db"
    path.mkdir(mode=0o700)
    (path / MANIFESTS[0]).write_bytes(b"")
    (path / other).write_bytes(b"x")
    with pytest.raises(LocalError, match="CURRENT is missing"):
        LevelDB(path)
    assert (path / other).read_bytes() == b"x"


def test_damage_is_left_out_and_named(database: Path) -> None:
    (path,) = live_logs(database)
    damaged = groups(path)[2]
    chunk = path.read_bytes().index(b"ccccc", damaged.start)
    before = path.read_bytes()
    spoil(path, chunk)
    changed = path.read_bytes()
    with pytest.raises(QueueCorrupt, match=rf"{path.name} is damaged at byte {damaged.start}"):
        LevelDB(database, Access.EXISTING)
    (found,) = clean_logs(database)
    assert found.is_lost
    assert f"{damaged.end - damaged.start} bytes from byte {damaged.start} on" in found.text
    assert found.named == (
        NamedRecipient("default", ID, "a1@x.example", b"record"),
        NamedRecipient("default", ID, "r" * 120 + "a1@x.example", is_removed=True),
        NamedRecipient("", ID, ""),
        NamedRecipient("bulk", ID, "e1@x.example"),
    )
    assert found.outbox == ((keys.outbox_key(2), ACCEPTED % (ID.encode(), b"e1@x.example")),)
    assert (database / "lost" / f"{path.name}.damaged").read_bytes() == changed
    assert len(groups(path)) == 4
    assert path.read_bytes() in before or len(path.read_bytes()) < len(before)
    assert [each.text for each in clean_logs(database)] == [found_gap(path)]


def found_gap(path: Path) -> str:
    """A second look finds the gap that the first one left."""
    return f"{path.name}: a write is missing in front of byte {groups(path)[2].start}"


def test_a_flipped_bit_is_set_right_by_a_repair_only(database: Path) -> None:
    (path,) = live_logs(database)
    before = path.read_bytes()
    spoil(path, len(before) - 100, bytes([before[-100] ^ 1]))
    with pytest.raises(QueueCorrupt, match="is damaged at byte"):
        LevelDB(database, Access.EXISTING)
    (found,) = clean_logs(database)
    assert (found.is_lost, found.named) == (False, ())
    assert path.read_bytes() == before
    assert clean_logs(database) == []


def test_a_torn_end(database: Path, caplog: pytest.LogCaptureFixture) -> None:
    (path,) = live_logs(database)
    last = groups(path)[-1]
    spoil(path, last.start + 2000, bytes(4096))
    torn = path.read_bytes()
    caplog.set_level(logging.WARNING)
    for keep in (False, True):
        path.write_bytes(torn)
        assert cut_torn_end(database, keep=keep)
        assert path.stat().st_size == last.start
        assert (database / "lost").exists() == keep
    assert f"{len(torn) - last.start} bytes from byte {last.start} on" in caplog.text
    assert "It names a3@x.example" in caplog.text
    assert not cut_torn_end(database, keep=True)
    path.write_bytes(torn)
    assert cut_torn_end(database, keep=True)  # again, under another name
    assert {each.name for each in (database / "lost").iterdir()} == {
        f"{path.name}.damaged", f"{path.name}.damaged-2",
    }  # fmt: skip


def test_a_full_disk(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left of an attempt, and the log is as it was: the relay tries again."""
    (path,) = live_logs(database)
    spoil(path, groups(path)[-1].start + 2000, bytes(4096))
    names, torn = {each.name for each in database.iterdir()}, path.read_bytes()

    def fsync(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(LocalError, match="No space left"):
            LevelDB(database, Access.EXISTING)
    assert {each.name for each in database.iterdir()} == names
    assert path.read_bytes() == torn
    LevelDB(database, Access.EXISTING).close()


def test_a_log_of_zeros_is_a_lost_log(database: Path) -> None:
    """Nothing whole is behind them, but what was written there was acknowledged."""
    (path,) = live_logs(database)
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(QueueCorrupt, match="at its beginning"):
        LevelDB(database, Access.EXISTING)
    assert path.exists()


def test_an_open_database_is_not_touched(database: Path) -> None:
    """A second opening in this process, or in another one, does not look at a log that is being written."""
    opened = LevelDB(database, Access.EXISTING)
    (path,) = live_logs(database)
    spoil(path, 10)
    with pytest.raises(QueueLocked):
        LevelDB(database, Access.EXISTING)
    opened.close()


def test_a_flipped_bit_in_a_table_is_never_another_value(directory: Path) -> None:
    """Small records have no sum of their own: LevelDB's sums of blocks are compared in each read, also behind an unchecked one."""
    chunk = keys.chunk_key(ID, 1)
    values = {
        keys.inflight_key(ID, 1): b"a transaction",
        chunk: b"a short body",
        keys.open_key(ID): b"",
        b"submitted/user:u:key": b"a submission key",
        b"meta/limit/tenant/3600000/1/0/t": b"17",
        **{b"meta/rate/zone-%03d" % number: b"%d" % number for number in range(200)},
    }
    opened = LevelDB(directory / "db")
    put(opened, *values.items())
    opened.compact()
    opened.close()
    (table,) = (directory / "db").glob("*.ldb")
    whole, refused = table.read_bytes(), 0
    for at in range(0, len(whole), max(1, len(whole) // 150)):
        copy = directory / f"copy-{at}"
        shutil.copytree(directory / "db", copy)
        spoil(copy / table.name, at, bytes([whole[at] ^ 1 << at % 8]))
        try:
            opened = LevelDB(copy, Access.EXISTING)
        except QueueCorrupt:
            refused += 1
            continue
        try:
            opened.get(chunk, checked=False)
        except QueueCorrupt:
            pass
        found = 0
        for key, value in values.items():
            try:
                assert opened.get(key) == value
                found += 1
            except QueueCorrupt:
                pass
        try:
            assert dict(opened.scan(b"", b"\xff")) == values
        except QueueCorrupt:
            refused += 1
        else:
            assert found == len(values)
        opened.close()
    assert refused > 100
