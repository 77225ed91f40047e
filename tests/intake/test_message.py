"""Messages: what is refused, and what is left when a client disconnects."""

import asyncio
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.intake.dialogue import BEGIN, connected
from tests.kit.deadlines import scaled, until
from tests.kit.listener import listening
from tests.kit.queue import everything, opened, problems
from tests.kit.smtp_client import RawClient
from zonemta_py.config.load import parse_config
from zonemta_py.config.schema import ListenerSettings
from zonemta_py.config.values import Size
from zonemta_py.core import clock
from zonemta_py.core.codec import replace
from zonemta_py.intake.message import MessageReceiver, _both
from zonemta_py.intake.stamping import MessageEnvelope, make_rules
from zonemta_py.intake.submission_key import SubmissionKeyClaim
from zonemta_py.queue.commit import CommitFuture
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import Origin
from zonemta_py.queue.queue import Queue
from zonemta_py.routing import make_router
from zonemta_py.smtp.commands import Rcpt

SLOW_S = 1.5  # of a commit, beside an idle_timeout of 500ms

each_queue_client = pytest.mark.usefixtures("queue_client")


@each_queue_client
@pytest.mark.parametrize("size", [100, 300_000])
@pytest.mark.parametrize("how", ["close", "reset", "half"])
async def test_disconnecting_in_data(tmp_path: Path, size: int, how: str) -> None:
    """Nothing is accepted, no chunk remains, and the next client is served."""
    async with listening(tmp_path) as relay:
        reader, writer = await connected(relay, *BEGIN)
        await reader.readuntil(b"354")
        writer.write(b"Subject: x\r\n\r\n" + (b"y" * 70 + b"\r\n") * (size // 72))
        await writer.drain()
        if how == "reset":
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if how == "half":
            writer.write_eof()
        else:
            writer.close()
        await until(lambda: not relay.listener.context.sessions, "the session to end")
        await until(lambda: everything(relay.queue.store) == [], "the chunks to go")
        _, again = await connected(relay)
        again.close()
        writer.close()


@each_queue_client
async def test_disconnecting_after_the_final_dot(tmp_path: Path) -> None:
    """Either the whole message is in the queue, or nothing of it."""
    async with listening(tmp_path) as relay:
        for _ in range(10):
            reader, writer = await connected(relay, *BEGIN)
            await reader.readuntil(b"354")
            writer.write(b"\r\n" + b"z\r\n" * 100_000 + b".\r\n")
            await writer.drain()
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
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


@each_queue_client
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
async def test_odd_messages(tmp_path: Path, data: bytes, reply: bytes) -> None:
    async with listening(tmp_path) as relay:
        reader, writer = await connected(relay, *BEGIN)
        await reader.readuntil(b"354 End data with <CR><LF>.<CR><LF>\r\n")
        writer.write(data + b".\r\n")
        assert (await asyncio.wait_for(reader.readline(), scaled(20))).startswith(reply)
        writer.write(b"QUIT\r\n")
        await reader.read()
        writer.close()
        await until(lambda: problems(relay.queue.store) == [], "a consistent queue")


@each_queue_client
async def test_a_message_without_end(tmp_path: Path) -> None:
    """Without a line end or a final dot: nothing is kept, and after twice the limit nothing is read."""
    async with listening(tmp_path, "    max_message_size: 100KiB") as relay:
        reader, writer = await connected(relay, *BEGIN)
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
        await until(lambda: everything(relay.queue.store) == [], "an empty queue")
        writer.close()


RULES = make_rules(
    parse_config("{}", Path("zonemta.yaml")), ListenerSettings(max_message_size=Size(1000)), "relay.example",
    make_router(parse_config("{}", Path("zonemta.yaml"))), [],
)  # fmt: skip
ENVELOPE = MessageEnvelope(
    "a@b.example",
    [Rcpt("c@d.example"), Rcpt("e@d.example")],
    Origin("127.0.0.1:2525", "192.0.2.1", "client.example", "", "ESMTP"),
    False,
)
KEY = b"X-Submission-Key: k\r\n"


def receiver(queue: Queue, recipients: Sequence[Rcpt] = ENVELOPE.recipients) -> MessageReceiver:
    claim = SubmissionKeyClaim(queue.submission_keys, ENVELOPE.origin, 60)
    return MessageReceiver(queue, RULES, replace(ENVELOPE, recipients=recipients), claim)


async def received(
    queue: Queue, data: bytes, recipients: Sequence[Rcpt] = ENVELOPE.recipients
) -> MessageReceiver:
    found = receiver(queue, recipients)
    found.feed(data)
    await found.finish()
    return found


async def test_results(tmp_path: Path) -> None:
    """A new message, a repetition, and one with a new recipient."""
    async with opened(tmp_path / "queue", clock.now_ms, store="memory") as queue:
        first = (await received(queue, KEY + b"\r\nx\r\n")).result
        assert first is not None
        assert tuple(first) == (first.id, "", 2, (first.id,))
        again = (await received(queue, KEY + b"\r\nx\r\n")).result
        assert again is not None
        assert tuple(again) == ("", first.id, 0, ())
        assert again.id == first.id
        third = Rcpt("f@d.example")
        more = (await received(queue, KEY + b"\r\nx\r\n", [*ENVELOPE.recipients, third])).result
        assert more is not None
        assert tuple(more) == (more.stored, first.id, 1, (more.stored,))
        assert more.stored not in ("", first.id)


@pytest.mark.parametrize(
    ("data", "refusal"),
    [
        (b"Subject: x\n\n", "554 5.6.0 Bare CR or LF"),
        (b"\r\nx\0\r\n", "554 5.6.0 NUL"),
        (b"\r\nx\r", "554 5.6.0 Bare CR or LF"),
        (b"\r\n" + b"x" * 999, "552 5.3.4 Message size exceeds the limit of 1000 bytes"),
        (b"Received: x\r\n" * 51, "554 5.4.6"),
    ],
)
async def test_refusals_leave_nothing(tmp_path: Path, data: bytes, refusal: str) -> None:
    async with opened(tmp_path / "queue", clock.now_ms, store="memory") as queue:
        found = await received(queue, KEY + data)
        assert found.refusal.startswith(refusal)
        assert found.result is None
        assert everything(queue.store) == []
        assert not queue.submission_keys._under_way


async def test_the_hard_limit(tmp_path: Path) -> None:
    """Twice the limit; until then a larger message is read to its end."""
    async with opened(tmp_path / "queue", clock.now_ms, store="memory") as queue:
        found = receiver(queue)
        found.feed(b"\r\n" + b"x" * 1998)
        assert found.refusal
        assert not found.over_hard_limit
        found.feed(b"x")
        assert found.over_hard_limit


async def test_an_abort(tmp_path: Path) -> None:
    """It discards a message at any time before the queue has it, and does nothing afterwards."""
    async with opened(tmp_path / "queue", clock.now_ms, store="memory") as queue:
        found = receiver(queue)
        found.feed(KEY + b"\r\nx\r\n")
        found.abort()
        found.abort()
        assert everything(queue.store) == []
        handed_over = receiver(queue)
        handed_over.feed(KEY + b"\r\nx\r\n")
        future = handed_over.finish()
        handed_over.abort()
        await future
        assert handed_over.result is not None
        assert queue.lease("default", "d.example", 1) is not None


@each_queue_client
async def test_a_commit_may_be_slower_than_the_client_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client would hear that it was too slow, and send again what is stored."""
    async with (
        listening(tmp_path, "    idle_timeout: 500ms") as relay,
        await RawClient.connect(relay.address.port) as client,
    ):
        await client.ehlo()
        assert (await client.envelope()).startswith("354")
        write = relay.queue.store.write

        def slow(writes: Any) -> None:
            time.sleep(SLOW_S)  # in the thread of the writer: a disk that stalls
            write(writes)

        monkeypatch.setattr(relay.queue.store, "write", slow)
        assert (await client.command("Subject: x\r\n\r\nx\r\n.")).startswith("250")


@each_queue_client
async def test_a_defect_refuses_the_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is met after the end of the data, in a callback, too: the client gets a reply, and may go on."""

    def defect(*_: object) -> None:
        raise RuntimeError("a defect")

    extra = "    submission_key: {headers: [[X-Key]]}"
    async with (
        listening(tmp_path, extra) as relay,
        await RawClient.connect(relay.address.port) as client,
    ):
        await client.ehlo()
        with monkeypatch.context() as patched:
            patched.setattr("zonemta_py.intake.message.stamp", defect)
            for key in (b"", b"X-Key: 1\r\n"):
                reply = await client.message(key + b"Subject: x\r\n\r\nx\r\n.\r\n")
                assert reply == "451 4.3.0 Internal error"
        assert (await client.message(b"X-Key: 1\r\n\r\nx\r\n.\r\n")).startswith("250")


def test_both_are_waited_for() -> None:
    """A write and the scanner: the client is read again when neither has too much."""
    for order in (0, 1):
        waited = [CommitFuture(), CommitFuture()]
        both = _both(*waited)
        waited[order].finish()
        assert not both.done
        waited[1 - order].finish()
        assert both.done
