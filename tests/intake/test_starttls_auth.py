"""STARTTLS, implicit TLS and AUTH, with a real client."""

import asyncio
import smtplib
from base64 import b64encode
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.kit.deadlines import until
from tests.kit.listener import certificate, listening, users_file
from tests.kit.queue import everything
from tests.kit.smtp_client import RawClient
from zonemta_py.queue.submitters.limits import FAILURES_MAX

pytestmark = pytest.mark.usefixtures("queue_client")

MESSAGE = b"Subject: hi\r\n\r\nbody\r\n"


async def test_starttls_and_auth(tmp_path: Path) -> None:
    """AUTH appears with TLS, PLAIN and LOGIN work, a wrong password does not, and untrusted mail needs it."""
    cert, key, context = certificate(tmp_path)
    users = users_file(tmp_path)
    extra = f"    trusted_networks: []\n    tls: {{mode: starttls, certificate_file: {cert}, key_file: {key}}}\n    auth: {{users_file: {users}}}"
    async with listening(tmp_path, extra) as relay:

        def dialogue() -> None:
            with smtplib.SMTP("127.0.0.1", relay.address.port) as client:
                client.ehlo()
                assert client.has_extn("starttls")
                assert not client.has_extn("auth")
                assert client.docmd("AUTH", "PLAIN AG5ld3MAc2VjcmV0")[0] == 538
                assert client.mail("a@b.example")[0] == 530
                client.starttls(context=context)
                client.ehlo()
                assert client.has_extn("auth")
                assert client.mail("a@b.example")[0] == 530
                with pytest.raises(smtplib.SMTPAuthenticationError):
                    client.login("news", "wrong")
                with pytest.raises(smtplib.SMTPAuthenticationError):
                    client.login("unknown", "secret")
                assert client.docmd("AUTH", "CRAM-MD5")[0] == 504
                assert client.docmd("AUTH", "PLAIN !!!")[0] == 501
                client.docmd("AUTH", "LOGIN")
                assert client.docmd("*")[0] == 501
                assert client.noop()[0] == 250
                client.user, client.password = "news", "secret"
                client.auth("LOGIN", client.auth_login)
                client.sendmail("a@b.example", ["c@d.example"], MESSAGE)
            with smtplib.SMTP("127.0.0.1", relay.address.port) as client:
                client.starttls(context=context)
                client.login("news", "secret")
                client.sendmail("a@b.example", ["c@d.example"], MESSAGE)

        await asyncio.to_thread(dialogue)
        held = relay.queue.lease("default", "d.example", 1)
        assert held is not None
        assert held.active.meta.origin.user == "news"
        assert held.active.meta.origin.protocol == "ESMTPSA"


async def test_implicit_tls(tmp_path: Path) -> None:
    cert, key, context = certificate(tmp_path)
    async with listening(
        tmp_path, f"    tls: {{mode: implicit, certificate_file: {cert}, key_file: {key}}}"
    ) as relay:

        def dialogue() -> None:
            with smtplib.SMTP_SSL("localhost", relay.address.port, context=context) as client:
                client.sendmail("a@b.example", ["c@d.example"], MESSAGE)

        await asyncio.to_thread(dialogue)
        assert len(everything(relay.queue.store)) == 4


async def test_what_follows_starttls_is_not_believed(tmp_path: Path) -> None:
    """Plain text in the segment of STARTTLS ends the connection; nothing of it is obeyed."""
    cert, key, _ = certificate(tmp_path)
    async with listening(
        tmp_path, f"    tls: {{mode: starttls, certificate_file: {cert}, key_file: {key}}}"
    ) as relay:
        reader, writer = await asyncio.open_connection(*relay.address)
        writer.write(b"EHLO c.example\r\nSTARTTLS\r\nMAIL FROM:<evil@b.example>\r\n")
        answer = await reader.read()
        assert b"554 5.5.1" in answer
        assert b"2.1.0" not in answer
        writer.close()
        reader, writer = await asyncio.open_connection(*relay.address)
        writer.write(b"EHLO c.example\r\nSTARTTLS\r\n")
        await reader.readuntil(b"220 Ready")
        writer.write(b"this is no handshake\r\n" * 50)
        await until(lambda: not relay.listener.context.sessions, "the session to end")
        writer.close()


def plain(password: str) -> str:
    return "AUTH PLAIN " + b64encode(f"\0news\0{password}".encode()).decode()


def with_users(directory: Path) -> str:
    return f"    trusted_networks: []\n    auth: {{users_file: {users_file(directory)}, require_tls: false}}"


async def test_what_is_no_line_ends_the_exchange(tmp_path: Path) -> None:
    """What follows is a command, and no name or password."""
    async with (
        listening(tmp_path, with_users(tmp_path)) as relay,
        await RawClient.connect(relay.address.port) as client,
    ):
        await client.ehlo()
        assert (await client.command("AUTH LOGIN")).startswith("334")
        assert (await client.command("A" * 5_000)).startswith("500")
        assert (await client.command("NOOP")).startswith("250")


@pytest.mark.parametrize("right", [True, False])
async def test_guesses_at_once(tmp_path: Path, right: bool) -> None:
    """No more passwords of a network are tried than may be wrong; many sessions with the right one are one check."""
    async with AsyncExitStack() as stack:
        relay = await stack.enter_async_context(listening(tmp_path, with_users(tmp_path)))
        clients = [
            await stack.enter_async_context(await RawClient.connect(relay.address.port))
            for _ in range(3 * FAILURES_MAX)
        ]
        for client in clients:
            await client.ehlo()
        passwords = ["secret" if right else f"guess{number}" for number in range(len(clients))]
        replies = await asyncio.gather(
            *(client.command(plain(each)) for client, each in zip(clients, passwords, strict=True))
        )
        codes = [reply[:3] for reply in replies]
        if right:
            assert codes == ["235"] * len(clients)
        else:
            assert codes.count("535") <= FAILURES_MAX
            assert set(codes) <= {"535", "454", "421"}


async def test_a_password_that_is_wrong_again_is_only_counted(tmp_path: Path) -> None:
    """With the same reply; the event log has the first one, and the first of the minute of those that follow."""
    async with (
        listening(tmp_path, with_users(tmp_path)) as relay,
        await RawClient.connect(relay.address.port) as client,
    ):
        await client.ehlo()
        replies = [await client.command(plain("wrong")) for _ in range(3)]
        assert set(replies) == {"535 5.7.8 Authentication credentials invalid"}
        context = relay.listener.context
        assert [each.count for each in context.rejections._counted.values() if each is not None] == [1]


async def test_a_login_that_is_not_valid_any_more(tmp_path: Path) -> None:
    """A user who was disabled, or has another password, sends nothing more in a session that is open."""
    async with (
        listening(tmp_path, with_users(tmp_path)) as relay,
        await RawClient.connect(relay.address.port) as client,
    ):
        await client.ehlo()
        assert (await client.command(plain("secret"))).startswith("235")
        assert (await client.message(MESSAGE + b".\r\n")).startswith("250")
        context = relay.listener.context
        assert context.users is not None
        context.users._hashes["news"] = "!" + context.users.hash_of("news")
        assert (await client.command("MAIL FROM:<a@b.example>")).startswith("421 4.7.0 Your login")
