"""1. Only an empty place becomes a new queue; a command that looks creates nothing and writes nothing."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.kit.queue import KINDS, Clock, accept, make_queue, opened
from tests.kit.servers import queue_settings
from zonemta_py.cli.main import main
from zonemta_py.config.load import load_config
from zonemta_py.core.errors import LocalError, QueueLocked
from zonemta_py.queue.format import keys
from zonemta_py.queue.upkeep.startup import begin_boot
from zonemta_py.relay.runner import repair
from zonemta_py.storage.interface import Access
from zonemta_py.storage.open import open_store

STORES = [kind for kind in KINDS if kind != "memory"]
LOOKS = [
    ["queue", "summary"], ["queue", "list"], ["queue", "check"], ["queue", "show", "0" * 24, "--states"], ["audit"],
    ["queue", "export"],
]  # fmt: skip


def config_file(directory: Path, store: str = "leveldb") -> Path:
    """A configuration of the queue in ``directory``."""
    path = directory / "zonemta.yaml"
    path.write_text(
        f"queue: {{directory: {directory}, store: {store}}}\nevents: {{directory: {directory}/events}}\n"
    )
    return path


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below ``directory``, with its bytes and its time of change."""
    return {
        str(path.relative_to(directory)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in directory.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def fill(directory: Path, store: str, messages: int = 3) -> None:
    """A queue with mail, closed."""

    async def run(number: int) -> None:
        async with opened(directory, Clock(), store=store) as queue:
            for index in range(messages):
                await accept(queue, f"a{number}{index}@x.example", body=b"b" * 70_000)

    for number in range(2):  # two boots: the first one's log has become a table
        asyncio.run(run(number))


def test_a_database_without_current_is_not_replaced(directory: Path) -> None:
    """LevelDB would make an empty database and delete the tables of the old one."""
    fill(directory, "leveldb")
    (directory / "db" / "CURRENT").unlink()
    before = contents(directory)
    for access in Access:
        with pytest.raises(LocalError, match=r"CURRENT is missing.*zonemta queue repair"):
            open_store(queue_settings(directory, "leveldb"), access=access)
    for command in (["serve"], *LOOKS):
        arguments = [*command, "-c", str(config_file(directory))]
        if command[-1] == "export":
            arguments.append(str(directory / "export"))
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 1, command
        assert "CURRENT is missing" in result.output
    after = contents(directory)
    del after["zonemta.yaml"]
    assert after == before


def test_repair_brings_all_of_it_back(directory: Path) -> None:
    fill(directory, "leveldb")
    (directory / "db" / "CURRENT").unlink()
    asyncio.run(repair(load_config(config_file(directory)), []))
    assert len(waiting(directory)) == 6


@pytest.mark.parametrize("store", ["leveldb", "filesystem"])
@pytest.mark.parametrize("command", LOOKS, ids=lambda command: command[-1][:7])
def test_a_look_writes_nothing(directory: Path, store: str, command: list[str]) -> None:
    fill(directory, store)
    config = config_file(directory, store)
    before = contents(directory)
    more = [str(directory / "export")] if command[-1] == "export" else []
    result = CliRunner().invoke(main, [*command, "-c", str(config), *more])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    after = contents(directory)
    after.pop("export", None)
    assert after == before


def test_a_look_at_an_interrupted_batch(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The filesystem store shows the state after the batch, and leaves the batch to the relay."""
    fill(directory, "filesystem")

    async def interrupt() -> None:
        queue = make_queue(directory, Clock(), store="filesystem")
        await queue.recover()
        monkeypatch.setattr(type(queue.store), "_apply", _refuse)
        with pytest.raises(LocalError):
            await accept(queue, "new@x.example")
        monkeypatch.undo()
        await queue.close()

    asyncio.run(interrupt())
    assert (directory / "files/data/.relay/intent").exists()
    before = contents(directory)
    result = CliRunner().invoke(main, ["queue", "list", "-c", str(config_file(directory, "filesystem"))])
    assert "new@x.example" in result.output
    del (after := contents(directory))["zonemta.yaml"]
    assert after == before


def waiting(directory: Path) -> list[str]:
    """The addresses in the queue, as a look finds them."""
    store = open_store(queue_settings(directory, "leveldb"), access=Access.READ)
    found = list(store.keys(keys.WAITING, keys.end_of(keys.WAITING)))
    store.close()
    return [keys.parse_recipient(key)[2] for key in found]


def _refuse(*_: object, **__: object) -> None:
    raise OSError(5, "killed")


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("access", [Access.EXISTING, Access.READ, Access.REPAIR])
def test_nothing_is_created(directory: Path, store: str, access: Access) -> None:
    """Where no queue is, every opening but the relay's own says so."""
    settings = queue_settings(directory / "none", store)
    with pytest.raises(LocalError, match="there is no queue yet"):
        found = open_store(settings, access=access)
        try:
            begin_boot(found, access if access is not Access.REPAIR else Access.EXISTING)
        finally:
            found.close()
    if store in ("leveldb", "filesystem"):
        assert not (directory / "none").exists()


@pytest.mark.parametrize("store", STORES)
def test_keys_without_a_format(directory: Path, store: str) -> None:
    """Part of a queue is not taken for a new one."""
    fill(directory, store, 1)
    found = open_store(queue_settings(directory, store))
    found.write(found.batch([(keys.META_FORMAT, None)], sync=True))
    with pytest.raises(LocalError, match=r"no format: run zonemta queue repair"):
        begin_boot(found)
    begin_boot(found, Access.REPAIR)
    begin_boot(found)
    found.close()


@pytest.mark.parametrize("part", ["data/.relay", "data"])
def test_parts_of_the_filesystem_store(directory: Path, part: str) -> None:
    fill(directory, "filesystem", 1)
    shutil.rmtree(directory / "files" / part)
    before = contents(directory)
    with pytest.raises(LocalError, match="restore the whole directory"):
        open_store(queue_settings(directory, "filesystem"))
    assert contents(directory) == before


@pytest.mark.parametrize("store", ["leveldb", "filesystem"])
def test_a_look_respects_the_lock(directory: Path, store: str) -> None:
    """The relay of another process is found by the lock, whether its control socket is there or not."""
    fill(directory, store, 1)
    path, call = ("db/LOCK", "lockf") if store == "leveldb" else ("files/data/.relay/lock", "flock")
    with locked_elsewhere(directory / path, call), pytest.raises(QueueLocked):
        open_store(queue_settings(directory, store), access=Access.READ)
    open_store(queue_settings(directory, store), access=Access.READ).close()


@contextmanager
def locked_elsewhere(path: Path, call: str) -> Iterator[None]:
    """Another process has the lock of ``path``."""
    code = (
        f"import fcntl,sys; f=open({str(path)!r},'r+b'); fcntl.{call}(f,fcntl.LOCK_EX)\n"
        "print(1,flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"1\n"
    yield
    process.communicate()


def test_a_look_sees_the_newest_mail(directory: Path) -> None:
    """What is only in LevelDB's log is in the view, too."""
    fill(directory, "leveldb", 1)
    assert waiting(directory) == ["a00@x.example", "a10@x.example"]
