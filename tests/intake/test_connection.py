"""States, slow and impolite clients, and the limits of a session."""

import asyncio
from pathlib import Path
from typing import cast

import pytest

from tests.intake.dialogue import BEGIN, connected
from tests.kit.deadlines import scaled, until
from tests.kit.listener import listening, settings_of, users_file
from tests.kit.queue import everything
from zonemta_py.config.values import Seconds
from zonemta_py.intake.connection import TRANSITIONS, State

pytestmark = pytest.mark.usefixtures("queue_client")


async def test_half_closed_after_quit(tmp_path: Path) -> None:
    """A client that sends everything and closes its sending side still gets every reply."""
    async with listening(tmp_path) as relay:
        reader, writer = await asyncio.open_connection(*relay.address)
        writer.write(b"EHLO c.example\r\n" + b"".join(BEGIN) + b"Subject: x\r\n\r\ny\r\n.\r\nQUIT\r\n")
        writer.write_eof()
        answer = await reader.read()
        assert b"250 2.0.0 Ok: queued" in answer
        assert b"221 2.0.0" in answer
        writer.close()


async def test_idle_and_slow_clients_time_out(tmp_path: Path) -> None:
    async with listening(tmp_path) as relay:
        settings_of(relay, idle_timeout=Seconds(scaled(0.2)))
        reader, writer = await asyncio.open_connection(*relay.address)
        assert b"421 4.4.2" in await asyncio.wait_for(reader.read(), scaled(10))
        writer.close()
        settings_of(relay, idle_timeout=Seconds(30), message_timeout=Seconds(scaled(0.3)))
        reader, writer = await connected(relay, *BEGIN)
        writer.write(b"Subject: x\r\n")
        assert b"421 4.4.2" in await asyncio.wait_for(reader.read(), scaled(10))
        writer.close()
        await until(lambda: everything(relay.queue.store) == [], "an empty queue")


async def test_a_client_that_never_reads(tmp_path: Path) -> None:
    """It cannot hold its session by not reading the replies."""
    async with listening(tmp_path) as relay:
        settings_of(relay, idle_timeout=Seconds(scaled(0.5)))
        _, writer = await asyncio.open_connection(*relay.address, limit=1)
        cast(asyncio.Transport, writer.transport).pause_reading()
        try:
            for _ in range(5000):
                writer.write(b"EHLO c.example\r\n" * 200)
                await asyncio.wait_for(writer.drain(), scaled(0.2))
        except (TimeoutError, ConnectionError):
            pass
        await until(lambda: not relay.listener.context.sessions, "the session to end")
        writer.close()


async def test_too_many_sessions(tmp_path: Path) -> None:
    async with listening(tmp_path, "    max_sessions: 2") as relay:
        kept = [await connected(relay) for _ in range(2)]
        reader, writer = await asyncio.open_connection(*relay.address)
        assert b"421 4.3.2" in await reader.read()
        writer.close()
        kept[0][1].close()
        await until(lambda: len(relay.listener.context.sessions) == 1, "a session to end")
        _, again = await connected(relay)
        again.close()
        kept[1][1].close()


async def test_commands_without_end(tmp_path: Path) -> None:
    """NOOP without end, and a line without end."""
    async with listening(tmp_path) as relay:
        reader, writer = await connected(relay, b"NOOP\r\n" * 150)
        assert b"421 4.7.0" in await reader.read()
        writer.close()
        reader, writer = await connected(relay)
        writer.write(b"x" * 5000 + b"\r\n" + b"x" * 200_000)
        assert (await reader.readline()).startswith(b"500 5.5.6")
        try:
            await reader.read()
        except ConnectionResetError:
            pass  # the relay closed with unread data in the kernel
        await until(lambda: not relay.listener.context.sessions, "the session to end")
        writer.close()


def test_every_state_has_an_end() -> None:
    """CLOSED may follow every state, and every state is reached from COMMAND or is it."""
    assert set(TRANSITIONS) == set(State)
    assert all(State.CLOSED in following for following in TRANSITIONS.values())
    assert TRANSITIONS[State.CLOSED] == (State.CLOSED,)
    for state in set(State) - {State.COMMAND, State.CLOSED}:
        assert state in TRANSITIONS[State.COMMAND]
        assert set(TRANSITIONS[state]) == {State.COMMAND, State.CLOSED}


async def test_commands_wait_during_a_pause(tmp_path: Path) -> None:
    """What is sent while a message is written is answered afterwards, in order."""
    async with listening(tmp_path) as relay:
        reader, writer = await connected(relay)
        one = b"".join(BEGIN) + b"Subject: x\r\n\r\ny\r\n.\r\n"
        writer.write(one * 20 + b"NOOP\r\nQUIT\r\n")
        replies = (await reader.read()).splitlines()
        assert [reply[:3] for reply in replies] == [b"250", b"250", b"354", b"250"] * 20 + [
            b"250",
            b"221",
        ]
        writer.close()


async def test_more_than_the_buffer_during_a_pause(tmp_path: Path) -> None:
    """The transport is paused and resumed: nothing is lost, and the buffer stays small."""
    users_file(tmp_path)
    async with listening(tmp_path, "    auth: {users_file: users, require_tls: false}") as relay:
        reader, writer = await connected(relay)
        noop = b"NOOP " + b"x" * 3000 + b"\r\n"
        writer.write(b"AUTH PLAIN AG5ld3MAd3Jvbmc=\r\n" + noop * 90 + b"QUIT\r\n")
        replies = (await reader.read()).splitlines()
        assert [reply[:3] for reply in replies] == [b"535"] + [b"250"] * 90 + [b"221"]
        writer.close()


async def test_the_answer_to_a_challenge_is_not_a_command(tmp_path: Path) -> None:
    """QUIT and NOOP are name and password here, and commands again after the reply."""
    users_file(tmp_path)
    async with listening(tmp_path, "    auth: {users_file: users, require_tls: false}") as relay:
        reader, writer = await asyncio.open_connection(*relay.address)
        writer.write(b"EHLO c.example\r\nAUTH LOGIN\r\nQUIT\r\nNOOP\r\nAUTH LOGIN\r\n*\r\nQUIT\r\n")
        replies = (await reader.read()).splitlines()
        assert [reply[:3] for reply in replies if reply[3:4] == b" "] == [
            b"220", b"250", b"334", b"334", b"535", b"334", b"501", b"221",
        ]  # fmt: skip
        writer.close()
