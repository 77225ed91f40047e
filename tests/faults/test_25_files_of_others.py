"""25. A process of root writes no file that another user has put a symbolic link to, and no queue of another user."""

import os
import stat
from array import array
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.kit.local_transport import local_message
from tests.kit.queue import accept, opened
from tests.kit.relay import ONE_PROCESS, relaying, send, staged
from tests.kit.servers import queue_settings
from zonemta_py.admin.http_server import _unix_socket
from zonemta_py.admin.tokens import MADE_NAME, load_tokens
from zonemta_py.cli.main import main
from zonemta_py.config.load import load_config
from zonemta_py.core.errors import ConfigError, LocalError
from zonemta_py.core.files import exposed_parent, is_own_file, private_directory, replace_text
from zonemta_py.events.index import NAME, add_to_index
from zonemta_py.events.segments import write_synced
from zonemta_py.queue.upkeep.transfer import export_queue
from zonemta_py.relay.preflight import verify, warnings
from zonemta_py.storage.interface import Access
from zonemta_py.storage.open import PID_FILE, locked_files, open_store
from zonemta_py.transports.local import MaildirTransport

OTHER = 65_534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")


@pytest.fixture
def victim(directory: Path) -> Path:
    """A file that must not change."""
    path = directory / "victim"
    path.write_text("precious\n")
    path.chmod(0o644)
    return path


def untouched(victim: Path) -> bool:
    return victim.read_text() == "precious\n" and stat.S_IMODE(victim.stat().st_mode) == 0o644


@as_root
@pytest.mark.parametrize("store", ["leveldb", "filesystem"])
async def test_a_queue_of_another_user(directory: Path, store: str) -> None:
    """Refused with words, before anything is written there; reading is allowed."""
    settings = queue_settings(directory / "queue", store)
    open_store(settings).close()
    for path in (directory / "queue", *(directory / "queue").rglob("*")):
        os.chown(path, OTHER, OTHER)
    before = {path: path.stat().st_mtime_ns for path in (directory / "queue").rglob("*")}
    with pytest.raises(LocalError, match=r"queue: it belongs to \w+, and this process runs as root"):
        open_store(settings)
    with pytest.raises(LocalError, match="it belongs to"):
        open_store(settings, access=Access.EXISTING)
    assert {path: path.stat().st_mtime_ns for path in (directory / "queue").rglob("*")} == before
    with pytest.raises(LocalError, match="it belongs to"), locked_files(settings):  # for a repair
        pass
    open_store(settings, access=Access.READ).close()


@as_root
@pytest.mark.parametrize("name", ["queue", "events"])
async def test_check_says_so(directory: Path, name: str) -> None:
    async with staged(directory) as stage:
        stage.config()
    private_directory(directory / name)
    os.chown(directory / name, OTHER, OTHER)
    config = load_config(directory / "zonemta.yaml")
    with pytest.raises(ConfigError, match=rf"{name}\.directory: .*it belongs to"):
        verify(config)
    result = CliRunner().invoke(main, ["check", "-c", str(directory / "zonemta.yaml")])
    assert result.exit_code == 2
    assert "chown" in result.output


@as_root
def test_a_directory_of_root_is_no_threat(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private_directory(directory / "queue")
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    private_directory(directory / "queue")


async def test_links_in_a_directory_that_was_open(directory: Path, victim: Path) -> None:
    """``relay.pid`` and ``admin.token`` are files of the relay's own, even if the directory was open to others before."""
    queue = directory / "queue"
    queue.mkdir(mode=0o777)
    known = directory / "known"
    known.write_text("token-of-somebody-else\n")
    (queue / PID_FILE).symlink_to(victim)
    (queue / MADE_NAME).symlink_to(known)
    async with staged(directory) as stage:
        await stage.receiver("a.example")
        config = stage.config(processes=ONE_PROCESS, admin={"address": "127.0.0.1:0"})
        async with relaying(config) as relay:
            await send(relay, ["u@a.example"])
            assert (queue / PID_FILE).read_text() == f"{os.getpid()}\n"
            token = (queue / MADE_NAME).read_text().strip()
            assert relay.admin is not None
            assert relay.admin.server is not None
    assert untouched(victim)
    assert known.read_text() == "token-of-somebody-else\n"
    assert token != "token-of-somebody-else"
    for name in (PID_FILE, MADE_NAME):
        assert not (queue / name).is_symlink()
        assert stat.S_IMODE((queue / name).stat().st_mode) == 0o600
    (queue / MADE_NAME).unlink()
    (queue / MADE_NAME).symlink_to(known)  # while it runs: a reload does not read it
    tokens = load_tokens(None, None, queue / MADE_NAME)
    assert tokens.find("token-of-somebody-else") is None


def test_own_files(directory: Path, victim: Path) -> None:
    own = directory / "own"
    assert not is_own_file(own)
    replace_text(own, "x", 0o600, follow=False)
    assert is_own_file(own)
    own.chmod(0o620)
    assert not is_own_file(own), "others can write it"
    own.unlink()
    own.symlink_to(victim)
    assert not is_own_file(own)
    replace_text(own, "x", 0o600, follow=False)
    assert own.read_text() == "x"
    assert untouched(victim)
    link = directory / "link"
    link.symlink_to(own)
    replace_text(link, "y")  # what an operator names, such as a users file, may be a link
    assert link.is_symlink()
    assert own.read_text() == "y"


def test_links_among_the_segments(directory: Path, victim: Path) -> None:
    """What recovery and the index of the event log write."""
    (directory / "x.new").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        write_synced(directory / "x.damaged", [b"data"])
    (directory / "x.new").unlink()
    (directory / "x.damaged").symlink_to(victim)
    write_synced(directory / "x.damaged", [b"data"])  # in the place of the link
    assert not (directory / "x.damaged").is_symlink()
    (directory / NAME).symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        add_to_index(directory / "n-1.jsonl.zst", array("Q", [1]), (0, 1, 1))
    assert untouched(victim)


async def test_an_export_into_a_shared_directory(directory: Path, victim: Path) -> None:
    """Its unfinished file has a name that can be guessed."""
    async with opened(directory / "queue") as queue:
        await accept(queue, "a@x.example")
        (directory / "out.part").symlink_to(victim)
        with pytest.raises(OSError, match="symbolic links"):
            export_queue(queue.store, directory / "out", lambda _: None)
        assert untouched(victim)
        if os.geteuid() == 0:
            (directory / "out.part").unlink()
            (directory / "out.part").touch()
            os.chown(directory / "out.part", OTHER, OTHER)
            with pytest.raises(LocalError, match="belongs to another user"):
                export_queue(queue.store, directory / "out", lambda _: None)


async def test_a_maildir_of_its_user(directory: Path, victim: Path) -> None:
    """The user may write there, and can guess the name of the next attempt."""
    transport = MaildirTransport(str(directory / "box"), create=True, hostname="relay.example")
    message = local_message(b"x")
    reply = await transport.deliver(message)
    assert reply.completed
    [mail] = (directory / "box" / "new").iterdir()
    mail.unlink()
    (directory / "box" / "tmp" / mail.name).symlink_to(victim)
    assert (await transport.deliver(local_message(b"x"))).completed
    assert untouched(victim)
    assert not (directory / "box" / "new" / mail.name).is_symlink()


def test_a_socket_is_private_from_the_beginning(directory: Path) -> None:
    before = os.umask(0)
    try:
        sock = _unix_socket(directory / "http.sock")
    finally:
        os.umask(before)
    assert stat.S_IMODE((directory / "http.sock").stat().st_mode) == 0o600
    sock.close()


@as_root
@pytest.mark.parametrize("name", ["q/db", "q/segments", "ev/date=2026-11-28/hour=15"])
def test_links_to_directories(directory: Path, name: str) -> None:
    """What a link of another user leads to is neither closed nor written to; a link of this user is followed."""
    victim = directory / "etc"
    victim.mkdir(mode=0o755)
    victim.chmod(0o755)
    first, second, *_ = Path(name).parts
    (directory / first).mkdir()
    link = directory / first / second
    link.symlink_to(victim)
    os.chown(link, OTHER, OTHER, follow_symlinks=False)
    with pytest.raises(PermissionError, match=r"it is a symbolic link of \w+: remove it"):
        private_directory(directory / name)
    assert stat.S_IMODE(victim.stat().st_mode) == 0o755
    assert not list(victim.iterdir())
    os.chown(link, 0, 0, follow_symlinks=False)
    private_directory(directory / name)
    assert (directory / name).is_dir()


@as_root
def test_a_queue_behind_a_link_of_another_user(directory: Path) -> None:
    """It could be exchanged at any time."""
    settings = queue_settings(directory / "link", "leveldb")
    (directory / "queue").mkdir()
    (directory / "link").symlink_to(directory / "queue")
    os.chown(directory / "link", OTHER, OTHER, follow_symlinks=False)
    with pytest.raises(LocalError, match="it is a symbolic link of"):
        open_store(settings)
    assert not list((directory / "queue").iterdir())


@pytest.mark.parametrize("key", ["queue", "events"])
def test_directories_above_that_others_can_write(directory: Path, key: str) -> None:
    """They can exchange the directory with its ``relay.pid`` and ``admin.token``: a warning at the start and of ``check``."""
    spool = directory / "spool"
    (spool / "deep").mkdir(parents=True)
    text = f"hostname: relay.example\nadmin: {{address: null}}\n{key}: {{directory: spool/deep/{key}}}\n"
    (directory / "z.yaml").write_text(text)

    def said() -> list[str]:
        config = load_config(directory / "z.yaml")
        return [each for each in warnings(config, "relay.example") if "can replace" in each]

    assert said() == []
    for mode, expected in ((0o777, 1), (0o1777, 0), (0o757, 1), (0o755, 0)):
        spool.chmod(mode)
        found = said()
        assert len(found) == expected, oct(mode)
        assert all(f"{key}.directory: every user may write {spool} (mode " in each for each in found)
    if os.geteuid() != 0:
        return
    os.chown(spool, OTHER, OTHER)
    [found_one] = said()
    assert f"{key}.directory: {spool} belongs to " in found_one
    result = CliRunner().invoke(main, ["check", "-c", str(directory / "z.yaml")])
    assert "so another user can replace" in result.output
    link = directory / "link"
    os.chown(spool, 0, 0)
    link.symlink_to(spool / "deep")
    spool.chmod(0o777)
    assert exposed_parent(link / "queue").startswith("every user may write"), "what the link leads to"
