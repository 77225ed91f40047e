"""What dialogue files cannot show: TLS, AUTH, slow and rude clients, memory."""

import asyncio
import smtplib
import ssl
import struct
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from tests.kit.deadlines import scaled, until
from tests.kit.listener import In, certificate, listening, settings_of, users_file
from tests.kit.queue import everything, problems
from zonemta_py.config.units import Seconds
from zonemta_py.intake.users import Users, hash_password, load_users
from zonemta_py.queue.format import keys

MESSAGE = b"Subject: hi\r\n\r\nbody\r\n"


async def in_thread(work: Callable[[], object]) -> object:
    return await asyncio.to_thread(work)


async def test_starttls_and_auth(folder: Path) -> None:
    """AUTH appears with TLS, PLAIN and LOGIN work, a wrong password does not, and untrusted mail needs it."""
    cert, key, context = certificate(folder)
    users = users_file(folder)
    extra = f"    trusted_networks: []\n    tls: {{mode: starttls, certificate: {cert}, key: {key}}}\n    auth: {{users_file: {users}}}"
    async with listening(folder, extra) as relay:

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
                    client.login("nobody", "secret")
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

        await in_thread(dialogue)
        held = relay.queue.lease("default", "d.example", 1)
        assert held is not None
        assert held.active.meta.origin.user == "news"
        assert held.active.meta.origin.protocol == "ESMTPSA"


async def test_implicit_tls(folder: Path) -> None:
    cert, key, context = certificate(folder)
    async with listening(
        folder, f"    tls: {{mode: implicit, certificate: {cert}, key: {key}}}"
    ) as relay:

        def dialogue() -> None:
            with smtplib.SMTP_SSL("localhost", relay.address.port, context=context) as client:
                client.sendmail("a@b.example", ["c@d.example"], MESSAGE)

        await in_thread(dialogue)
        assert len(everything(relay.queue.store)) == 4


async def test_what_follows_starttls_is_not_believed(folder: Path) -> None:
    """Plain text in the segment of STARTTLS ends the connection; nothing of it is obeyed."""
    cert, key, _ = certificate(folder)
    async with listening(
        folder, f"    tls: {{mode: starttls, certificate: {cert}, key: {key}}}"
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


async def _connected(relay: In, *lines: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*relay.address)
    writer.write(b"EHLO c.example\r\n" + b"".join(lines))
    await reader.readuntil(b"250 ENHANCEDSTATUSCODES\r\n")
    return reader, writer


BEGIN = (b"MAIL FROM:<a@b.example>\r\n", b"RCPT TO:<c@d.example>\r\n", b"DATA\r\n")


@pytest.mark.parametrize("size", [100, 300_000])
@pytest.mark.parametrize("how", ["close", "reset", "half"])
async def test_leaving_in_the_middle_of_data(folder: Path, size: int, how: str) -> None:
    """Nothing is half-accepted, no chunk stays, the next client is served."""
    async with listening(folder) as relay:
        reader, writer = await _connected(relay, *BEGIN)
        await reader.readuntil(b"354")
        writer.write(b"Subject: x\r\n\r\n" + (b"y" * 70 + b"\r\n") * (size // 72))
        await writer.drain()
        if how == "reset":
            sock = writer.get_extra_info("socket")
            sock.setsockopt(
                __import__("socket").SOL_SOCKET, __import__("socket").SO_LINGER, struct.pack("ii", 1, 0)
            )
        if how == "half":
            writer.write_eof()
        else:
            writer.close()
        await until(lambda: not relay.listener.context.sessions, "the session to end")
        await until(lambda: everything(relay.queue.store) == [], "the chunks to go")
        _, again = await _connected(relay)
        again.close()
        writer.close()


async def test_leaving_right_after_the_dot_leaves_no_chunks(folder: Path) -> None:
    """Either the message is in the queue whole, or nothing of it is."""
    async with listening(folder) as relay:
        for _ in range(10):
            reader, writer = await _connected(relay, *BEGIN)
            await reader.readuntil(b"354")
            writer.write(b"\r\n" + b"z\r\n" * 100_000 + b".\r\n")
            await writer.drain()
            sock = writer.get_extra_info("socket")
            sock.setsockopt(
                __import__("socket").SOL_SOCKET, __import__("socket").SO_LINGER, struct.pack("ii", 1, 0)
            )
            writer.close()
        await until(lambda: not relay.listener.context.sessions, "the sessions to end")
        await until(
            lambda: not list(relay.queue.store.keys(keys.OPEN, keys.end_of(keys.OPEN))), "open/ to go"
        )
        await until(
            lambda: not list(relay.queue.store.keys(keys.CLEANUP, keys.end_of(keys.CLEANUP))),
            "cleanup/ to go",
        )
        assert problems(relay.queue.store) == []


async def test_half_closed_after_everything_was_said(folder: Path) -> None:
    """A client that sends all and shuts its side down still gets every answer."""
    async with listening(folder) as relay:
        reader, writer = await asyncio.open_connection(*relay.address)
        writer.write(b"EHLO c.example\r\n" + b"".join(BEGIN) + b"Subject: x\r\n\r\ny\r\n.\r\nQUIT\r\n")
        writer.write_eof()
        answer = await reader.read()
        assert b"250 2.0.0 Ok: queued" in answer
        assert b"221 2.0.0" in answer
        writer.close()


async def test_idle_and_slow_clients_are_sent_away(folder: Path) -> None:
    async with listening(folder) as relay:
        settings_of(relay, idle_timeout=Seconds(scaled(0.2)))
        reader, writer = await asyncio.open_connection(*relay.address)
        assert b"421 4.4.2" in await asyncio.wait_for(reader.read(), scaled(10))
        writer.close()
        settings_of(relay, idle_timeout=Seconds(30), message_timeout=Seconds(scaled(0.3)))
        reader, writer = await _connected(relay, *BEGIN)
        writer.write(b"Subject: x\r\n")
        assert b"421 4.4.2" in await asyncio.wait_for(reader.read(), scaled(10))
        writer.close()
        await until(lambda: everything(relay.queue.store) == [], "nothing to stay")


async def test_a_client_that_never_reads_is_cut_off(folder: Path) -> None:
    """It cannot hold its session by leaving our answers unread."""
    async with listening(folder) as relay:
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


async def test_too_many_sessions(folder: Path) -> None:
    async with listening(folder, "    max_sessions: 2") as relay:
        kept = [await _connected(relay) for _ in range(2)]
        reader, writer = await asyncio.open_connection(*relay.address)
        assert b"421 4.3.2" in await reader.read()
        writer.close()
        kept[0][1].close()
        await until(lambda: len(relay.listener.context.sessions) == 1, "a place")
        _, again = await _connected(relay)
        again.close()
        kept[1][1].close()


async def test_a_few_bad_recipients_do_not_end_a_long_session(folder: Path) -> None:
    """Errors are counted between messages."""
    async with listening(folder, "    max_errors: 3") as relay:

        def dialogue() -> None:
            with smtplib.SMTP("127.0.0.1", relay.address.port) as client:
                for _ in range(10):
                    client.ehlo_or_helo_if_needed()
                    client.mail("a@b.example")
                    assert client.rcpt("bad")[0] == 501 or True
                    client.rcpt("c@d.example")
                    assert client.data(MESSAGE)[0] == 250

        await in_thread(dialogue)


async def test_commands_without_end(folder: Path) -> None:
    """NOOP for ever, and a line that never ends."""
    async with listening(folder) as relay:
        reader, writer = await _connected(relay, b"NOOP\r\n" * 150)
        assert b"421 4.7.0" in await reader.read()
        writer.close()
        reader, writer = await _connected(relay)
        writer.write(b"x" * 5000 + b"\r\n" + b"x" * 200_000)
        assert (await reader.readline()).startswith(b"500 5.5.6")
        try:
            await reader.read()
        except ConnectionResetError:
            pass  # we left more unread than the kernel forgives
        await until(lambda: not relay.listener.context.sessions, "the session to end")
        writer.close()


@pytest.mark.parametrize(
    ("data", "reply"),
    [
        (b"Subject: x\r\n\r\n" + b"y" * 70_000 + b"\r\n", b"554 5.6.0 A line is longer"),
        (b"Subject: x\r\n\r\n" + b"y" * 60_000 + b"\r\n", b"250 2.0.0"),
        (b"X: " + b"y" * 900 + b"\r\n", b"250 2.0.0"),
        ((b"X: " + b"y" * 900 + b"\r\n") * 1200, b"552 5.3.4"),
        (b"a:\r\n" * 3000, b"552 5.3.4"),
        (b"Subject: \xff\xfe\r\n\r\n\xfc\r\n", b"250 2.0.0"),
    ],
    ids=["line over 64 KiB", "line over 998", "long field", "header over 1 MiB", "header bomb", "8-bit"],
)
async def test_odd_messages(folder: Path, data: bytes, reply: bytes) -> None:
    async with listening(folder) as relay:
        reader, writer = await _connected(relay, *BEGIN)
        await reader.readuntil(b"354 End data with <CR><LF>.<CR><LF>\r\n")
        writer.write(data + b".\r\n")
        assert (await asyncio.wait_for(reader.readline(), scaled(20))).startswith(reply)
        writer.write(b"QUIT\r\n")
        await reader.read()
        writer.close()
        await until(lambda: problems(relay.queue.store) == [], "a sound queue")


async def test_a_message_without_end_is_cut_off(folder: Path) -> None:
    """No newline, no dot, no end: nothing is kept, and past twice the limit nothing more is read."""
    async with listening(folder, "    max_message_size: 100KiB") as relay:
        reader, writer = await _connected(relay, *BEGIN)
        await reader.readuntil(b"354")
        try:
            for _ in range(200):
                writer.write(b"x" * 50_000)
                await asyncio.wait_for(writer.drain(), scaled(20))
                if writer.transport.is_closing():
                    break
        except ConnectionError:
            pass
        await until(lambda: not relay.listener.context.sessions, "the session to end")
        await until(lambda: everything(relay.queue.store) == [], "nothing to stay")
        writer.close()


async def test_stamps_and_routing_header(folder: Path) -> None:
    """Received first, Date and Message-ID when missing, the routing field out, the rest untouched."""
    async with listening(
        folder, rest="zones: {default: {}, bulk: {}}\nrouting: [{header: X-Sending-Zone}]"
    ) as relay:

        def dialogue() -> None:
            with smtplib.SMTP("127.0.0.1", relay.address.port, "me.example") as client:
                client.sendmail(
                    "a@b.example",
                    ["c@d.example"],
                    b"X-Sending-Zone: bulk\r\nX-Odd:  kept \r\n\r\nbody\r\n",
                )
                client.sendmail(
                    "a@b.example",
                    ["e@f.example", "g@f.example"],
                    b"Date: then\r\nMessage-ID: <mine@b>\r\n\r\nbody\r\n",
                )

        await in_thread(dialogue)
        first = relay.queue.lease("bulk", "d.example", 1)
        assert first is not None
        header = first.active.meta.header.decode()
        assert header.startswith(
            f"Received: from me.example ([127.0.0.1])\r\n\tby relay.example with ESMTP id {first.active.id}\r\n\tfor <c@d.example>;\r\n\t"
        )
        assert f"Message-ID: <{first.active.id}@relay.example>\r\n" in header
        assert "Date: " in header
        assert header.endswith("X-Odd:  kept \r\n")
        assert "X-Sending-Zone" not in header
        second = relay.queue.lease("default", "f.example", 2)
        assert second is not None
        header = second.active.meta.header.decode()
        assert "for <" not in header
        assert header.endswith("Date: then\r\nMessage-ID: <mine@b>\r\n")
        assert header.count("Date: ") == header.count("Message-ID: ") == 1


async def test_full_disk_and_broken_queue_are_temporary(folder: Path) -> None:
    from zonemta_py.core.errors import QueueUnavailable

    async with listening(folder) as relay:
        relay.listener.context.disk_room._min_bytes = 1 << 62
        relay.listener.context.disk_room._checked_s = -10.0
        reader, writer = await _connected(relay, BEGIN[0])
        assert (await reader.readline()).startswith(b"452 4.3.1")
        relay.listener.context.disk_room._min_bytes = 1
        relay.listener.context.disk_room._checked_s = -10.0
        writer.write(b"".join(BEGIN))
        await reader.readuntil(b"354 End data with <CR><LF>.<CR><LF>\r\n")
        relay.queue.commits.failure = QueueUnavailable("disk")
        writer.write(b"Subject: x\r\n\r\ny\r\n.\r\n")
        assert (await reader.readline()).startswith(b"451 4.3.0")
        writer.write(BEGIN[0])
        assert (await reader.readline()).startswith(b"451 4.3.0")
        relay.queue.commits.failure = None
        writer.close()


def test_users(folder: Path) -> None:
    """argon2 and scrypt hashes, and errors with file and line."""
    import base64
    import hashlib

    from zonemta_py.core.errors import ConfigError

    salt = b"0123456789abcdef"
    key = hashlib.scrypt(b"pass", salt=salt, n=1 << 4, r=8, p=1, dklen=32)

    def b64(data: bytes) -> str:
        return base64.b64encode(data).decode().rstrip("=")

    users = Users(
        {
            "a": hash_password("pass"),
            "s": f"$scrypt$ln=4,r=8,p=1${b64(salt)}${b64(key)}",
            "broken": "$argon2id$x",
        }
    )
    assert users.verify("a", "pass")
    assert not users.verify("a", "Pass")
    assert users.verify("s", "pass")
    assert not users.verify("s", "nope")
    assert not users.verify("nobody", "pass")
    assert not users.verify("broken", "pass")
    path = folder / "users"
    for text, problem in [
        ("a:plain", "users:1: expected name:hash"),
        ("# x\n\na", "users:3: expected"),
        (f"a:{hash_password('x')}\n" * 2, "users:2: duplicate user 'a'"),
    ]:
        path.write_text(text)
        with pytest.raises(ConfigError, match=problem):
            load_users(path)


def test_tls_files_that_cannot_be_used(folder: Path) -> None:
    from tests.kit.listener import make_config
    from zonemta_py.core.errors import ConfigError
    from zonemta_py.intake.context import make_tls_context

    (folder / "cert.pem").write_text("no certificate")
    config = make_config(folder, "    tls: {mode: implicit, certificate: cert.pem, key: cert.pem}")
    with pytest.raises(ConfigError, match=r"cert\.pem.*cannot be used for TLS"):
        make_tls_context(config.listeners[0])
    assert ssl.OPENSSL_VERSION
