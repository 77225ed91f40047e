"""What a scanner says decides over a message before its 250; a scanner that is away does what was configured."""

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.deadlines import scaled, until
from tests.kit.listener import HOSTNAME, ListenerUnderTest, listening, make_config
from tests.kit.queue import events, opened
from tests.kit.scanner import ScriptedScanner, scripted_scanner
from tests.kit.smtp_client import RawClient
from zonemta_py.bench.process import free_port
from zonemta_py.config.schema import ScanSettings
from zonemta_py.core import clock
from zonemta_py.core.errors import ConfigError, NotAccepted
from zonemta_py.intake.inject import Injector, enqueue
from zonemta_py.intake.listener import rspamd_client
from zonemta_py.intake.scan import MessageScanner, ScanVerdict, read_verdict
from zonemta_py.queue.format import keys
from zonemta_py.queue.messages import read_message
from zonemta_py.queue.upkeep.move import flush
from zonemta_py.queue.upkeep.operator import Operator
from zonemta_py.routing import make_router

BODY = b"From: a@b.example\r\nSubject: x\r\n\r\nhello\r\n.\r\n"


@asynccontextmanager
async def scanning(
    directory: Path, more: str = "", rest: str = ""
) -> AsyncIterator[tuple[ScriptedScanner, ListenerUnderTest, RawClient]]:
    async with scripted_scanner() as scanner:
        intake = f"intake: {{scan: {{rspamd: '{scanner.url}', {more}}}}}\n{rest}"
        async with (
            listening(directory, "", intake) as which,
            await RawClient.connect(which.address.port) as client,
        ):
            await client.ehlo()
            yield scanner, which, client


def stored_header(which: ListenerUnderTest, reply: str) -> bytes:
    meta, _ = read_message(which.queue.store, reply.split()[-1])
    return meta.header


@pytest.mark.parametrize(
    ("answer", "reply"),
    [
        ({"action": "reject"}, "550 5.7.1 The message was rejected as spam"),
        ({"action": "reject", "messages": {"smtp_message": "Gtube\r\n250 ok"}}, "550 5.7.1 Gtube250 ok"),
        ({"action": "discard"}, "550 5.7.1 The message was rejected as spam"),
        ({"action": "soft reject", "messages": {"smtp_message": "Too much"}}, "451 4.7.1 Too much"),
        ({"action": "soft reject", "messages": []}, "451 4.7.1 Try again later"),
    ],
)
async def test_a_message_that_is_refused(
    tmp_path: Path, answer: Mapping[str, object], reply: str
) -> None:
    """Nothing of it is stored, and the session goes on."""
    async with scanning(tmp_path) as (scanner, which, client):
        scanner.answer = answer
        assert await client.message(BODY) == reply
        assert list(which.queue.store.keys(keys.MESSAGE, keys.end_of(keys.MESSAGE))) == []
        scanner.answer = {"action": "no action"}
        assert (await client.message(BODY)).startswith("250")
        await until(
            lambda: (
                [e["reply"] for e in events(which.queue.store) if e["event"] == "rejected"]
                == [reply[4:]]
            ),
            "the event",
        )


async def test_what_the_scanner_gets(tmp_path: Path) -> None:
    """The message as it came, without what the relay adds; the envelope in fields."""
    async with scanning(tmp_path) as (scanner, which, client):
        reply = await client.message(BODY, "x@a.example", "y@a.example", sender="s@sender.example")
        [(fields, data)] = scanner.requests
        assert data == BODY.removesuffix(b".\r\n")
        assert [v for n, v in fields if n == "Rcpt"] == ["x@a.example", "y@a.example"]
        found = dict(fields)
        assert (found["From"], found["IP"], found["Helo"]) == (
            "s@sender.example", "127.0.0.1", "client.example",
        )  # fmt: skip
        assert found["Queue-Id"] == reply.split()[-1]
        assert b"X-Spam" not in stored_header(which, reply)


async def test_a_suspicious_message_is_marked(tmp_path: Path) -> None:
    async with scanning(tmp_path) as (scanner, which, client):
        scanner.answer = {"action": "add header", "score": 7.25, "required_score": 15}
        header = stored_header(which, await client.message(BODY))
        assert b"\r\nX-Spam: Yes\r\nX-Spam-Score: 7.25 of 15.00\r\nFrom: a@b.example\r\n" in header


@pytest.mark.parametrize(
    ("action", "more"),
    [("add header", "suspicious: hold"), ("quarantine", ""), ("odd", "suspicious: hold")],
)
async def test_a_message_that_is_held(tmp_path: Path, action: str, more: str) -> None:
    """It is accepted and waits for an operator, who releases it."""
    async with scanning(tmp_path, more) as (scanner, which, client):
        scanner.answer = {"action": action, "score": 7, "required_score": 15}
        reply = await client.message(BODY, "x@a.example", "y@a.example")
        assert reply.startswith("250")
        queue, message = which.queue, reply.split()[-1]
        held = [e for e in events(queue.store) if e["event"] == "held"]
        assert [(e["recipient"], e["reason"]) for e in held] == [
            (address, f"rspamd: {action}, 7.00 of 15.00") for address in ("x@a.example", "y@a.example")
        ]
        assert queue.lease("default", "a.example", 10) is None
        assert await flush(queue) == 0
        assert await Operator(queue).release(message) == 2
        assert queue.lease("default", "a.example", 10) is not None


@pytest.mark.parametrize("answer", [500, 404, "no JSON", "[]", "{}", '{"action": 1}', "x" * (1 << 21)])
@pytest.mark.parametrize(
    ("unavailable", "reply"), [("accept", "250"), ("defer", "451 4.7.1 The message")]
)
async def test_an_answer_that_is_none(
    tmp_path: Path, answer: int | str, unavailable: str, reply: str
) -> None:
    async with scanning(tmp_path, f"unavailable: {unavailable}") as (scanner, _, client):
        scanner.answer = answer
        assert (await client.message(BODY)).startswith(reply)


@pytest.mark.parametrize(
    ("unavailable", "reply"), [("accept", "250"), ("defer", "451 4.7.1 The message")]
)
async def test_a_scanner_that_is_away_or_slow(
    tmp_path: Path, unavailable: str, reply: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One line in the log for all messages of a minute."""
    url = f"http://127.0.0.1:{free_port('127.0.0.1')}"
    rest = f"intake: {{scan: {{rspamd: '{url}', unavailable: {unavailable}}}}}"
    async with (
        listening(tmp_path, "", rest) as which,
        await RawClient.connect(which.address.port) as client,
    ):
        await client.ehlo()
        for _ in range(3):
            assert (await client.message(BODY)).startswith(reply)
    assert len([r for r in caplog.records if "is not scanned" in r.getMessage()]) == 1
    async with scanning(tmp_path, f"unavailable: {unavailable}, timeout: 100ms") as (scanner, _, client):
        scanner.may_answer.clear()
        assert (await client.message(BODY)).startswith(reply)
    assert "no answer within 0.1 s" in caplog.text


async def test_a_large_message_is_not_scanned(tmp_path: Path) -> None:
    """It is accepted, whatever the scanner would say, also when its first block is too large."""
    async with scanning(tmp_path, "max_size: 200KB, unavailable: defer") as (scanner, _, client):
        scanner.answer = {"action": "reject"}
        line = b"x" * 78 + b"\r\n"
        large = BODY.replace(b"hello\r\n", line * 4000)
        assert (await client.message(large)).startswith("250")
        assert (await client.message(BODY)).startswith("550")
    async with scanning(tmp_path / "other", "max_size: 10, unavailable: defer") as (scanner, _, client):
        assert (await client.message(BODY)).startswith("250")
        assert scanner.requests == []


async def test_the_data_are_passed_on_as_they_come(tmp_path: Path) -> None:
    """The scanner has the beginning before the client has sent the end; the body is whole in the queue."""
    async with scanning(tmp_path, "max_size: 10MiB") as (scanner, which, client):
        assert (await client.envelope()).startswith("354")
        lines = (b"y" * 70 + b"\r\n") * 20_000
        await client.send(b"Subject: x\r\n\r\n" + lines)
        await asyncio.wait_for(scanner.begun.wait(), scaled(10))
        assert scanner.requests == []
        await client.send(lines + b".\r\n")
        reply = await client.reply()
        assert reply.startswith("250")
        assert scanner.requests[0][1] == b"Subject: x\r\n\r\n" + lines * 2
        _, mark = read_message(which.queue.store, reply.split()[-1])
        assert mark.size == len(lines) * 2


@pytest.mark.parametrize(
    ("unavailable", "reply"), [("accept", "250"), ("defer", "451 4.7.1 The message")]
)
async def test_a_scanner_that_takes_no_data(tmp_path: Path, unavailable: str, reply: str) -> None:
    """It accepts the connection and reads nothing: the client does not wait for it."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        scan = f"rspamd: '{url}', unavailable: {unavailable}, timeout: 200ms, max_size: 50MiB"
        async with (
            listening(tmp_path, "", f"intake: {{scan: {{{scan}}}}}") as which,
            await RawClient.connect(which.address.port) as client,
        ):
            await client.ehlo()
            large = BODY.replace(b"hello\r\n", (b"y" * 70 + b"\r\n") * 150_000)
            assert (await client.message(large)).startswith(reply)


async def test_a_client_that_disconnects(tmp_path: Path) -> None:
    """While it sends: nothing is accepted, and no task remains."""
    async with scanning(tmp_path) as (_, which, client):
        await client.envelope()
        await client.send(b"Subject: x\r\n\r\nhello\r\n")
        await until(lambda: scans(), "a scan")
        client.reset()
        await until(lambda: not which.listener.context.sessions and not scans(), "the end of both")
        assert [e for e in events(which.queue.store) if e["event"] == "accepted"] == []


def scans() -> list[str]:
    """The scans that run."""
    names = [task.get_name() for task in asyncio.all_tasks()]
    return [name for name in names if name.startswith("scan-0")]


async def test_a_tenant_that_is_not_scanned(tmp_path: Path) -> None:
    tenants = (
        "tenants: {acme: {networks: [127.0.0.0/8], domains: [b.example, sender.example], scan: false}}"
    )
    async with scanning(tmp_path, rest=tenants) as (scanner, _, client):
        scanner.answer = {"action": "reject"}
        assert (await client.message(BODY)).startswith("250")
        assert scanner.requests == []


async def test_mail_of_a_program(tmp_path: Path) -> None:
    async with scripted_scanner() as scanner:
        config = make_config(tmp_path, "", f"intake: {{scan: {{rspamd: '{scanner.url}/'}}}}")
        scanner.answer = {"action": "reject"}
        made = MessageScanner(config, rspamd_client)
        async with opened(tmp_path / "queue", clock.now_ms, store="memory") as queue:
            injector = Injector(queue, make_router(config), config, HOSTNAME, scanner=made)
            with pytest.raises(NotAccepted, match="rejected as spam"):
                await enqueue(injector, "a@b.example", ["x@a.example"], b"Subject: x\r\n\r\nhello\r\n")
        await made.close()


def test_a_url_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"intake\.scan\.rspamd: found 'localhost:11333', expected http"
    ):
        make_config(tmp_path, "", "intake: {scan: {rspamd: 'localhost:11333'}}")


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["action", "score", "required_score", "messages", "smtp_message"]), inner, max_size=5
    ),
)  # fmt: skip


@given(JSON, st.sampled_from(["header", "hold"]))
def test_any_answer_is_a_verdict_or_an_error(answer: object, suspicious: str) -> None:
    """A reply is one line of ASCII, fields are whole lines."""
    try:
        verdict = read_verdict(answer, ScanSettings(suspicious=suspicious))
    except ValueError:
        return
    assert isinstance(verdict, ScanVerdict)
    assert verdict.refusal.isascii() and verdict.refusal.isprintable()
    assert verdict.fields in (b"", verdict.fields.rstrip() + b"\r\n")
