"""Hostile clients: whatever they send, they get an SMTP reply or a closed connection, and nobody else notices."""

import asyncio
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.attacks import attacked, item
from tests.kit.deadlines import scaled, time_limit, until
from tests.kit.listener import certificate
from tests.kit.smtp_client import RawClient
from zonemta_py.sink.script import Rule, Step

OK = b"Subject: s\r\n\r\nbody\r\n.\r\n"
ENDS = [
    b"\n.\n", b"\n.\r\n", b"\r\n.\n", b"\r.\r", b"\r\n.\r", b"\r.\r\n", b"\r\n.\r\r\n",
    b"\r\n\x00.\r\n", b"\n.\r", b"\r\n.\x00\r\n", b"\n\n.\r\n", b"\r\n.\n\r\n", b"\n\r.\r\n",
]  # fmt: skip
SMUGGLED = b"MAIL FROM:<evil@x.example>\r\nRCPT TO:<smuggled@good.example>\r\nDATA\r\nSubject: e\r\n\r\ne\r\n.\r\n"


@item(1)
async def test_nul_octets(folder: Path) -> None:
    """In a command, the header and the body."""
    async with attacked(folder) as victim, await victim.client() as client:
        assert (await client.command("MAIL FROM:<a\0b@x.example>")).startswith("500")
        for data in (b"Sub\0ject: s\r\n\r\nb\r\n.\r\n", b"Subject: s\r\n\r\nb\0b\r\n.\r\n"):
            assert (await client.message(data, "x@good.example")).startswith("554")
        assert (await client.message(OK, "x@good.example")).startswith("250")


@item(2)
async def test_endless_lines(folder: Path) -> None:
    """Long ones are refused, one without an end is cut off; memory does not follow."""
    async with attacked(folder) as victim:
        async with await victim.client() as client:
            assert (await client.command("NOOP " + "x" * 5000)).startswith("500")
            assert (await client.command("NOOP")).startswith("250")
        async with await victim.client() as client:
            for _ in range(200):
                await client.send(b"x" * 65_536)
            assert (await client.reply()).startswith("500") or await client.ended()


@item(3)
async def test_long_lines_in_data(folder: Path) -> None:
    """Up to 64 KiB they are carried as they are; beyond they are refused."""
    async with attacked(folder) as victim, await victim.client() as client:
        line = b"Subject: s\r\n\r\n" + b"y" * 60_000 + b"\r\n.\r\n"
        assert (await client.message(line, "x@good.example")).startswith("250")
        endless = b"Subject: s\r\n\r\n" + b"y" * 3_000_000 + b"\r\n.\r\n"
        assert (await client.message(endless, "x@good.example")).startswith("554")
        await until(lambda: victim.got(), "the long line")
        assert b"y" * 60_000 in victim.got()[0].data


@item(4)
@pytest.mark.parametrize("end", ENDS, ids=repr)
async def test_no_end_of_data_is_smuggled(folder: Path, end: bytes) -> None:
    """Whatever looks like the end: one message or a refusal, never a second message, in or out."""
    async with attacked(folder) as victim:
        async with await victim.client() as client:
            data = b"Subject: s\r\n\r\nfirst" + end + SMUGGLED
            reply = await client.message(data, "x@good.example")
            assert reply[:3] in ("250", "554")
        await victim.settled()
        assert all("smuggled@good.example" not in m.recipients for m in victim.got())
        assert all(m.sender != "evil@x.example" for m in victim.got())
        for message in victim.got():
            assert message.data.count(b"\r") == message.data.count(b"\r\n") == message.data.count(b"\n")


@item(4)
async def test_the_dot_in_pieces(folder: Path) -> None:
    """The end split over segments is the end; a body of one dot line is not two messages."""
    async with attacked(folder) as victim, await victim.client() as client:
        assert (await client.envelope("x@good.example")).startswith("354")
        for octet in b"Subject: s\r\n\r\n..\r\n.\r\n":
            await client.send(bytes([octet]))
        assert (await client.reply()).startswith("250")
        await until(lambda: victim.got(), "the message")
        assert victim.got()[0].data.endswith(b"\r\n\r\n.\r\n")


@item(5, 6)
async def test_lies_about_size(folder: Path) -> None:
    async with attacked(folder, {"max_message_size": "1MiB"}) as victim:
        async with await victim.client() as client:
            for bad in ("-1", "9" * 30, "", "1 SIZE=2", "٣", "0x10"):
                assert (await client.command(f"MAIL FROM:<a@x.example> SIZE={bad}"))[:3] in (
                    "501",
                    "552",
                    "555",
                )
            assert (await client.command(f"MAIL FROM:<a@x.example> SIZE={10**8}")).startswith("552")
            assert (await client.command("MAIL FROM:<a@x.example> SIZE=10")).startswith("250")
            await client.command("RCPT TO:<x@good.example>")
            assert (await client.command("DATA")).startswith("354")
            await client.send(
                b"Subject: s\r\n\r\n"
                + b"x" * 70
                + b"\r\n"
                + (b"y" * 70 + b"\r\n") * 20_000
                + b".\r\nNOOP\r\n"
            )
            assert (await client.reply()).startswith("552")
            assert (await client.reply()).startswith("250"), "the next command was not eaten"
        async with await victim.client() as client:
            assert (await client.envelope("x@good.example")).startswith("354")
            await client.send(b"Subject: s\r\n\r\n" + (b"x" * 998 + b"\r\n") * 6000 + b".\r\n")
            assert (await client.reply()).startswith("552"), "permanent: no retry can help"
            assert await client.ended()
        assert victim.got() == []


@item(7)
async def test_pipelining_out_of_turn(folder: Path) -> None:
    """Before the greeting, and across DATA: every reply in order, no command lost."""
    async with attacked(folder) as victim:
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
async def test_starttls_injection(folder: Path) -> None:
    """What follows STARTTLS in plain text is not believed; what was said before it is forgotten."""
    cert, key, _ = certificate(folder)
    tls = {"tls": {"mode": "starttls", "certificate_file": str(cert), "key_file": str(key)}}
    async with attacked(folder, tls) as victim:
        async with await victim.client() as client:
            await client.send(b"STARTTLS\r\nEHLO evil\r\nMAIL FROM:<evil@x.example>\r\n")
            assert (await client.reply()).startswith("554")
            assert await client.ended()
        async with await victim.client() as client:
            assert (await client.command("STARTTLS")).startswith("220")
            await client.send(b"MAIL FROM:<evil@x.example>\r\nRCPT TO:<x@good.example>\r\n")
            assert await client.ended()


@item(8, 11)
async def test_a_handshake_that_never_happens(folder: Path) -> None:
    """Silence after STARTTLS costs a session for its time and no longer; a stop does not wait for it."""
    cert, key, _ = certificate(folder)
    tls = {
        "tls": {"mode": "starttls", "certificate_file": str(cert), "key_file": str(key)},
        "idle_timeout": time_limit(1),
    }
    async with attacked(folder, tls) as victim:
        clients = [await victim.client() for _ in range(5)]
        for client in clients:
            assert (await client.command("STARTTLS")).startswith("220")
        await until(lambda: victim.sessions == 0, "the handshakes to be given up")
        for client in clients:
            client.close()
    (folder / "stop").mkdir()
    async with attacked(folder / "stop", {**tls, "idle_timeout": "5m"}) as victim:
        client = await victim.client()
        assert (await client.command("STARTTLS")).startswith("220")
        await victim.relay.stop(0.2)
        assert victim.sessions == 0
        client.close()


@item(10)
async def test_floods(folder: Path) -> None:
    """Commands that do nothing, errors, HELO, VRFY, recipients without end: free only so often."""
    async with attacked(folder, {"max_recipients": 10}) as victim:
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
async def test_slow_clients(folder: Path) -> None:
    """One octet at a time in a command, in DATA, or none at all: over when the time is."""
    async with attacked(
        folder, {"idle_timeout": time_limit(0.5), "message_timeout": time_limit(1)}
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
async def test_too_many_connections(folder: Path) -> None:
    async with attacked(folder, {"max_sessions": 5}) as victim:
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
async def test_other_protocols(folder: Path, words: bytes) -> None:
    """They are cut off before anything in them is taken for a command."""
    async with attacked(folder) as victim:
        client = await RawClient.connect(victim.port)
        await client.send(words)
        replies = [await client.reply() for _ in range(3)]
        assert any(reply[:1] in "45" for reply in replies)
        client.close()
        await victim.settled()
        assert victim.got() == []


@item(13, 31)
async def test_xclient_is_not_for_everybody(folder: Path) -> None:
    async with attacked(folder) as victim, await victim.client() as client:
        assert (await client.command("XCLIENT ADDR=10.0.0.1")).startswith("500")


@item(14)
async def test_envelope_injection(folder: Path) -> None:
    """A line end in an address ends the command; what follows is a command of its own or an error."""
    async with attacked(folder) as victim, await victim.client() as client:
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


@item(15)
@pytest.mark.parametrize(
    ("header", "codes"),
    [
        (b"X: " + b"y" * 200_000 + b"\r\n", ("250", "554")), (b"X: y\r\n" * 1500, ("250",)),
        (b"X: y\r\n" * 50_000, ("552",)), (b"no colon here\r\n", ("250",)), (b" folded first\r\n", ("250",)),
        (b"From x@y Sat Nov 21\r\nSubject: mbox\r\n", ("250",)), (b"", ("250",)), (b":empty name\r\n", ("250",)),
    ],
    ids=["one-long", "many", "too-many", "no-colon", "folded", "mbox", "none", "no-name"],
)  # fmt: skip
async def test_header_bombs(folder: Path, header: bytes, codes: tuple[str, ...]) -> None:
    """Refused, or carried as they are."""
    async with attacked(folder) as victim:
        async with await victim.client() as client:
            reply = await client.message(header + b"\r\nbody\r\n.\r\n", "x@good.example")
            assert reply[:3] in codes
        await victim.settled()
        if reply.startswith("250"):
            assert victim.got()[0].data.endswith(b"body\r\n")


@item(16)
async def test_mime_bombs_are_only_carried(folder: Path) -> None:
    """Nothing parses MIME here: 2,000 nested parts cost what their octets cost."""
    nested = b"".join(
        b"--%d\r\nContent-Type: multipart/mixed; boundary=%d\r\n\r\n" % (n, n + 1) for n in range(2000)
    )
    body = b"Content-Type: multipart/mixed; boundary=0\r\n\r\n" + nested
    async with attacked(folder) as victim, await victim.client() as client:
        assert (await client.message(body + b".\r\n", "x@good.example")).startswith("250")
        await until(lambda: victim.got(), "the message")
        assert nested in victim.got()[0].data


@item(17)
async def test_loops(folder: Path) -> None:
    async with attacked(folder, {"max_hops": 20}) as victim, await victim.client() as client:
        looped = b"Received: from x by y; Sat, 21 Nov 2026 00:00:00 +0000\r\n" * 21
        assert (await client.message(looped + OK, "x@good.example")).startswith("554 5.4.6")
        assert (await client.message(looped[: len(looped) // 21 * 5] + OK, "x@good.example")).startswith(
            "250"
        )


@item(17, 18)
async def test_reports_make_no_reports(folder: Path) -> None:
    """The null sender hears nothing, with one recipient or several."""
    async with attacked(folder) as victim:
        await victim.stage.receiver("no.example", Rule(Step.RCPT, reply="550 5.1.1 no"))
        async with await victim.client() as client:
            for recipients in (["a@no.example"], ["b@no.example", "c@no.example"]):
                assert (await client.message(OK, *recipients, sender="")).startswith("250")
        await victim.settled()
        assert victim.got() == []


@item(19)
@pytest.mark.parametrize(
    ("address", "code"),
    [
        ('"a b"@good.example', "250"), ('"<>"@good.example', "250"), ("@a.example,@b.example:x@good.example", "250"),
        ("a%b@good.example", "250"), ("a!b@good.example", "250"), ("x@[127.0.0.1]", "250"), ("postmaster", "250"),
        ("x@[IPv6:::1]", "250"), ("x@good.example.", "5"), ("a" * 65 + "@good.example", "5"),
        ("x@" + "a" * 64 + ".example", "5"), ("x@" + "a.example." * 30 + "x", "5"), ("noat", "5"), ("@good.example", "5"),
        ("a@b@good.example", "5"), ("a..b@good.example", "5"), (".a@good.example", "5"), ("ä@good.example", "5"),
        ("x@gööd.example", "250"), ("x@-a.example", "5"), ("x@good_.example", "5"), ("", "5"), ("x@", "5"),
        ("\u202ex@good.example", "5"), ("x\udcff@good.example", "5"), ("x@[999.1.1.1]", "5"),
    ],
)  # fmt: skip
async def test_addresses(folder: Path, address: str, code: str) -> None:
    async with attacked(folder) as victim, await victim.client() as client:
        await client.command("MAIL FROM:<a@x.example>")
        reply = await client.command(f"RCPT TO:<{address}>")
        assert reply.startswith(code) or (code == "250" and reply.startswith("5") and "[" in address), (
            reply
        )
        assert (await client.command("RSET")).startswith("250")


@item(19)
async def test_misleading_addresses_with_smtputf8(folder: Path) -> None:
    async with attacked(folder) as victim, await victim.client() as client:
        assert (await client.command("MAIL FROM:<a@x.example> SMTPUTF8")).startswith("250")
        assert (await client.command("RCPT TO:<zoë@good.example>")).startswith("250")
        for bad in ("\u202ezoe@good.example", "zo\u2028e@good.example", "zo\x85e@good.example"):
            assert (await client.command(f"RCPT TO:<{bad}>")).startswith("5")


@item(21)
async def test_many_and_repeated_recipients(folder: Path) -> None:
    """A thousand in one transaction, each twice: delivered once each."""
    async with attacked(folder) as victim, await victim.client() as client:
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


@item(22)
async def test_leaving_at_every_step(folder: Path) -> None:
    """Closed, half-closed or reset after every octet: a message only when its final dot came."""
    words = b"EHLO c\r\nMAIL FROM:<a@x.example>\r\nRCPT TO:<x@good.example>\r\nDATA\r\n" + OK
    async with attacked(folder) as victim:
        rng = random.Random(22)
        for at in sorted(rng.sample(range(len(words)), 40)):
            client = await RawClient.connect(victim.port)
            await client.send(words[:at])
            rng.choice([client.reset, client.close, client.half_close])()
            client.close()
        await until(lambda: victim.sessions == 0, "the sessions to end")
        await victim.settled()
        assert victim.got() == []


@item(25)
async def test_input_made_for_slow_patterns(folder: Path) -> None:
    """Addresses and parameters built against backtracking are answered at once."""
    evil = [
        "<" + "a." * 1900 + "@x>",
        '<"' + "\\a" * 1900,
        "<@" + "a,@" * 1200 + "a:x@y>",
        "<x@y> " + "A=1 " * 900,
    ]
    async with attacked(folder) as victim, await victim.client() as client:
        for text in evil:
            async with asyncio.timeout(scaled(2)):
                assert (await client.command(f"MAIL FROM:{text}"))[:1] in "25"
                await client.command(f"RCPT TO:{text}")
                await client.command("RSET")


@item(26)
async def test_nothing_gets_into_the_log(folder: Path) -> None:
    """EHLO names, users and addresses with line ends or escapes do not reach a header or a log as such."""
    async with attacked(folder) as victim:
        client = await RawClient.connect(victim.port)
        assert (await client.command("EHLO evil\x1b[31m\rX-Evil: 1")).startswith(("250", "501"))
        await client.ehlo()
        assert (await client.message(OK, "x@good.example")).startswith("250")
        client.close()
        await victim.settled()
        assert b"\x1b" not in victim.got()[0].data
        assert b"\r\nX-Evil" not in victim.got()[0].data


@item(32)
async def test_bdat_is_not_offered_and_not_taken(folder: Path) -> None:
    async with attacked(folder) as victim, await victim.client() as client:
        assert "CHUNKING" not in await client.command("EHLO c")
        await client.command("MAIL FROM:<a@x.example>")
        await client.command("RCPT TO:<x@good.example>")
        for command in ("BDAT 0 LAST", "BDAT 99999999999999999999", "BDAT -1", "BDAT"):
            assert (await client.command(command)).startswith("502")
        assert (await client.command("DATA")).startswith("354")
        await client.send(OK)
        assert (await client.reply()).startswith("250")


@item(33)
async def test_passwords_in_the_clear(folder: Path) -> None:
    """AUTH is neither offered nor taken without TLS."""
    from tests.kit.listener import users_file

    cert, key, _ = certificate(folder)
    listener = {
        "tls": {"mode": "starttls", "certificate_file": str(cert), "key_file": str(key)},
        "auth": {"users_file": str(users_file(folder))},
    }
    async with attacked(folder, listener) as victim, await victim.client() as client:
        assert "AUTH" not in await client.command("EHLO c")
        assert (await client.command("AUTH PLAIN AG5ld3MAc2VjcmV0")).startswith("538")


@item(10, 33)
async def test_guessing_passwords(folder: Path) -> None:
    from tests.kit.listener import users_file

    listener = {"auth": {"users_file": str(users_file(folder)), "require_tls": False}, "max_errors": 3}
    async with attacked(folder, listener) as victim, await victim.client() as client:
        replies = [await client.command("AUTH PLAIN AG5ld3MAZ3Vlc3M=") for _ in range(4)]
        assert [reply[:3] for reply in replies[:2]] == ["535", "535"]
        assert await client.ended()


@item(34)
async def test_replays(folder: Path) -> None:
    """The same Message-ID twice is two messages: only a submission key says that it is one."""
    async with attacked(folder) as victim, await victim.client() as client:
        for _ in range(2):
            assert (await client.message(b"Message-ID: <same@x>\r\n" + OK, "x@good.example")).startswith(
                "250"
            )
        await victim.settled()
        assert len(victim.got()) == 2


@item(1, 2, 3, 4, 15)
@settings(max_examples=25, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=200), max_size=8))
def test_any_octets_at_all(pieces: list[bytes]) -> None:
    """Random octets, as commands and as data: replies or a closed connection, and the relay is unharmed."""
    import tempfile

    async def attack() -> None:
        with tempfile.TemporaryDirectory() as name:
            async with attacked(Path(name), {"idle_timeout": time_limit(2)}) as victim:
                client = await RawClient.connect(victim.port)
                for piece in pieces:
                    await client.send(piece)
                client.half_close()
                async with asyncio.timeout(scaled(10)):
                    while await client.reply():
                        pass
                client.close()
                async with await victim.client() as client:
                    if (await client.envelope("x@good.example")).startswith("354"):
                        await client.send(b"".join(pieces))
                    client.reset()

    asyncio.run(attack())
