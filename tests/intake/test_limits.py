"""Limits of what clients submit, as a client meets them: exact, whatever the way in."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from tests.kit.deadlines import until
from tests.kit.http import mail_server
from tests.kit.listener import HOSTNAME, listening, make_config
from tests.kit.queue import events, opened
from tests.kit.smtp_client import RawClient
from zonemta_py.config.tenants import limit_rules
from zonemta_py.core import clock
from zonemta_py.core.errors import NotAccepted
from zonemta_py.intake.http import PATH
from zonemta_py.intake.inject import Injector, enqueue
from zonemta_py.routing import make_router
from zonemta_py.smtp.reply import encode_address

BODY = b"From: n@acme.example\r\n\r\nhello\r\n.\r\n"
TENANT = (
    "tenants: {acme: {networks: [127.0.0.0/8], users: [app], domains: [acme.example], limits: {LIMITS}}}"
)
SENDER = "s@acme.example"


async def connected(port: int) -> RawClient:
    client = await RawClient.connect(port)
    await client.ehlo()
    return client


async def submitted(client: RawClient) -> str:
    """The reply to a message: at MAIL, if that is refused already."""
    reply = await client.command(f"MAIL FROM:<{SENDER}>")
    if reply.startswith("250"):
        await client.command("RCPT TO:<x@a.example>")
        await client.command("DATA")
        await client.send(BODY)
        reply = await client.reply()
    return reply


def limited(limits: str) -> str:
    return TENANT.replace("LIMITS", limits)


@pytest.mark.usefixtures("queue_client")
async def test_exact_for_clients_at_once(tmp_path: Path) -> None:
    """Twelve sessions send three messages each; twenty are accepted, and the others may try again."""
    async with listening(tmp_path, "", limited("messages: [20/h, 100/d]")) as which:
        replies: list[str] = []

        async def send() -> None:
            async with await connected(which.address.port) as client:
                replies.extend([await submitted(client) for _ in range(3)])

        await asyncio.gather(*(send() for _ in range(12)))
        refused = [reply for reply in replies if not reply.startswith("250")]
        assert len(replies) - len(refused) == 20
        assert all(
            r.startswith("450 4.7.1 Tenant acme has sent 20 messages in 1 h, again at ") for r in refused
        )
        assert sum(e["event"] == "accepted" for e in events(which.queue.store)) == 20
        async with await connected(which.address.port) as client:  # it is known at MAIL now
            assert (await client.command(f"MAIL FROM:<{SENDER}>")).startswith("450 4.7.1")


@pytest.mark.usefixtures("queue_client")
async def test_recipients_and_bytes(tmp_path: Path) -> None:
    """A message never has more recipients than a window; one that does not fit is refused as a whole."""
    limits = "recipients: [3/h], bytes: [1kB/h]"
    async with (
        listening(tmp_path, "", limited(limits)) as which,
        await connected(which.address.port) as client,
    ):
        assert (await client.command(f"MAIL FROM:<{SENDER}>")).startswith("250")
        for number in range(3):
            assert (await client.command(f"RCPT TO:<u{number}@a.example>")).startswith("250")
        assert (await client.command("RCPT TO:<u3@a.example>")).startswith("452 4.5.3")
        await client.command("RSET")
        two = await client.message(BODY, "a@a.example", "b@a.example", sender=SENDER)
        assert two.startswith("250")
        again = await client.message(BODY, "a@a.example", "b@a.example", sender=SENDER)
        assert again.startswith("450 4.7.1 Tenant acme has sent 3 recipients in 1 h")
        large = BODY.replace(b"hello", b"x" * 1000)
        reply = await client.message(large, "a@a.example", sender=SENDER)
        assert reply.startswith("550 5.7.1 Tenant acme may send 1000 bytes in 1 h")
        reply = await client.message(BODY.replace(b"hello", b"x" * 950), "a@a.example", sender=SENDER)
        assert reply.startswith("450 4.7.1 Tenant acme has sent 1000 bytes in 1 h")
        assert (await client.message(BODY, "c@a.example", sender=SENDER)).startswith("250")


@pytest.mark.usefixtures("queue_client")
async def test_sessions(tmp_path: Path) -> None:
    """A session counts once, with its first MAIL; one without mail does not."""
    async with listening(tmp_path, "", "limits: {address: {sessions: [2/h]}}") as which:
        port = which.address.port
        async with await connected(port):
            pass
        for _ in range(2):
            async with await connected(port) as client:
                for _ in range(3):
                    assert (await client.message(BODY)).startswith("250")
        async with await connected(port) as client:
            reply = await client.command("MAIL FROM:<s@sender.example>")
            assert reply.startswith("450 4.7.1 Address 127.0.0.1 has sent 2 sessions in 1 h, again at ")
            assert (await client.command("RCPT TO:<x@a.example>")).startswith("503")

        def rejections() -> list[dict[str, object]]:
            return [e for e in events(which.queue.store) if e["event"] == "rejected"]

        await until(lambda: len(rejections()) == 1, "the event")
        [rejected] = rejections()
        assert (rejected["command"], rejected["code"]) == ("MAIL", 450)


@pytest.mark.usefixtures("queue_client")
async def test_a_repeated_submission_is_not_counted(tmp_path: Path) -> None:
    rest = limited("messages: [2/h]")
    async with (
        listening(tmp_path, "", rest) as which,
        await connected(which.address.port) as client,
    ):
        keyed = b"X-Submission-Key: 7\r\n" + BODY
        for _ in range(3):
            assert (await client.message(keyed, sender=SENDER)).startswith("250")
        assert (await submitted(client)).startswith("250")
        assert (await submitted(client)).startswith("450")


async def test_http_and_programs(tmp_path: Path) -> None:
    """One window for all ways in. HTTP says 429, and when to come again."""
    config = make_config(tmp_path, "", limited("messages: [2/h]"))
    async with opened(tmp_path / "queue", clock.now_ms, store="memory") as queue:
        queue.limits.configure(limit_rules(config.tenants, config.limits))

        def injector() -> Injector:
            return Injector(queue, make_router(config), config, HOSTNAME)

        listener = mail_server(injector)
        await listener.start()
        headers = {
            "Content-Type": "message/rfc822", "Authorization": "Bearer secret",
            "X-Envelope-Sender": encode_address(SENDER),
            "X-Envelope-Recipient": encode_address("x@a.example"),
        }  # fmt: skip
        data = BODY.removesuffix(b".\r\n")
        await enqueue(injector(), SENDER, ["x@a.example"], data, user="app")
        async with aiohttp.ClientSession(f"http://127.0.0.1:{listener.ports[0]}") as client:
            async with client.post(PATH, headers=headers, data=data) as response:
                assert response.status == 204
            async with client.post(PATH, headers=headers, data=data) as response:
                assert response.status == 429
                assert 3500 < int(response.headers["Retry-After"]) <= 3660
                assert "450" in response.headers["X-Smtp-Reply"]
        with pytest.raises(NotAccepted, match=r"^450 4\.7\.1 Tenant acme has sent 2 messages in 1 h"):
            await enqueue(injector(), SENDER, ["x@a.example"], data, user="app")
        await enqueue(injector(), SENDER, ["x@a.example"], data)  # of no tenant
        await listener.close()
