"""Hostile clients: every one gets SMTP replies or a closed connection, and other mail is not affected."""

import asyncio
from pathlib import Path

import pytest

from tests.kit.attacks import attacked, item
from tests.kit.deadlines import scaled, time_limit, until
from tests.kit.listener import certificate, users_file
from tests.kit.smtp_client import RawClient

OK = b"Subject: s\r\n\r\nbody\r\n.\r\n"


@item(2)
async def test_endless_lines(tmp_path: Path) -> None:
    """A long line is refused, one without an end closes the connection; memory stays the same."""
    async with attacked(tmp_path) as victim:
        async with await victim.client() as client:
            assert (await client.command("NOOP " + "x" * 5000)).startswith("500")
            assert (await client.command("NOOP")).startswith("250")
        async with await victim.client() as client:
            for _ in range(200):
                await client.send(b"x" * 65_536)
            assert (await client.reply()).startswith("500") or await client.ended()


@item(7)
async def test_pipelining_out_of_turn(tmp_path: Path) -> None:
    """Before the greeting, and after DATA: every reply in order, no command lost."""
    async with attacked(tmp_path) as victim:
        client = await RawClient.connect(victim.port, greeting=False)
        await client.send(
            b"EHLO c\r\nMAIL FROM:<a@x.example>\r\nRCPT TO:<x@good.example>\r\nDATA\r\n"
            + OK
            + b"NOOP\r\nQUIT\r\n"
        )
        codes = [(await client.reply())[:3] for _ in range(8)]
        assert codes == ["220", "250", "250", "250", "354", "250", "250", "221"]
        client.close()


@item(8, 9)
async def test_starttls_injection(tmp_path: Path) -> None:
    """Plain text after STARTTLS is not used; commands before it are forgotten."""
    cert, key, _ = certificate(tmp_path)
    tls = {"tls": {"mode": "starttls", "certificate_file": str(cert), "key_file": str(key)}}
    async with attacked(tmp_path, tls) as victim:
        async with await victim.client() as client:
            await client.send(b"STARTTLS\r\nEHLO evil\r\nMAIL FROM:<evil@x.example>\r\n")
            assert (await client.reply()).startswith("554")
            assert await client.ended()
        async with await victim.client() as client:
            assert (await client.command("STARTTLS")).startswith("220")
            await client.send(b"MAIL FROM:<evil@x.example>\r\nRCPT TO:<x@good.example>\r\n")
            assert await client.ended()


@item(8, 11)
async def test_a_handshake_that_never_happens(tmp_path: Path) -> None:
    """A session without a handshake ends at its time limit; a stop does not wait for it."""
    cert, key, _ = certificate(tmp_path)
    tls = {
        "tls": {"mode": "starttls", "certificate_file": str(cert), "key_file": str(key)},
        "idle_timeout": time_limit(1),
    }
    async with attacked(tmp_path, tls) as victim:
        clients = [await victim.client() for _ in range(5)]
        for client in clients:
            assert (await client.command("STARTTLS")).startswith("220")
        await until(lambda: victim.sessions == 0, "the end of the handshakes")
        for client in clients:
            client.close()
    (tmp_path / "stop").mkdir()
    async with attacked(tmp_path / "stop", {**tls, "idle_timeout": "5m"}) as victim:
        client = await victim.client()
        assert (await client.command("STARTTLS")).startswith("220")
        await victim.relay.stop(0.2)
        assert victim.sessions == 0
        client.close()


@item(10)
async def test_floods(tmp_path: Path) -> None:
    """Commands without effect, errors, HELO, VRFY, recipients: each is limited."""
    async with attacked(tmp_path, {"max_recipients": 10}) as victim:
        for command in ("NOOP", "RSET", "VRFY x", "EHLO c.example", "HELO c.example"):
            async with await victim.client() as client:
                await client.send(f"{command}\r\n".encode() * 300)
                replies = [await client.reply() for _ in range(110)]
                assert any(reply.startswith("421") for reply in replies), command
        async with await victim.client() as client:
            await client.send(b"EXPN x\r\n" * 50)
            replies = [await client.reply() for _ in range(30)]
            assert any(reply.startswith("421") for reply in replies)
        async with await victim.client() as client:
            await client.command("MAIL FROM:<a@x.example>")
            await client.send(b"".join(b"RCPT TO:<%d@good.example>\r\n" % n for n in range(100)))
            replies = [await client.reply() for _ in range(25)]
            assert sum(reply.startswith("250") for reply in replies) == 10
            assert replies[-1] == ""


@item(11)
async def test_slow_clients(tmp_path: Path) -> None:
    """No bytes at all, or one at a time in DATA: the session ends at its time limit."""
    async with attacked(
        tmp_path, {"idle_timeout": time_limit(0.5), "message_timeout": time_limit(1)}
    ) as victim:
        silent = await RawClient.connect(victim.port)
        assert (await silent.reply()).startswith("421")
        dripping = await victim.client()
        assert (await dripping.envelope("x@good.example")).startswith("354")

        async def drip() -> None:
            for _ in range(100):
                await dripping.send(b"x")
                await asyncio.sleep(0.05)  # the pace of the attack

        task = asyncio.ensure_future(drip())
        assert (await dripping.reply()).startswith("421")
        task.cancel()
        for client in (silent, dripping):
            client.close()


@item(12)
async def test_too_many_connections(tmp_path: Path) -> None:
    async with attacked(tmp_path, {"max_sessions": 5}) as victim:
        clients = [await victim.client() for _ in range(5)]
        for _ in range(20):
            late = await RawClient.connect(victim.port, greeting=False)
            assert (await late.reply()).startswith("421")
            assert await late.ended()
            late.close()
        for client in clients:
            client.reset()


@item(13, 31)
@pytest.mark.parametrize(
    "words",
    [
        b"POST / HTTP/1.1\r\nContent-Length: 90\r\n\r\nEHLO a\r\nMAIL FROM:<e@x.example>\r\nRCPT TO:<http@good.example>\r\nDATA\r\n" + OK,
        b"GET / HTTP/1.0\r\n\r\n", b"CONNECT good.example:25 HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 40 + b"\n", b"SSH-2.0-x\r\n",
        b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\nEHLO x\r\n", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + b"\0" * 12 + b"\r\n",
    ],
    ids=["post", "get", "connect", "tls", "ssh", "proxy1", "proxy2"],
)  # fmt: skip
async def test_other_protocols(tmp_path: Path, words: bytes) -> None:
    """The connection is closed before any of it is taken for a command."""
    async with attacked(tmp_path) as victim:
        client = await RawClient.connect(victim.port)
        await client.send(words)
        replies = [await client.reply() for _ in range(3)]
        assert any(reply[:1] in "45" for reply in replies)
        client.close()
        await victim.settled()
        assert victim.got() == []


@item(13, 31)
async def test_xclient(tmp_path: Path) -> None:
    async with attacked(tmp_path) as victim, await victim.client() as client:
        assert (await client.command("XCLIENT ADDR=10.0.0.1")).startswith("500")


@item(14)
async def test_envelope_injection(tmp_path: Path) -> None:
    """A line end in an address ends the command; the next line is a command or an error."""
    async with attacked(tmp_path) as victim, await victim.client() as client:
        await client.send(b"MAIL FROM:<a@x.example>\nRCPT TO:<x@good.example>\nRSET\r\n")
        assert [(await client.reply())[:3] for _ in range(3)] == ["250", "250", "250"]
        for bad in (
            "<a@x.example> x",
            "<a@x.example\r>",
            "<a@x.example",
            "a@x.example>",
            "<<a@x.example>>",
        ):
            assert (await client.command(f"MAIL FROM:{bad}")).startswith("5")
        assert (await client.message(OK, "x@good.example")).startswith("250")


@item(19)
@pytest.mark.parametrize(
    ("address", "code"),
    [
        ('"a b"@good.example', "250"), ('"<>"@good.example', "250"), ("@a.example,@b.example:x@good.example", "250"),
        ("a%b@good.example", "250"), ("a!b@good.example", "250"), ("x@[127.0.0.1]", "250"), ("postmaster", "250"),
        ("x@[IPv6:::1]", "250"), ("x@good.example.", "5"), ("a" * 65 + "@good.example", "250"), ("a" * 320 + "@good.example", "5"),
        ("x@" + "a" * 64 + ".example", "5"), ("x@" + "a.example." * 30 + "x", "5"), ("noat", "5"), ("@good.example", "5"),
        ("a@b@good.example", "5"), ("a..b@good.example", "250"), (".a@good.example", "250"), ("ä@good.example", "5"),
        ("x@gööd.example", "250"), ("x@-a.example", "5"), ("x@good_.example", "250"), ("", "5"), ("x@", "5"),
        ("\u202ex@good.example", "5"), ("x\udcff@good.example", "5"), ("x@[999.1.1.1]", "5"),
    ],
)  # fmt: skip
async def test_addresses(tmp_path: Path, address: str, code: str) -> None:
    async with attacked(tmp_path) as victim, await victim.client() as client:
        await client.command("MAIL FROM:<a@x.example>")
        reply = await client.command(f"RCPT TO:<{address}>")
        assert reply.startswith(code) or (code == "250" and reply.startswith("5") and "[" in address), (
            reply
        )
        assert (await client.command("RSET")).startswith("250")


@item(19)
async def test_misleading_addresses_with_smtputf8(tmp_path: Path) -> None:
    async with attacked(tmp_path) as victim, await victim.client() as client:
        assert (await client.command("MAIL FROM:<a@x.example> SMTPUTF8")).startswith("250")
        assert (await client.command("RCPT TO:<zoë@good.example>")).startswith("250")
        for bad in ("\u202ezoe@good.example", "zo\u2028e@good.example", "zo\x85e@good.example"):
            assert (await client.command(f"RCPT TO:<{bad}>")).startswith("5")


@item(21)
async def test_many_and_repeated_recipients(tmp_path: Path) -> None:
    """A thousand in one transaction, each twice: delivered once each."""
    async with attacked(tmp_path) as victim, await victim.client() as client:
        await client.command("MAIL FROM:<a@x.example>")
        lines = b"".join(b"RCPT TO:<%d@good.example>\r\n" % (n % 1000) for n in range(2000))
        await client.send(lines + b"DATA\r\n")
        for _ in range(2000):
            assert (await client.reply()).startswith("250")
        assert (await client.reply()).startswith("354")
        await client.send(OK)
        assert (await client.reply()).startswith("250")
        await victim.settled()
        assert set(victim.good.tally.by_recipient.values()) == {1}
        assert len(victim.good.tally.by_recipient) == 1000


@item(25)
async def test_input_made_for_slow_patterns(tmp_path: Path) -> None:
    """Addresses and parameters made for backtracking get a reply within seconds."""
    evil = [
        "<" + "a." * 1900 + "@x>",
        '<"' + "\\a" * 1900,
        "<@" + "a,@" * 1200 + "a:x@y>",
        "<x@y> " + "A=1 " * 900,
    ]
    async with attacked(tmp_path) as victim, await victim.client() as client:
        for text in evil:
            async with asyncio.timeout(scaled(2)):
                assert (await client.command(f"MAIL FROM:{text}"))[:1] in "25"
                await client.command(f"RCPT TO:{text}")
                await client.command("RSET")


@item(26)
async def test_control_characters_in_ehlo(tmp_path: Path) -> None:
    """Line ends and escapes in EHLO do not reach the header of a message."""
    async with attacked(tmp_path) as victim:
        client = await RawClient.connect(victim.port)
        assert (await client.command("EHLO evil\x1b[31m\rX-Evil: 1")).startswith(("250", "501"))
        await client.ehlo()
        assert (await client.message(OK, "x@good.example")).startswith("250")
        client.close()
        await victim.settled()
        assert b"\x1b" not in victim.got()[0].data
        assert b"\r\nX-Evil" not in victim.got()[0].data


@item(32)
async def test_bdat(tmp_path: Path) -> None:
    async with attacked(tmp_path) as victim, await victim.client() as client:
        assert "CHUNKING" not in await client.command("EHLO c")
        await client.command("MAIL FROM:<a@x.example>")
        await client.command("RCPT TO:<x@good.example>")
        for command in ("BDAT 0 LAST", "BDAT 99999999999999999999", "BDAT -1", "BDAT"):
            assert (await client.command(command)).startswith("502")
        assert (await client.command("DATA")).startswith("354")
        await client.send(OK)
        assert (await client.reply()).startswith("250")


@item(33)
async def test_passwords_in_the_clear(tmp_path: Path) -> None:
    """AUTH is neither offered nor accepted without TLS."""
    cert, key, _ = certificate(tmp_path)
    listener = {
        "tls": {"mode": "starttls", "certificate_file": str(cert), "key_file": str(key)},
        "senders": "any",
        "auth": {"users_file": str(users_file(tmp_path))},
    }
    async with attacked(tmp_path, listener) as victim, await victim.client() as client:
        assert "AUTH" not in await client.command("EHLO c")
        assert (await client.command("AUTH PLAIN AG5ld3MAc2VjcmV0")).startswith("538")


@item(10, 33)
async def test_guessing_passwords(tmp_path: Path) -> None:
    listener = {
        "senders": "any",
        "auth": {"users_file": str(users_file(tmp_path)), "require_tls": False},
        "max_errors": 3,
    }
    async with attacked(tmp_path, listener) as victim, await victim.client() as client:
        replies = [await client.command("AUTH PLAIN AG5ld3MAZ3Vlc3M=") for _ in range(4)]
        assert [reply[:3] for reply in replies[:2]] == ["535", "535"]
        assert await client.ended()
