"""15. Queue and event log are for one user, whatever the umask; open directories are reported and closed."""

import os
import stat
from pathlib import Path

import pytest

from tests.kit.queue import accept, opened
from tests.kit.relay import relaying, send, staged
from tests.kit.servers import queue_settings
from zonemta_py.bench.process import CommandProcess, free_port
from zonemta_py.core.files import private_directory
from zonemta_py.storage.open import open_store


def modes(directory: Path) -> dict[str, int]:
    """Everything below ``directory`` that others may use."""
    return {
        str(path.relative_to(directory)): stat.S_IMODE(path.stat().st_mode)
        for path in [directory, *directory.rglob("*")]
        if not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) & 0o077
    }


@pytest.fixture(autouse=True)
def open_umask() -> object:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize("store", ["leveldb", "filesystem"])
async def test_the_relay_as_a_process(directory: Path, store: str) -> None:
    """Every file and directory that it makes."""
    async with staged(directory) as stage:
        await stage.receiver("a.example")
        port = free_port()
        stage.config(
            listeners=[{"address": f"127.0.0.1:{port}"}],
            queue={"directory": "queue", "min_free_disk": "1MiB", "store": store},
        )
        served = CommandProcess(["serve", "-c", str(directory / "zonemta.yaml")], directory / "log")
        try:
            served.wait_ready()
            assert served.stop() == 0
        finally:
            served.kill()
    for name in ("queue", "events"):
        if (directory / name).exists():
            assert modes(directory / name) == {}


async def test_the_relay_in_a_program(directory: Path) -> None:
    """Its umask is the program's: the directories are closed all the same, and so are the segments."""
    async with staged(directory) as stage:
        await stage.receiver("a.example")
        async with relaying(stage.config()) as relay:
            await send(relay, ["u@a.example"])
    for name in ("queue", "queue/db", "events"):
        assert stat.S_IMODE((directory / name).stat().st_mode) == 0o700
    assert [name for name in modes(directory / "events") if name.endswith(".zst")] == []


async def test_an_open_directory_is_reported_and_closed(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(directory / "queue") as queue:
        await accept(queue, "a@x.example")
    (directory / "queue").chmod(0o755)
    open_store(queue_settings(directory / "queue", "leveldb")).close()
    assert stat.S_IMODE((directory / "queue").stat().st_mode) == 0o700
    assert "its mode was 0755" in caplog.text


def test_parents_are_not_changed(directory: Path) -> None:
    (directory / "shared").mkdir(mode=0o755)
    private_directory(directory / "shared" / "queue")
    assert stat.S_IMODE((directory / "shared").stat().st_mode) == 0o755
    assert stat.S_IMODE((directory / "shared" / "queue").stat().st_mode) == 0o700
