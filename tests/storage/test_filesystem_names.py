"""Every key of the relay's own has a file, whatever it is made of, and is there again after the next opening."""

from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zonemta_py.core.codec import crc32, pack
from zonemta_py.queue.format import keys
from zonemta_py.storage.filesystem import FilesystemStore
from zonemta_py.storage.filesystem_layout import RELAY, relay_key, relay_path
from zonemta_py.storage.interface import Access

MESSAGE = "0" * 24
HOST = ".".join(["a" * 62] * 4)
KEYS = [
    keys.META_FORMAT,
    keys.sending_key("messages", 3_600_000, 1, "192.0.2.1", ""),
    keys.sending_key("messages", 3_600_000, 1, "192.0.2.1", "google"),
    keys.sending_key("messages", 3_600_000, 1, "192.0.2.1", "x.example"),
    keys.sending_key("messages", 3_600_000, 1, "192.0.2.1", "x.example/y.example"),
    keys.sending_state_key("pace", HOST, "system"),
    keys.sending_state_key("warmup", "", "192.0.2.1"),
    keys.sending_state_key("warmup", "google", "192.0.2.1"),
    keys.held_key("mail:campaign=june", keys.deferred_key("default", MESSAGE, "ann@shop.new")),
    keys.held_key("mail:campaign=june", keys.deferred_key("default", MESSAGE, "ann@shop")),
    keys.held_key("user:shop.new", keys.deferred_key("default", MESSAGE, f'"{"é/." * 70}"@x.example')),
    keys.limit_key("messages", 60_000, 1, "user", "bob"),
    keys.limit_key("messages", 60_000, 1, "user", "bob/2"),
    keys.META_SUSPENDED + b"user:shop.new",
    keys.META_SUSPENDED + b"..",
    keys.META_RATE + b".",
    keys.outbox_key(7),
]

part = st.sampled_from(
    ["", ".", "..", "a", "b", "a%v", "%e", "a.new", "a%n", "%2E", "é", "x" * 199 + "..", "y" * 500]
)
strange = st.lists(part, min_size=1, max_size=4).map(lambda parts: b"meta/x/" + "/".join(parts).encode())  # fmt: skip


@given(strange, strange)
@example(b"meta/x/a", b"meta/x/a/")
def test_one_path_for_each_key(one: bytes, other: bytes) -> None:
    """Short names, none of which is a directory of the other key."""
    paths = [relay_path(key) for key in (one, other)]
    for key, path in zip((one, other), paths, strict=True):
        names = path.removeprefix(f"{RELAY}/").split("/")
        assert relay_key(names) == key
        assert all(0 < len(name) <= 210 and name not in (".", "..") for name in names)
    if one != other:
        assert paths[0] != paths[1]
        assert not paths[1].startswith(f"{paths[0]}/")


def stored(directory: Path, access: Access = Access.CREATE) -> dict[bytes, bytes]:
    store = FilesystemStore(directory, access)
    try:
        return dict(store.scan(b"", b"\xff"))
    finally:
        store.close()


def test_every_key_is_there_again(directory: Path) -> None:
    store = FilesystemStore(directory / "q")
    for number, key in enumerate(KEYS):
        store.write(store.batch([(key, b"%d" % number)], sync=True))
    store.close()
    expected = {key: b"%d" % number for number, key in enumerate(KEYS)}
    assert stored(directory / "q", Access.READ) == expected
    store = FilesystemStore(directory / "q")
    assert dict(store.scan(b"", b"\xff")) == expected
    for key in KEYS:
        store.write(store.batch([(key, None)], sync=True))
    store.close()
    assert stored(directory / "q") == {}


def earlier_path(key: bytes) -> str:
    """Where earlier versions wrote ``key``."""
    return "/".join([RELAY, *(quote(each, safe="") for each in key.decode().split("/"))])


def write_as_earlier(root: Path, key: bytes, value: bytes) -> None:
    path = root / earlier_path(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(value)


EARLIER = [KEYS[number] for number in (0, 1, 6, 8, 9, 13, 16)]


@pytest.mark.parametrize("access", [Access.READ, Access.CREATE])
def test_a_store_of_an_earlier_version(directory: Path, access: Access) -> None:
    """Its keys are read, those too whose ``/`` it lost, or that it took for temporary files; written, they get new names."""
    FilesystemStore(directory).close()
    expected = {key: b"%d" % number for number, key in enumerate(EARLIER)}
    for key, value in expected.items():
        write_as_earlier(directory, key, value)
    assert stored(directory, access) == expected
    renamed = (directory / relay_path(KEYS[1])).exists()
    assert renamed == (access is Access.CREATE)
    assert stored(directory) == stored(directory) == expected


def test_a_batch_that_an_earlier_version_could_not_finish(directory: Path) -> None:
    """A directory was where it wanted a file, a name was too long, and a crash left a temporary file."""
    FilesystemStore(directory).close()
    write_as_earlier(directory, KEYS[2], b"old")
    write_as_earlier(directory, KEYS[9], b"gone")
    (directory / earlier_path(KEYS[2])).with_name("google.new").write_bytes(b"torn")
    steps = [(earlier_path(key), "write", b"1") for key in (KEYS[1], KEYS[2], KEYS[5], KEYS[10])]
    steps.append((earlier_path(KEYS[9]), "remove", b""))
    body = pack(steps)
    (directory / RELAY / "intent").write_bytes(pack((crc32(body), steps)))
    expected = dict.fromkeys((KEYS[1], KEYS[2], KEYS[5], KEYS[10]), b"1")
    assert stored(directory, Access.READ) == expected
    assert stored(directory) == stored(directory) == expected


def write_intent(directory: Path, steps: list[tuple[str, str, bytes]]) -> None:
    (directory / RELAY / "intent").write_bytes(pack((crc32(pack(steps)), steps)))


@pytest.mark.parametrize("access", [Access.READ, Access.CREATE])
def test_a_batch_that_wanted_a_directory_where_a_file_was(directory: Path, access: Access) -> None:
    FilesystemStore(directory).close()
    write_as_earlier(directory, KEYS[1], b"for all")
    write_intent(directory, [(earlier_path(KEYS[2]), "write", b"1")])
    assert stored(directory, access) == {KEYS[1]: b"for all", KEYS[2]: b"1"}


def test_what_an_interrupted_renaming_and_an_interrupted_batch_left(directory: Path) -> None:
    """The first of two renames; temporary files of the earlier version, of keys and of a message."""
    FilesystemStore(directory).close()
    write_as_earlier(directory, KEYS[1], b"old")
    path = directory / earlier_path(KEYS[1]).rstrip("/")
    path.rename(path.with_name("192.0.2.1%v"))
    (path.parent / "192.0.2.1.new").write_bytes(b"")
    message = directory / "data" / MESSAGE
    message.mkdir()
    (message / "accepted.new").write_bytes(b"torn")
    write_intent(
        directory,
        [(earlier_path(KEYS[1]), "write", b"new"), (f"data/{MESSAGE}/accepted", "write", b"mark")],
    )
    assert stored(directory) == {KEYS[1]: b"new", keys.mark_key(MESSAGE): b"mark"}
    assert [each.name for each in message.iterdir()] == ["accepted"]
    store = FilesystemStore(directory)
    store.write(store.batch([(KEYS[1], None)], sync=True))
    store.close()
    assert KEYS[1] not in stored(directory)


def test_of_two_files_for_one_key_the_newer_stays(directory: Path) -> None:
    store = FilesystemStore(directory)
    store.write(store.batch([(KEYS[13], b"new")], sync=True))
    store.close()
    write_as_earlier(directory, KEYS[13], b"restored")
    assert stored(directory, Access.READ) == stored(directory) == {KEYS[13]: b"new"}
    store = FilesystemStore(directory)
    store.write(store.batch([(KEYS[13], None)], sync=True))
    store.close()
    assert stored(directory) == {}
