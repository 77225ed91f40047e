"""Relays in the states that an operator sees at the page: idle, a backlog behind a dead provider, an incident."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.kit.deadlines import until
from tests.kit.relay import Stage, empty, relaying
from zonemta_py.relay.relay import Relay
from zonemta_py.sink.script import Rule, Step

ADMIN = {"address": "127.0.0.1:0"}
ATTACK = "<script>document.title='attacked'</script>"
THROTTLED = (
    f"421 4.7.0 [TSS04] Messages from 192.0.2.1 temporarily deferred due to user complaints {ATTACK}"
)
BLOCKED = (
    "550 5.7.1 Unfortunately, messages from [192.0.2.1] weren't sent: it is on our block list (S3140)."
)
ZONES: dict[str, Any] = {
    name: {"retry": {"delays": ["5m", "15m"]}} for name in ("bulk", "newsletters", "transactional")
}
HTML_LETTER = b"Subject: news\r\nMessage-ID: <news-%d@sender.example>\r\n\r\nHello\r\n"


def url_of(relay: Relay) -> str:
    """A link to the page, with a login."""
    assert relay.admin is not None
    return str(relay.admin.new_login()["urls"][0])


@asynccontextmanager
async def page_relay(stage: Stage, **changes: Any) -> AsyncIterator[Relay]:
    zones = {name: {"port": stage.port, **zone} for name, zone in ZONES.items()}
    async with relaying(stage.config(**{"admin": ADMIN, "zones": zones, **changes})) as relay:
        yield relay


async def idle(stage: Stage) -> None:
    await stage.receiver("inbox.example")


async def send_idle(relay: Relay) -> None:
    await submit(relay, "inbox.example", 3, "transactional", 1)
    await empty(relay)


async def incident(stage: Stage) -> None:
    """One provider throttles, one blocks, one does not answer, one takes its mail."""
    await stage.receiver("inbox.example")
    await stage.receiver("throttles.example", Rule(Step.RCPT, reply=THROTTLED))
    await stage.receiver("blocks.example", Rule(Step.RCPT, reply=BLOCKED))
    await stage.receiver("sender.example")
    add_dead(stage)


def add_dead(stage: Stage) -> None:
    """A domain whose server refuses connections."""
    records = dict(stage.names.records)
    records["dead.example"] = {"MX": ["10 mx.dead.example."]}
    records["mx.dead.example"] = {"A": ["127.0.1.99"]}
    stage.names.records = records


async def send_incident(relay: Relay) -> None:
    """Until two destinations are suspended, and mail was bounced."""
    for number, zone in enumerate(ZONES):
        for domain in ("inbox", "throttles", "blocks", "dead"):
            await submit(relay, f"{domain}.example", 40, zone, number)
    traffic, windows = relay.queue.traffic, relay.queue.windows
    await until(lambda: len(traffic.failures) >= 3, "failures")
    await until(
        lambda: all(len(windows.zone(zone).suspended()) >= 2 for zone in ZONES), "the suspensions"
    )
    held = await submit(relay, "dead.example", 2, "bulk", 99)
    await relay.queue.operator.hold(held, None)
    await relay.queue.suspended.suspend("acme", "complaints <b>rise</b>")


async def submit(relay: Relay, domain: str, recipients: int, zone: str, number: int) -> str:
    addresses = [f"user{each}@{domain}" for each in range(recipients)]
    return await relay.enqueue("news@sender.example", addresses, HTML_LETTER % number, zone=zone)


async def send_backlog(relay: Relay, messages: int) -> None:
    """A backlog of ``messages`` times 100 recipients for the provider that does not answer."""
    for number in range(messages):
        await submit(relay, "dead.example", 100, ("bulk", "newsletters")[number % 2], number)
        if number % 20 == 0:
            await asyncio.sleep(0)
    await until(lambda: "dead.example" in relay.queue.windows.zone("bulk").suspended(), "the suspension")
