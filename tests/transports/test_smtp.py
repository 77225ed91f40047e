"""Opening sessions and transactions, against servers that read their lines from a script."""

import asyncio
import errno
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.kit.deadlines import scaled, until
from tests.kit.listener import certificate
from tests.kit.smtp_peer import EHLO, FAST, no_wait, open_to, peer, transact, transaction
from zonemta_py.config.values import Seconds
from zonemta_py.config.zones import Timeouts
from zonemta_py.core.errors import DestinationFailed, SessionLost
from zonemta_py.smtp.reply import Reply
from zonemta_py.smtp.verdict import Phase
from zonemta_py.transports.connect import LoopsBack, SessionOptions, Target, TlsFailed, open_session
from zonemta_py.transports.session import Transaction

DATA = ["*MAIL FROM:<a@b.example> SIZE=100", "*RCPT TO:<c@d.example>", "*DATA"]


async def test_one_transaction() -> None:
    async with peer(
        "220 hi\r\n", *EHLO, *DATA, "250 ok\r\n250 ok\r\n354 go\r\n", ".", "250 2.0.0 taken\r\n", "*QUIT"
    ) as (port, _):
        session, result = await transact(port, transaction())
        assert result.answers == [(Phase.DOT, Reply(250, "2.0.0", "taken"))]
        assert session.usable
        session.close()


async def test_each_recipient_has_its_own_verdict() -> None:
    three = ["*MAIL", "*RCPT", "*RCPT", "*RCPT", "*DATA"]
    async with peer(
        "220 hi\r\n",
        *EHLO,
        *three,
        "250 ok\r\n250 ok\r\n550 5.1.1 no\r\n451 4.7.1 later\r\n354 go\r\n",
        ".",
        "250 ok\r\n",
    ) as (port, _):
        session, result = await transact(port, transaction("a@d.example", "b@d.example", "c@d.example"))
        assert [answer and answer[1].code for answer in result.answers] == [250, 550, 451]
        session.abort()


async def test_the_peers_limit_is_not_a_verdict() -> None:
    """452 after accepted recipients: they go in the next transaction, and the session remembers."""
    async with peer(
        "220 hi\r\n",
        *EHLO,
        "*MAIL",
        "*RCPT",
        "*RCPT",
        "*DATA",
        "250 ok\r\n250 ok\r\n452 4.5.3 enough\r\n354 go\r\n",
        ".",
        "250 ok\r\n",
    ) as (port, _):
        session, result = await transact(port, transaction("a@d.example", "b@d.example"))
        assert result.answers[1] is None
        assert session.recipients_max == 1
        session.abort()


async def test_refusals() -> None:
    """MAIL refused, all recipients refused, DATA refused; the session is reset and goes on."""
    script = [
        *DATA, "550 5.7.1 not you\r\n503 no\r\n503 no\r\n",
        "*RSET", *DATA, "250 ok\r\n250 ok\r\n550 5.1.1 no\r\n503 no\r\n",
        "*RSET", *DATA, "250 ok\r\n250 ok\r\n250 ok\r\n451 4.3.0 not now\r\n",
        "*RSET", *DATA, "250 ok\r\n250 ok\r\n250 ok\r\n354 go\r\n", ".", "554 5.7.1 spam\r\n",
        *DATA, "250 ok\r\n250 ok\r\n354 go\r\n", ".", "250 ok\r\n",
    ]  # fmt: skip
    async with peer("220 hi\r\n", *EHLO, *script) as (port, _):
        session = await open_to(port)
        got = []
        for _i in range(5):
            answer = (await session.transact(transaction(), no_wait())).answers[0]
            assert answer
            got.append((answer[0], answer[1].code))
        assert got == [
            (Phase.MAIL, 550),
            (Phase.RCPT, 550),
            (Phase.DATA, 451),
            (Phase.DOT, 554),
            (Phase.DOT, 250),
        ]
        session.abort()


async def test_354_without_recipients() -> None:
    """RFC 2920: an empty message ends it, and the session is not used again."""
    async with peer(
        "220 hi\r\n", *EHLO, *DATA, "250 ok\r\n550 5.1.1 no\r\n354 go\r\n", "*.", "250 ok?\r\n"
    ) as (port, _):
        session, result = await transact(port, transaction())
        assert result.answers == [(Phase.RCPT, Reply(550, "5.1.1", "no"))]
        assert not session.usable
        session.close()


async def test_without_pipelining() -> None:
    script = [
        "*EHLO",
        "250 mx\r\n",
        "*MAIL FROM:<a@b.example>\r\n",
        "250 ok\r\n",
        "*RCPT",
        "550 no\r\n",
        "*RCPT",
        "250 ok\r\n",
        "*DATA",
        "354 go\r\n",
        ".",
        "250 ok\r\n",
        "*MAIL",
        "451 later\r\n",
    ]
    async with peer("220 hi\r\n", *script) as (port, _):
        session = await open_to(port)
        result = await session.transact(transaction("a@d.example", "b@d.example"), no_wait())
        assert [answer and answer[1].code for answer in result.answers] == [550, 250]
        result = await session.transact(transaction("a@d.example", "b@d.example"), no_wait())
        assert [answer and answer[0] for answer in result.answers] == [Phase.MAIL, Phase.MAIL]
        session.abort()


async def test_helo_where_ehlo_is_not_known() -> None:
    async with peer(
        "220 hi\r\n",
        "*EHLO",
        "502 what\r\n",
        "*HELO",
        "250 mx\r\n",
        "*MAIL",
        "250 ok\r\n",
        "*RCPT",
        "250 ok\r\n",
        "*DATA",
        "354 go\r\n",
        ".",
        "250 ok\r\n",
    ) as (port, _):
        session, result = await transact(port, transaction())
        assert result.answers[0] and result.answers[0][1].code == 250
        session.abort()


async def test_an_early_refusal_is_read_while_the_body_is_written() -> None:
    """The peer says 552 in the middle: it is heard, and not lost (DESIGN trap 4)."""

    async def body() -> AsyncIterator[bytes]:
        for _ in range(2000):
            yield b"x" * 60_000 + b"\r\n"

    async with peer(
        "220 hi\r\n",
        *EHLO,
        "*MAIL",
        "*RCPT",
        "*DATA",
        "250 ok\r\n250 ok\r\n354 go\r\n",
        "*Subject",
        "552 5.3.4 too big\r\n",
    ) as (port, _):
        session = await open_to(port)
        mail = Transaction("a@b.example", ["c@d.example"], b"Subject: x\r\n", body(), 1, False, False)
        result = await session.transact(mail, no_wait())
        assert result.answers == [(Phase.DATA, Reply(552, "5.3.4", "too big"))]
        assert not session.usable
        session.close()


async def test_the_dot_waits_for_the_queue() -> None:
    """The final dot does not go out before ``before_dot`` is done."""
    seen: list[str] = []

    may_go = asyncio.Event()

    async def before() -> None:
        await may_go.wait()  # by now the peer could have had the dot
        seen.append("durable")

    def invited(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asyncio.get_running_loop().call_later(0.01, may_go.set)

    def at_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append("dot")

    async with peer(
        "220 hi\r\n", *EHLO, *DATA, "250 ok\r\n250 ok\r\n354 go\r\n", invited, ".", at_end, "250 ok\r\n"
    ) as (port, _):
        session = await open_to(port)
        await session.transact(transaction(), before())
        assert seen == ["durable", "dot"]
        session.abort()


async def test_a_lost_answer_is_uncertain() -> None:
    """The dot went out and the connection broke: it may have been taken."""
    async with peer("220 hi\r\n", *EHLO, *DATA, "250 ok\r\n250 ok\r\n354 go\r\n", ".", "!") as (port, _):
        _, result = await transact(port, transaction())
        assert result.uncertain
        answer = result.answers[0]
        assert answer and answer[0] is Phase.DOT and answer[1].code == 0


@pytest.mark.parametrize(
    ("said", "codes"),
    [
        ("550 5.7.1 not you\r\n", [550, 550]),
        ("421 4.7.0 slow down\r\n", [421, 421]),
        ("250 ok\r\n550 5.1.1 no\r\n", [550, 0]),
        ("250 ok\r\n250 ok\r\n421 4.3.2 closing\r\n", [421, 421]),
    ],
)
async def test_what_was_said_before_leaving_counts(said: str, codes: list[int]) -> None:
    async with peer("220 hi\r\n", *EHLO, "*MAIL", "*RCPT", "*RCPT", "*DATA", said, "!") as (port, _):
        session, result = await transact(port, transaction("a@d.example", "b@d.example"))
        assert [answer and answer[1].code for answer in result.answers] == codes
        assert not session.usable


async def test_a_peer_that_leaves_without_a_reply() -> None:
    async with peer("220 hi\r\n", *EHLO, "*MAIL", "!") as (port, _):
        with pytest.raises(SessionLost):
            await transact(port, transaction())


async def test_a_silent_peer_times_out() -> None:
    slow = Timeouts(*(Seconds(scaled(0.3)),) * 5)
    async with peer("220 hi\r\n", *EHLO, "*MAIL") as (port, _):
        session = await open_to(port, timeouts=slow)
        with pytest.raises(SessionLost, match="timed out"):
            await session.transact(transaction(), no_wait())
    async with peer() as (port, _):
        with pytest.raises(DestinationFailed):
            await open_to(port, timeouts=slow)


async def test_unasked_replies_end_the_session() -> None:
    """A peer cannot fill our memory, nor answer the next command before it is asked."""
    async with peer(
        "220 hi\r\n",
        *EHLO,
        *DATA,
        "250 ok\r\n250 ok\r\n354 go\r\n",
        ".",
        "250 ok\r\n250 more\r\n" + "250 flood\r\n" * 5000,
    ) as (port, _):
        session, result = await transact(port, transaction())
        assert result.answers[0] and result.answers[0][1].code == 250
        await until(lambda: not session.usable, "the session to be given up")


async def test_a_chunk_iterator_that_fails_leaves_no_finished_message() -> None:
    """A damaged body: the connection is cut before the final dot."""
    ended: list[bytes] = []

    async def body() -> AsyncIterator[bytes]:
        yield b"x" * 200_000
        yield b"y" * 200_000
        raise RuntimeError("damaged")

    def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def read() -> None:
            try:
                ended.append(await reader.read())
            except ConnectionError:
                ended.append(b"")

        asyncio.get_running_loop().create_task(read())

    async with peer("220 hi\r\n", *EHLO, *DATA, "250 ok\r\n250 ok\r\n354 go\r\n", watch, "!") as (
        port,
        _,
    ):
        session = await open_to(port)
        mail = Transaction("a@b.example", ["c@d.example"], b"Subject: x\r\n", body(), 100, False, False)
        with pytest.raises(RuntimeError, match="damaged"):
            await session.transact(mail, no_wait())
        assert not session.usable
    assert all(not data.endswith(b"\r\n.\r\n") for data in ended)


@pytest.mark.parametrize(
    ("script", "text"),
    [
        (["554 5.7.1 go away f\udcfcr\r\n".replace("\udcfc", "ü")], "554 5.7.1 go away"),
        (["220 hi\r\n", "*EHLO", "421 4.3.2 full\r\n"], "421"),
        (["!"], "closing|closed|lost|Unexpected EOF|Connection"),
        (["garbage\r\n"], "alformed|garbage"),
    ],
)
async def test_no_session(script: list[str], text: str) -> None:
    async with peer(*script) as (port, _):
        with pytest.raises(DestinationFailed, match=text) as caught:
            await open_to(port)
        assert caught.value.status[0] in "45"


async def test_a_closed_port() -> None:
    async with peer() as (port, _):
        pass
    with pytest.raises(DestinationFailed, match="refused"):
        await open_to(port)
    with pytest.raises(DestinationFailed, match="not on this machine"):
        await open_to(port, source="192.0.2.1")


async def test_no_descriptor_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a failure of this destination for now, as every other one to connect."""

    def full(*arguments: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr("zonemta_py.transports.connect.socket.socket", full)
        with pytest.raises(DestinationFailed, match="Too many open files") as caught:
            await open_to(25)
    assert (caught.value.status, caught.value.permanent) == ("4.4.1", False)


async def test_starttls(directory: Path) -> None:
    """Opportunistic takes any certificate, required verifies, broken TLS is said to be TLS."""
    cert, key, trusting = certificate(directory)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(cert, key)
    offer = [
        "220 hi\r\n",
        "*EHLO",
        "250-mx\r\n250 STARTTLS\r\n",
        "*STARTTLS",
        "220 go\r\n",
        "STARTTLS",
        *EHLO,
    ]
    async with peer(*offer, context=server) as (port, _):
        session = await open_to(port)
        assert session.secure
        assert session.offers("pipelining")
        session.abort()
        with pytest.raises(TlsFailed):
            await open_to(port, tls="required")
        options = SessionOptions("me.example", None, "required", FAST)
        session = await open_session(Target("localhost", "127.0.0.1", port), options, context=trusting)
        assert session.secure
        session.abort()
    async with peer("220 hi\r\n", *EHLO) as (port, _):
        with pytest.raises(DestinationFailed, match="offers no TLS"):
            await open_to(port, tls="required")
        with pytest.raises(DestinationFailed, match="password is not sent"):
            await open_to(port, credentials=("me", "secret"))
    async with peer(
        "220 hi\r\n", "*EHLO", "250-mx\r\n250 STARTTLS\r\n", "*STARTTLS", "454 not now\r\n"
    ) as (port, _):
        with pytest.raises(TlsFailed):
            await open_to(port)


@pytest.mark.parametrize("tls", ["opportunistic", "required"])
async def test_a_session_that_breaks_behind_starttls(directory: Path, tls: str) -> None:
    """At the first encrypted command: TLS is what failed, so an opportunistic caller goes on without."""
    cert, key, trusting = certificate(directory)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(cert, key)
    offer = ["220 hi\r\n", "*EHLO", "250-mx\r\n250 STARTTLS\r\n", "*STARTTLS", "220 go\r\n", "STARTTLS"]
    async with peer(*offer, "*EHLO", "!", context=server) as (port, _):
        options = SessionOptions("me.example", None, tls, FAST)
        with pytest.raises(TlsFailed, match="STARTTLS failed"):
            await open_session(Target("localhost", "127.0.0.1", port), options, context=trusting)


async def test_tls_from_the_first_byte(directory: Path) -> None:
    """The certificate is verified, by a file of authorities too."""
    cert, key, _ = certificate(directory)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(cert, key)
    async with peer("220 hi\r\n", *EHLO, context=server, implicit=True) as (port, _):

        async def secure(ca_file: Path | None) -> bool:
            options = SessionOptions("me.example", None, "implicit", FAST, ca_file=ca_file)
            session = await open_session(Target("localhost", "127.0.0.1", port), options)
            session.abort()
            return session.secure

        assert await secure(directory / "ca.pem")
        with pytest.raises(DestinationFailed, match=r"TLS failed: .*certificate verify failed"):
            await secure(None)
        with pytest.raises(DestinationFailed, match=r"none\.pem: .*No such file"):
            await secure(directory / "none.pem")


@pytest.mark.parametrize("reply", ["250-me.example hello\r\n250 SIZE 1000\r\n", "250 ME.example\r\n"])
async def test_a_peer_with_our_name(reply: str) -> None:
    """It is this relay, unless the configuration or a command names it."""
    async with peer("220 hi\r\n", "*EHLO", reply) as (port, _):
        with pytest.raises(LoopsBack, match="this relay: mail loops back"):
            await open_to(port, detects_loop=True)
        session = await open_to(port)
        session.abort()


async def test_auth() -> None:
    offer = ["220 hi\r\n", "*EHLO", "250-mx\r\n250 AUTH PLAIN\r\n", "*AUTH PLAIN AG1lAHNlY3JldA=="]
    async with peer(*offer, "235 ok\r\n") as (port, _):
        session = await open_to(port, tls="off", credentials=("me", "secret"))
        session.abort()
    async with peer(*offer, "535 5.7.8 no\r\n") as (port, _):
        with pytest.raises(DestinationFailed, match=r"535 5\.7\.8"):
            await open_to(port, tls="off", credentials=("me", "secret"))


@pytest.mark.parametrize(
    ("said", "broken"),
    [
        ("250 ok\r\n", True),
        ("451 4.7.1 go away\r\n", False),
        ("250 ok\r\n550 5.1.1 no\r\n", False),
        ("421 4.7.0 bye\r\n", False),
    ],
)
async def test_a_peer_that_closes_behind_pipelined_commands(said: str, broken: bool) -> None:
    """One that has accepted what it answered may not know pipelining; one that has refused something is not tried again at once."""
    async with peer("220 hi\r\n", *EHLO, *DATA, said) as (port, _):
        session = await open_to(port)
        with suppress(SessionLost):
            await session.transact(transaction(), no_wait())
        assert session.broke_pipelining == broken


async def test_what_follows_the_last_reply_at_once_does_not_undo_it() -> None:
    """An empty line behind the 250: the message is delivered, and the session is not used again."""
    async with peer(
        "220 hi\r\n", *EHLO, *DATA, "250 ok\r\n250 ok\r\n354 go\r\n", ".", "250 2.0.0 taken\r\n\r\n"
    ) as (port, _):
        session, result = await transact(port, transaction())
        assert result.answers == [(Phase.DOT, Reply(250, "2.0.0", "taken"))]
        assert not session.usable
