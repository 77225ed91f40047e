"""``zonemta trace`` of a running relay: both sides, in one process and over all of them."""

import asyncio
import smtplib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kit.deadlines import scaled, until
from tests.kit.listener import users_file
from tests.kit.relay import empty, relaying, send, staged
from zonemta_py.admin.control_client import ask
from zonemta_py.admin.requests import TraceRequest
from zonemta_py.core.errors import LocalError
from zonemta_py.relay.relay import Relay
from zonemta_py.sink.script import Rule, Step
from zonemta_py.transports.tracing import TRACER, WATCHERS_MAX

Rows = list[dict[str, Any]]


@asynccontextmanager
async def tracing(relay: Relay, target: str) -> AsyncIterator[Rows]:
    """What a client of the relay's socket reads."""
    rows: Rows = []
    loop = asyncio.get_running_loop()

    def read() -> None:
        try:
            for row in ask(relay.config.queue.directory, TraceRequest(target)):
                loop.call_soon_threadsafe(rows.append, row)
        except (LocalError, ConnectionError):
            pass  # the relay has stopped

    reading = asyncio.create_task(asyncio.to_thread(read))
    await until(lambda: target in TRACER.targets, "the trace")
    yield rows
    await relay.stop()
    await asyncio.wait_for(reading, scaled(20))
    assert TRACER.targets == frozenset()
    assert not TRACER.is_active


def said(rows: Rows, side: str) -> list[str]:
    return [f"{row['speaker']}: {row['text']}" for row in rows if row["side"] == side]


@pytest.mark.parametrize("processes", [(0, 0), (1, 1)])
async def test_both_sides_of_a_domain(directory: Path, processes: tuple[int, int]) -> None:
    """From the first line of each session on, in the order of the wire; the body is a number of bytes."""
    counts = {"receivers": processes[0], "senders": processes[1]}
    async with staged(directory) as stage:
        await stage.receiver(
            "a.example", Rule(Step.RCPT, recipient="no*", reply="550 5.1.1 no such user")
        )
        await stage.receiver("other.example")
        async with (
            relaying(stage.config(processes=counts)) as relay,
            tracing(relay, "a.example") as rows,
        ):
            await send(relay, ["x@other.example"])
            await send(relay, ["x@a.example", "no@a.example"], b"Subject: private\r\n\r\nsecret\r\n")
            await until(
                lambda: any("QUIT" in row["text"] for row in rows) or len(said(rows, "out")) > 8, "it"
            )
            await empty(relay)
            out = said(rows, "out")
            assert out[0].startswith("S: 220 ")
            assert "C: EHLO relay.example" in out
            assert any(each.startswith("C: MAIL FROM:<s@sender.example>") for each in out)
            assert "C: RCPT TO:<no@a.example>" in out
            assert "S: 550 5.1.1 no such user" in out
            assert any("bytes of message]" in each for each in out)
            into = said(rows, "in")
            assert into[0].startswith("S: 220 relay.example")
            assert "C: RCPT TO:<x@a.example>" in into or any("x@a.example" in each for each in into)
            assert any("bytes of message]" in each for each in into)
            assert not any("secret" in row["text"] or "private" in row["text"] for row in rows)
            assert not any("other.example" in row["text"] for row in rows)
            labels = {row["session"] for row in rows}
            assert len(labels) == 2
            if all(processes):
                assert len({label.split("-")[0] for label in labels}) == 2  # two processes


async def test_a_message_on_a_session_that_is_open_already(directory: Path) -> None:
    async with staged(directory) as stage:
        await stage.receiver(
            "a.example", Rule(Step.RCPT, recipient="later*", times=1, reply="451 4.7.1 later")
        )
        zones = {"default": {"retry": {"delays": ["1h"]}}}
        async with relaying(stage.config(zones=zones)) as relay:
            message = str(
                await relay.enqueue("s@s.example", ["later@a.example"], b"Subject: x\r\n\r\nx\r\n")
            )
            await until(lambda: bool(relay.queue.traffic.failures), "the first attempt")
            async with tracing(relay, message) as rows:
                await send(relay, ["y@a.example"])
                await until(lambda: len(stage.sinks["a.example"].messages) == 1, "other mail")
                assert rows == []
                await relay.flush()
                await until(lambda: len(stage.sinks["a.example"].messages) == 2, "the message")
                await until(lambda: any("S: 250" in each for each in said(rows, "out")), "its trace")
                assert {row["message"] for row in rows} == {message}
                assert said(rows, "in") == []


@pytest.mark.parametrize("senders", [0, 1])
async def test_a_peer_that_greets_in_latin_1(directory: Path, senders: int) -> None:
    """Its mail goes out, traced or not."""
    async with staged(directory) as stage:
        await stage.receiver("a.example", Rule(Step.CONNECT, reply="220 mx caf\udce9 \x1b[2J"))
        config = stage.config(processes={"receivers": 0, "senders": senders})
        async with relaying(config) as relay, tracing(relay, "a.example") as rows:
            await send(relay, ["x@a.example"])
            await empty(relay)
            await until(lambda: any("caf\\xe9 \\x1b[2J" in row["text"] for row in rows), "the greeting")


async def test_a_login_is_kept_secret(directory: Path) -> None:
    """Neither way to log in shows what it is given, nor a failed one."""
    users = users_file(directory)
    async with staged(directory) as stage:
        await stage.receiver("a.example")
        listener = {
            "address": "127.0.0.1:0",
            "senders": "any",
            "auth": {"users_file": str(users), "require_tls": False},
        }
        async with (
            relaying(stage.config(listeners=[listener])) as relay,
            tracing(relay, "127.0.0.1") as rows,
        ):

            def log_in() -> None:
                address = relay.addresses[0]
                with smtplib.SMTP(address.host, address.port, timeout=scaled(20)) as client:
                    client.ehlo()
                    client.user, client.password = "news", "wrong"
                    with pytest.raises(smtplib.SMTPAuthenticationError):
                        client.auth("PLAIN", client.auth_plain)
                    client.password = "secret"
                    client.auth("LOGIN", client.auth_login, initial_response_ok=False)

            await asyncio.to_thread(log_in)
            await until(lambda: any("235" in each for each in said(rows, "in")), "the login")
            text = " ".join(row["text"] for row in rows)
            assert text.count("[secret]") == 3
            for secret in ("c2VjcmV0", "bmV3cw", "AG5ld3M", "wrong"):
                assert secret not in text


async def test_watchers_are_limited(directory: Path) -> None:
    async with staged(directory) as stage, relaying(stage.config()) as relay:
        directory = relay.config.queue.directory
        with pytest.raises(LocalError, match="no domain, queue id or IP address"):
            await asyncio.to_thread(list, ask(directory, TraceRequest("nothing")))
        tasks = [
            asyncio.create_task(asyncio.to_thread(list, ask(directory, TraceRequest(f"{n}.example"))))
            for n in range(WATCHERS_MAX)
        ]
        await until(lambda: len(TRACER.targets) == WATCHERS_MAX, "the traces")
        with pytest.raises(LocalError, match="traces are running already"):
            await asyncio.to_thread(list, ask(directory, TraceRequest("b.example")))
        await relay.stop()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not TRACER.is_active
