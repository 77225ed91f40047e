"""A zone with ``tls: mta-sts``: what its mail does with hosts that a domain's policy names, and with others."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kit.attacks import receiver
from tests.kit.deadlines import until
from tests.kit.policy_server import PolicyServer, policies_served, policy
from tests.kit.relay import ONE_PROCESS, Stage, logged_events, relaying, send, staged
from zonemta_py.queue.format.keys import DEFERRED, end_of
from zonemta_py.relay.relay import Relay

EHLO = b"250-mx\r\n250 STARTTLS\r\n"


class MailHost:
    """Takes messages; ``context`` None: it offers no TLS."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self.context = context
        self.got: list[tuple[bytes, bool]] = []  # the recipient, and whether the session was encrypted

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        encrypted, recipient = False, b""
        writer.write(b"220 mx\r\n")
        while line := await reader.readline():
            verb = line[:4].upper()
            if verb == b"EHLO":
                writer.write(EHLO if self.context is not None and not encrypted else b"250 mx\r\n")
            elif verb == b"STAR" and self.context is not None:
                writer.write(b"220 go\r\n")
                await writer.start_tls(self.context)
                encrypted = True
            elif verb == b"DATA":
                writer.write(b"354 go\r\n")
                await reader.readuntil(b"\r\n.\r\n")
                self.got.append((recipient, encrypted))
                writer.write(b"250 ok\r\n")
            else:
                recipient = line.strip() if verb == b"RCPT" else recipient
                writer.write(b"250 ok\r\n")


@asynccontextmanager
async def mail_host(
    stage: Stage, domain: str, context: ssl.SSLContext | None
) -> AsyncIterator[MailHost]:
    """A host ``mx.DOMAIN`` for ``domain``."""
    made = MailHost(context)
    async with receiver(stage, f"mx.{domain}", made.serve):
        stage.names.records |= {domain: {"MX": [f"10 mx.{domain}."]}}
        yield made


def of_zone(web: PolicyServer) -> dict[str, Any]:
    zone = {"tls": "mta-sts", "tls_ca_file": str(web.ca_file), "retry": {"delays": ["1h"]}}
    return {"zones": {"default": zone}, "processes": ONE_PROCESS}


async def outcome(
    relay: Relay, directory: Path, recipient: str, done: Callable[[], object]
) -> dict[str, Any]:
    """Send one message, wait until ``done``, stop the relay; the event of the recipient."""
    await send(relay, [recipient])
    await until(done, "an outcome")
    await relay.stop(1)
    found = [e for name in ("delivered", "deferred") for e in logged_events(directory, name)]
    return next(event for event in found if event["recipient"] == recipient)


def deferred(relay: Relay) -> Callable[[], object]:
    return lambda: any(relay.queue.store.keys(DEFERRED, end_of(DEFERRED)))


async def test_a_policy_that_is_met(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hosts have certificates: mail leaves encrypted, and to no other host."""
    async with (
        staged(directory) as stage,
        policies_served(directory, monkeypatch, "mta-sts.a.example") as web,
        mail_host(stage, "a.example", web.context("mx.a.example")) as host,
        mail_host(stage, "evil.example", web.context("mx.evil.example")) as evil,
    ):
        stage.names.records |= {"a.example": {"MX": ["5 mx.evil.example.", "10 mx.a.example."]}}
        web.publish(stage.names, "a.example", policy("enforce", "mx.a.example"))
        async with relaying(stage.config(**of_zone(web))) as relay:
            event = await outcome(relay, directory, "x@a.example", lambda: host.got)
        assert host.got == [(b"RCPT TO:<x@a.example>", True)]
        assert evil.got == []
        assert (event["event"], event["mx"], event["tls"]) == ("delivered", "mx.a.example", True)


@pytest.mark.parametrize(
    ("offered", "hosts", "problem"),
    [
        ("none", "mx.a.example", "offers no TLS, which is required"),
        ("another", "mx.a.example", "certificate verify failed"),
        ("right", "mx.b.example", "does not permit its MX hosts: mx.a.example"),
    ],
)
async def test_a_policy_that_is_not_met(
    directory: Path, monkeypatch: pytest.MonkeyPatch, offered: str, hosts: str, problem: str
) -> None:
    """Mail waits, and ``why`` says for what."""
    async with (
        staged(directory) as stage,
        policies_served(directory, monkeypatch, "mta-sts.a.example") as web,
    ):
        contexts = {
            "none": None,
            "another": web.context("mx.other.example"),
            "right": web.context("mx.a.example"),
        }
        async with mail_host(stage, "a.example", contexts[offered]) as host:
            web.publish(stage.names, "a.example", policy("enforce", hosts))
            async with relaying(stage.config(**of_zone(web))) as relay:
                event = await outcome(relay, directory, "x@a.example", deferred(relay))
            assert host.got == []
            assert event["event"] == "deferred"
            assert problem in event["reply"]
            assert event["class"] == "bad_connection"


@pytest.mark.parametrize("mode", [None, "testing", "none"])
async def test_a_domain_that_asks_for_nothing(
    directory: Path, monkeypatch: pytest.MonkeyPatch, mode: str | None
) -> None:
    """Mail leaves as with ``opportunistic``: encrypted by any certificate, or not at all."""
    async with (
        staged(directory) as stage,
        policies_served(directory, monkeypatch, "mta-sts.a.example", "mta-sts.b.example") as web,
        mail_host(stage, "a.example", web.context("mx.other.example")) as encrypting,
        mail_host(stage, "b.example", None) as plain,
    ):
        for domain in ("a.example", "b.example"):
            if mode is not None:
                web.publish(stage.names, domain, policy(mode, "mx.nowhere.example"))
        async with relaying(stage.config(**of_zone(web))) as relay:
            await send(relay, ["x@a.example"])
            await send(relay, ["x@b.example"])
            await until(lambda: encrypting.got and plain.got, "both messages")
        assert encrypting.got == [(b"RCPT TO:<x@a.example>", True)]
        assert plain.got == [(b"RCPT TO:<x@b.example>", False)]
