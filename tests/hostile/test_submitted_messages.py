"""Hostile messages: the data after DATA, its end, its header and its size."""

import asyncio
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.attacks import attacked, item
from tests.kit.deadlines import scaled, time_limit, until
from tests.kit.smtp_client import RawClient
from zonemta_py.sink.script import Rule, Step

OK = b"Subject: s\r\n\r\nbody\r\n.\r\n"
ENDS = [
    b"\n.\n", b"\n.\r\n", b"\r\n.\n", b"\r.\r", b"\r\n.\r", b"\r.\r\n", b"\r\n.\r\r\n",
    b"\r\n\x00.\r\n", b"\n.\r", b"\r\n.\x00\r\n", b"\n\n.\r\n", b"\r\n.\n\r\n", b"\n\r.\r\n",
]  # fmt: skip
SMUGGLED = b"MAIL FROM:<evil@x.example>\r\nRCPT TO:<smuggled@good.example>\r\nDATA\r\nSubject: e\r\n\r\ne\r\n.\r\n"


@item(1)
async def test_nul_bytes(tmp_path: Path) -> None:
    """In a command, in the header and in the body."""
    async with attacked(tmp_path) as victim, await victim.client() as client:
        assert (await client.command("MAIL FROM:<a\0b@x.example>")).startswith("500")
        for data in (b"Sub\0ject: s\r\n\r\nb\r\n.\r\n", b"Subject: s\r\n\r\nb\0b\r\n.\r\n"):
            assert (await client.message(data, "x@good.example")).startswith("554")
        assert (await client.message(OK, "x@good.example")).startswith("250")


@item(3)
async def test_long_lines_in_data(tmp_path: Path) -> None:
    """Up to 64 KiB they are delivered unchanged; longer ones are refused."""
    async with attacked(tmp_path) as victim, await victim.client() as client:
        line = b"Subject: s\r\n\r\n" + b"y" * 60_000 + b"\r\n.\r\n"
        assert (await client.message(line, "x@good.example")).startswith("250")
        endless = b"Subject: s\r\n\r\n" + b"y" * 3_000_000 + b"\r\n.\r\n"
        assert (await client.message(endless, "x@good.example")).startswith("554")
        await until(lambda: victim.got(), "the long line")
        assert b"y" * 60_000 in victim.got()[0].data


@item(4)
@pytest.mark.parametrize("end", ENDS, ids=repr)
async def test_smuggled_ends_of_data(tmp_path: Path, end: bytes) -> None:
    """Data like the final dot: one message or a refusal, never a second message, received or delivered."""
    async with attacked(tmp_path) as victim:
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
async def test_the_final_dot_in_pieces(tmp_path: Path) -> None:
    """A final dot in several segments ends the data; a body with a line of one dot is one message."""
    async with attacked(tmp_path) as victim, await victim.client() as client:
        assert (await client.envelope("x@good.example")).startswith("354")
        for byte in b"Subject: s\r\n\r\n..\r\n.\r\n":
            await client.send(bytes([byte]))
        assert (await client.reply()).startswith("250")
        await until(lambda: victim.got(), "the message")
        assert victim.got()[0].data.endswith(b"\r\n\r\n.\r\n")


@item(5, 6)
async def test_false_sizes(tmp_path: Path) -> None:
    async with attacked(tmp_path, {"max_message_size": "1MiB"}) as victim:
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
            assert (await client.reply()).startswith("250"), "the next command was read"
        async with await victim.client() as client:
            assert (await client.envelope("x@good.example")).startswith("354")
            await client.send(b"Subject: s\r\n\r\n" + (b"x" * 998 + b"\r\n") * 6000 + b".\r\n")
            assert (await client.reply()).startswith("552"), "permanent: a retry does not help"
            assert await client.ended()
        assert victim.got() == []


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
async def test_header_bombs(tmp_path: Path, header: bytes, codes: tuple[str, ...]) -> None:
    """Refused, or delivered unchanged."""
    async with attacked(tmp_path) as victim:
        async with await victim.client() as client:
            reply = await client.message(header + b"\r\nbody\r\n.\r\n", "x@good.example")
            assert reply[:3] in codes
        await victim.settled()
        if reply.startswith("250"):
            assert victim.got()[0].data.endswith(b"body\r\n")


@item(16)
async def test_mime_bombs(tmp_path: Path) -> None:
    """MIME is not parsed: 2,000 nested parts cost no more than their bytes."""
    nested = b"".join(
        b"--%d\r\nContent-Type: multipart/mixed; boundary=%d\r\n\r\n" % (n, n + 1) for n in range(2000)
    )
    body = b"Content-Type: multipart/mixed; boundary=0\r\n\r\n" + nested
    async with attacked(tmp_path) as victim, await victim.client() as client:
        assert (await client.message(body + b".\r\n", "x@good.example")).startswith("250")
        await until(lambda: victim.got(), "the message")
        assert nested in victim.got()[0].data


@item(17)
async def test_loops(tmp_path: Path) -> None:
    async with attacked(tmp_path, {"max_hops": 20}) as victim, await victim.client() as client:
        looped = b"Received: from x by y; Sat, 21 Nov 2026 00:00:00 +0000\r\n" * 21
        assert (await client.message(looped + OK, "x@good.example")).startswith("554 5.4.6")
        assert (await client.message(looped[: len(looped) // 21 * 5] + OK, "x@good.example")).startswith(
            "250"
        )


@item(17, 18)
async def test_no_report_for_a_report(tmp_path: Path) -> None:
    """The null sender gets no report, with one recipient or several."""
    async with attacked(tmp_path) as victim:
        await victim.stage.receiver("no.example", Rule(Step.RCPT, reply="550 5.1.1 no"))
        async with await victim.client() as client:
            for recipients in (["a@no.example"], ["b@no.example", "c@no.example"]):
                assert (await client.message(OK, *recipients, sender="")).startswith("250")
        await victim.settled()
        assert victim.got() == []


@item(22)
async def test_disconnecting_at_every_step(tmp_path: Path) -> None:
    """Closed, half-closed or reset after any byte: a message is accepted only after its final dot."""
    words = b"EHLO c\r\nMAIL FROM:<a@x.example>\r\nRCPT TO:<x@good.example>\r\nDATA\r\n" + OK
    async with attacked(tmp_path) as victim:
        rng = random.Random(22)
        for at in sorted(rng.sample(range(len(words)), 40)):
            client = await RawClient.connect(victim.port)
            await client.send(words[:at])
            rng.choice([client.reset, client.close, client.half_close])()
            client.close()
        await until(lambda: victim.sessions == 0, "the sessions to end")
        await victim.settled()
        assert victim.got() == []


@item(34)
async def test_replays(tmp_path: Path) -> None:
    """The same Message-ID twice is two messages: only a submission key marks a repetition."""
    async with attacked(tmp_path) as victim, await victim.client() as client:
        for _ in range(2):
            assert (await client.message(b"Message-ID: <same@x>\r\n" + OK, "x@good.example")).startswith(
                "250"
            )
        await victim.settled()
        assert len(victim.got()) == 2


@item(1, 2, 3, 4, 15)
@settings(max_examples=25, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=200), max_size=8))
def test_random_bytes(pieces: list[bytes]) -> None:
    """Random bytes, as commands and as data: replies or a closed connection, and the relay is unharmed."""

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
