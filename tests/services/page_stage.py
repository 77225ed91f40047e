"""Relays in the states that an operator sees at the page: idle, a backlog behind a dead provider, an incident."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import yaml

from tests.kit.deadlines import until
from tests.kit.relay import Stage, empty, relaying
from zonemta_py.admin.page.views import state_of
from zonemta_py.config.values import Rate
from zonemta_py.core import clock
from zonemta_py.delivery.egress_operator import path_rows
from zonemta_py.egress.limits import Permit
from zonemta_py.egress.rules import ProviderReply
from zonemta_py.queue.upkeep.operator import Operator
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


POOL = ["127.0.0.31", "127.0.0.32", "127.0.0.33"]


def shaping_changes(stage: Stage) -> dict[str, Any]:
    """Keys of a configuration with three addresses, of which one is new, and limits of providers."""
    limits = {
        "bigmail": {"sessions_per_address": 4, "rate": ["600/m", "20000/h"], "connect_rate": ["60/m"]},
        "fussy": {"sessions": 9, "sessions_per_address": 3, "rate": ["300/m"]},
    }
    rows = {name: {"mx": [f"*.{name}.example"], "limits": each} for name, each in limits.items()}
    rule = {
        "name": "blocked",
        "class": "blocked",
        "threshold": "3/10m",
        "action": "suspend",
        "for": "1h",
    }
    begins = (clock.utc(clock.now_ms()) - timedelta(days=2)).date()
    warmup = {"address": POOL[0], "begins": begins, "daily": [100, 250, 600, 1500, 4000]}
    for name, content in (
        ("providers", {"providers": rows}), ("shaping", {"rules": [rule]}),
        ("warmup", [warmup, {**warmup, "address": POOL[1], "provider": "bigmail"}]),
    ):  # fmt: skip
        (stage.directory / f"{name}.yaml").write_text(yaml.safe_dump(content))
    return {
        "pools": {"default": [{"address": each} for each in POOL]},
        "providers": {"file": "providers.yaml", "shipped": False},
        "shaping": {
            "file": "shaping.yaml", "shipped": False, "controller": {"attempts": 20},
        },
        "warmup": {"file": "warmup.yaml"},
    }  # fmt: skip


async def providers(stage: Stage) -> None:
    """Receivers with limits: one takes its mail, one takes less than it says, and blocks a source address."""
    await stage.provider("bigmail", ["big.example"])
    fussy = await stage.provider("fussy", ["fussy.example"], rate=["30/m"])
    fussy.block(POOL[2], BLOCKED)
    await stage.receiver("inbox.example")
    await stage.receiver("sender.example")


async def send_shaped(relay: Relay) -> None:
    """Until two paths to ``fussy`` are lowered, one of an address that is new, and the third is paused."""
    for number in range(150):
        await submit(relay, "big.example", 1, "bulk", number)
        for each in range(3):  # enough for each address, whatever the others send
            await submit(relay, "fussy.example", 1, "transactional", 3 * number + each)
    await until(lambda: states_of(relay, "fussy") == {"lowered", "paused"}, "no path at full pace")


ATTACKER = "<img src=x onerror=\"document.title='attacked'\">'{{ 7 * 7 }}"


def crowd(relay: Relay, providers: int, addresses: int) -> None:
    """Paths from ``addresses`` to ``providers``, all used and limited; one provider has a name that is no name."""
    egress = relay._delivery.egress
    for number in range(providers):
        name = f"mx{number}.provider-{number}.example" if number else ATTACKER
        for each in range(addresses):
            address = f"2001:db8::{each + 1:x}"
            egress.permits.path(name, address).limit(20, [Rate(100, 60.0), Rate(5000, 3600.0)], [])
            permit = egress.permits.take(name, address, egress.now_ms())
            assert isinstance(permit, Permit)
            egress.permits.begin(permit, egress.now_ms(), 1)
            reply_class = "blocked" if (number + each) % 50 == 0 else ""
            about = ProviderReply(name, address, "default", name, reply_class, 550, "5.7.1", "no")
            egress.shaper.replies([about], f"m{number}", egress.now_ms())


def states_of(relay: Relay, provider: str) -> set[str]:
    """Those of the paths to ``provider``."""
    return {state_of(row) for row in path_rows(relay._delivery.egress) if row["provider"] == provider}


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
        lambda: all(len(windows.zone(zone).unreachable()) >= 2 for zone in ZONES), "the suspensions"
    )
    held = await submit(relay, "dead.example", 2, "bulk", 99)
    await Operator(relay.queue).hold(held, None)
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
    await until(
        lambda: "dead.example" in relay.queue.windows.zone("bulk").unreachable(), "the suspension"
    )
