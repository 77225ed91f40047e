"""The end of a session: the last reply arrives although the client goes on sending."""

import asyncio
import ssl
from pathlib import Path

import pytest

from tests.kit.deadlines import until
from tests.kit.listener import ListenerUnderTest, certificate, listening
from tests.kit.smtp_client import RawClient
from zonemta_py.intake import connection

MESSAGE = b"Subject: s\r\n\r\n" + b"a line of the body\r\n" * 200_000 + b".\r\n"


async def connected(relay: ListenerUnderTest, context: ssl.SSLContext | None) -> RawClient:
    reader, writer = await asyncio.open_connection(*relay.address, ssl=context)
    client = RawClient(reader, writer)
    assert (await client.reply()).startswith("220")
    await client.ehlo()
    return client


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
async def test_the_last_reply_arrives(tmp_path: Path, encrypted: bool) -> None:
    """Megabytes more than twice the size limit: closing with data unread would reset the connection."""
    cert, key, context = certificate(tmp_path)
    tls = (
        f"    tls: {{mode: implicit, certificate_file: {cert}, key_file: {key}}}\n" if encrypted else ""
    )
    async with listening(tmp_path, f"{tls}    max_message_size: 1000") as relay:
        for _ in range(5):
            async with await connected(relay, context if encrypted else None) as client:
                await client.envelope()
                await client.send(MESSAGE)
                assert (await client.reply()).startswith("552 5.3.4")
                assert encrypted or await client.ended()  # TLS: the client closes first
        await until(lambda: not relay.listener.context.sessions, "the ends of the sessions")


async def test_pipelined_commands(tmp_path: Path) -> None:
    async with listening(tmp_path, "    max_errors: 5") as relay, await connected(relay, None) as client:
        await client.send(b"WRONG\r\n" * 500_000)
        replies = [await client.reply() for _ in range(6)]
        assert [reply[:3] for reply in replies] == ["500"] * 5 + ["421"]
        assert await client.ended()


async def test_a_client_that_never_closes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted for as long as its connection is open, which is not long."""
    monkeypatch.setattr(connection, "LINGER_S", 0.2)
    async with listening(tmp_path, "    max_errors: 1") as relay, await connected(relay, None) as client:
        assert (await client.command("WRONG")).startswith("500")
        assert (await client.reply()).startswith("421")
        assert await client.ended()
        assert relay.listener.context.sessions
        await until(lambda: not relay.listener.context.sessions, "the end of the session")


async def test_the_relay_does_not_wait(tmp_path: Path) -> None:
    """A session that is over is aborted when the relay stops."""
    async with listening(tmp_path, "    max_errors: 1") as relay, await connected(relay, None) as client:
        assert (await client.command("WRONG")).startswith("500")
        assert (await client.reply()).startswith("421")
        relay.listener.close()
        await until(lambda: not relay.listener.context.sessions, "the end of the session", 2)
