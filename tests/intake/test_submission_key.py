"""A client that repeats a submission gets the first message's id and no second message."""

import re
from pathlib import Path

import pytest

from tests.kit.deadlines import until
from tests.kit.listener import ListenerUnderTest, listening, settings_of
from tests.kit.queue import events
from tests.kit.relay import Stage
from tests.kit.smtp_client import RawClient
from zonemta_py.admin.control_client import ask
from zonemta_py.admin.requests import ListRequest
from zonemta_py.bench.process import CommandProcess, free_port
from zonemta_py.config.schema import SubmissionKey
from zonemta_py.config.values import Seconds
from zonemta_py.core import faults
from zonemta_py.queue.format.keys import WAITING, end_of, parse_recipient

pytestmark = pytest.mark.usefixtures("queue_client")

BODY = b"\r\nhello\r\n.\r\n"


def waiting(which: ListenerUnderTest) -> list[str]:
    return sorted(parse_recipient(k)[2] for k in which.queue.store.keys(WAITING, end_of(WAITING)))


async def client_of(which: ListenerUnderTest) -> RawClient:
    client = await RawClient.connect(which.address.port)
    await client.ehlo()
    return client


def repeats(which: ListenerUnderTest) -> list[tuple[object, object]]:
    """Message and number of recipients of each ``repeated`` event."""
    found = [e for e in events(which.queue.store) if e["event"] == "repeated"]
    return [(e["message"], e["recipients"]) for e in found]


@pytest.mark.parametrize(
    "header",
    [b"X-Submission-Key: run 7\r\n", b"X-Listmonk-Campaign: c\r\nX-Listmonk-Subscriber: s\r\n"],
)
async def test_a_repeat_by_header(tmp_path: Path, header: bytes) -> None:
    async with listening(tmp_path) as which, await client_of(which) as client:
        first = await client.message(header + BODY, "a@x.example", "b@x.example")
        message = first.rpartition(" ")[2]
        again = await client.message(header + BODY, "a@x.example", "b@x.example")
        duplicate = rf"250 2\.0\.0 Ok: queued as {message} duplicate, accepted \d+\.\d{{3}} s ago"
        assert re.fullmatch(duplicate, again)
        more = await client.message(header + BODY, "b@x.example", "c@x.example")
        assert re.fullmatch(rf"{duplicate}, 1 new recipients as \w+", more)
        third = await client.message(header + BODY, "c@x.example", "a@x.example")
        assert re.fullmatch(duplicate, third)
        assert waiting(which) == ["a@x.example", "b@x.example", "c@x.example"]
        other = await client.message(
            header.replace(b"run 7", b"run 8").replace(b": s", b": t") + BODY, "a@x.example"
        )
        assert "duplicate" not in other
        await until(lambda: len(repeats(which)) == 4, "the events")  # no reply waits for them
        later = more.rpartition(" ")[2]
        assert repeats(which) == [(message, 2), (message, 1), (later, 1), (message, 1)]


async def test_one_field_of_a_pair(tmp_path: Path) -> None:
    async with listening(tmp_path) as which, await client_of(which) as client:
        for _ in range(2):
            assert "duplicate" not in await client.message(
                b"X-Listmonk-Campaign: c\r\n" + BODY, "a@x.example"
            )


async def test_a_repeat_by_envid(tmp_path: Path) -> None:
    """The reply to the final dot says so: before, neither content nor recipients are known."""
    async with listening(tmp_path) as which, await client_of(which) as client:
        mail = "MAIL FROM:<s@s.example> ENVID=submission-key-42"
        for turn in range(2):
            assert await client.command(mail) == "250 2.1.0 Ok"
            await client.command("RCPT TO:<a@x.example>")
            assert (await client.command("DATA")).startswith("354")
            await client.send(b"Subject: x\r\n\r\n" + b"long\r\n" * 20_000 + b".\r\n")
            assert ("duplicate" in await client.reply()) == bool(turn)
        assert waiting(which) == ["a@x.example"]
        assert (await client.command("MAIL FROM:<s@s.example> ENVID=42")) == "250 2.1.0 Ok"


async def test_a_concurrent_repeat(tmp_path: Path) -> None:
    """450 while the first is under way; its end releases the key."""
    async with (
        listening(tmp_path) as which,
        await client_of(which) as one,
        await client_of(which) as two,
    ):
        mail = "MAIL FROM:<s@s.example> ENVID=submission-key-42"
        assert (await one.command(mail)).startswith("250")
        await one.command("RCPT TO:<a@x.example>")
        assert (await one.command("DATA")).startswith("354")
        assert (await two.command(mail)).startswith("450 4.3.0")
        one.reset()
        await until(lambda: not which.queue.submission_keys._under_way, "the key to be released")
        assert (await two.command(mail)) == "250 2.1.0 Ok"


async def test_the_window_ends(tmp_path: Path) -> None:
    async with listening(tmp_path) as which, await client_of(which) as client:
        settings_of(which, submission_key=SubmissionKey(window=Seconds(0)))
        for _ in range(2):
            assert "duplicate" not in await client.message(
                b"X-Submission-Key: k\r\n" + BODY, "a@x.example"
            )


async def test_a_refused_message_leaves_no_key(tmp_path: Path) -> None:
    async with listening(tmp_path) as which, await client_of(which) as client:
        key = b"X-Submission-Key: k\r\n"
        assert (await client.message(key + b"\r\nbare\nline\r\n.\r\n", "a@x.example")).startswith("554")
        assert "duplicate" not in await client.message(key + BODY, "a@x.example")


@pytest.mark.crash
async def test_a_retry_after_a_lost_250(tmp_path: Path) -> None:
    """The relay dies with the message on disk and its 250 unsent; the client's retry is not a second message."""
    stage = Stage(tmp_path)
    port = free_port()
    stage.config(listeners=[{"address": f"127.0.0.1:{port}"}], resolver={"nameservers": ["127.0.0.1:9"]})
    arguments = ["serve", "-c", str(tmp_path / "zonemta.yaml"), "--log-level", "warning"]
    data = b"X-Submission-Key: k\r\n" + BODY
    relay = CommandProcess(arguments, tmp_path / "log", environment={faults.VARIABLE: "reply.unsent:1"})
    try:
        relay.wait_ready()
        async with await RawClient.connect(port) as client:
            await client.ehlo()
            assert await client.message(data, "a@x.example") == ""
        relay.kill()
        relay = CommandProcess(arguments, tmp_path / "log")
        relay.wait_ready()
        async with await RawClient.connect(port) as client:
            await client.ehlo()
            assert "duplicate" in await client.message(data, "a@x.example")
        # its recipient may move from waiting to deferred during the read, and is then listed twice
        assert len({row["message"] for row in ask(tmp_path / "queue", ListRequest())}) == 1
    finally:
        relay.kill()
