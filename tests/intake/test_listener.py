"""Listeners of a process: their share of sessions, reload, and the wait at the end."""

import asyncio
from pathlib import Path

import pytest

from tests.intake.dialogue import BEGIN, connected
from tests.kit.deadlines import scaled, until
from tests.kit.listener import HOSTNAME, ListenerUnderTest, listening, make_config
from tests.kit.queue import opened
from zonemta_py.core.errors import ConfigError
from zonemta_py.intake.listener import Intake, listening_sockets
from zonemta_py.routing import make_router
from zonemta_py.storage.open import DiskSpace


async def test_processes_divide_the_sessions(tmp_path: Path) -> None:
    """Each takes its share of max_sessions, and the address has the port of its sockets."""
    config = make_config(tmp_path, "    max_sessions: 8")
    copies = await listening_sockets(config.listeners[0].address, 3)
    port = copies[0][0].getsockname()[1]
    async with opened(tmp_path / "queue", store="memory") as queue:
        shares = []
        for index, sockets in enumerate(copies):
            intake = Intake(queue, [sockets], index, 3, disk_space=DiskSpace(tmp_path, 1))
            [settings] = intake.prepare(config, HOSTNAME, make_router(config))
            assert settings.listener.address.port == port
            shares.append(settings.listener.max_sessions)
            for sock in sockets:
                sock.close()
        assert shares == [3, 3, 2]


async def test_prepare_changes_nothing(tmp_path: Path) -> None:
    """An error in one listener leaves all as they are; apply uses the settings for open sessions."""
    config = make_config(tmp_path)
    router = make_router(config)
    [sockets] = await listening_sockets(config.listeners[0].address, 1)
    async with opened(tmp_path / "queue", store="memory") as queue:
        intake = Intake(queue, [sockets], disk_space=DiskSpace(tmp_path, 1))
        await intake.start(intake.prepare(config, HOSTNAME, router))
        [listener] = intake.listeners
        relay = ListenerUnderTest(queue, listener, listener.context.settings.address)
        reader, writer = await connected(relay)
        broken = make_config(tmp_path, "    auth: {users_file: missing, require_tls: false}")
        with pytest.raises(ConfigError, match="users file cannot be read"):
            intake.prepare(broken, HOSTNAME, router)
        assert listener.context.users is None
        smaller = make_config(tmp_path, "    max_message_size: 1KiB")
        intake.apply(intake.prepare(smaller, HOSTNAME, router))
        writer.write(b"EHLO c.example\r\n")
        assert b"SIZE 1024\r\n" in await reader.readuntil(b"250 ENHANCEDSTATUSCODES\r\n")
        writer.close()
        await intake.drain(0)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*relay.address)


async def test_the_end(tmp_path: Path) -> None:
    """Idle sessions end at once with 421; an open transaction is finished."""
    async with listening(tmp_path) as relay:
        idle_reader, idle = await connected(relay)
        reader, writer = await connected(relay, *BEGIN)
        await reader.readuntil(b"354 End data with <CR><LF>.<CR><LF>\r\n")
        relay.listener.close()
        drained = asyncio.ensure_future(relay.listener.drain(scaled(30)))
        assert await idle_reader.read() == b"421 4.3.2 The relay is stopping\r\n"
        writer.write(b"Subject: x\r\n\r\ny\r\n.\r\nMAIL FROM:<a@b.example>\r\n")
        assert (await reader.readline()).startswith(b"250 2.0.0 Ok: queued as ")
        assert (await reader.readline()).startswith(b"421 4.3.2")
        await drained
        for each in (idle, writer):
            each.close()


async def test_the_end_of_the_grace(tmp_path: Path) -> None:
    """A transaction that does not end in time is aborted."""
    async with listening(tmp_path) as relay:
        reader, writer = await connected(relay, *BEGIN)
        await reader.readuntil(b"354")
        relay.listener.close()
        await relay.listener.drain(0)
        await until(lambda: not relay.listener.context.sessions, "the session to end")
        assert b"250" not in await _remaining(reader)
        writer.close()


async def _remaining(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""
