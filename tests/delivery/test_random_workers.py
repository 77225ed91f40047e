"""The workers of a zone under random work: mail of three submitters, limits, two pools, suspensions, failures and reloads.

Whatever has happened: when nothing is suspended any more and every request succeeds, all mail is sent, and nothing is left at
a wait list, in a turn queue or in the window.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from tests.delivery.agents import DEFERRED, DELIVERED, NO_SESSION, read
from tests.kit.deadlines import until
from tests.kit.queue import accept, everything, opened
from zonemta_py.config.load import parse_config
from zonemta_py.config.schema import Config
from zonemta_py.core import clock
from zonemta_py.core.codec import replace
from zonemta_py.delivery.egress import read_egress
from zonemta_py.delivery.report_composer import DeliveryContext
from zonemta_py.delivery.request import DeliveryRequest, DeliveryResult, RequestContext
from zonemta_py.delivery.zone_workers import ZoneWorkers
from zonemta_py.open_queue import configure_queue
from zonemta_py.queue.upkeep.move import flush
from zonemta_py.relay.relay import use_in_queue
from zonemta_py.routing import make_router
from zonemta_py.smtp.mx_order import MxAnswer

DOMAINS = ["a.big.example", "b.big.example", "c.big.example", "d.small.example", "e.free.example"]
POOLS = {"default": ["192.0.2.1", "192.0.2.3"], "other": ["192.0.2.2"]}
SUSPENDED = [
    "address:192.0.2.1", "address:192.0.2.2", "address:192.0.2.3", "provider:big", "domain:a.big.example", "domain:d.small.example",
]  # fmt: skip
SUBMITTERS = [("ann", "acme"), ("bob", ""), ("eve", "")]
REPLIES = [("4.7.1", "blocked using spamhaus"), ("4.7.1", "greylisted, try later"), ("4.2.0", "later")]


class RandomAgent:
    """Some requests find no session, some are deferred; none once ``is_well``."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.is_well = False

    async def deliver(self, request: DeliveryRequest, context: RequestContext) -> DeliveryResult:
        drawn = 1.0 if self.is_well else self._random.random()
        if drawn < 0.03:
            return DeliveryResult([NO_SESSION] * len(request.recipients), NO_SESSION)
        context.session_opened(self._random.randint(0, 1))
        await read(context)
        await context.started
        for _ in range(self._random.choice([0, 1, 20])):
            await asyncio.sleep(0)
        status, text = self._random.choice(REPLIES)
        found = replace(DEFERRED, status=status, text=text) if drawn < 0.4 else DELIVERED
        source = (request.order.source if request.order is not None else None) or ""
        return DeliveryResult([replace(found, source_ip=source)] * len(request.recipients))

    async def resolve(self, domain: str) -> MxAnswer:
        return MxAnswer((f"mx.{domain.split('.', 1)[1]}",), has_ipv4=True, has_ipv6=False)

    def close(self) -> None:
        """Nothing is open."""


def limits(random: Random, **values: list[Any]) -> dict[str, Any]:
    """Some of these limits, each with one of its values."""
    return {name: random.choice(each) for name, each in values.items() if random.random() < 0.5}


def configuration(random: Random, directory: Path) -> Config:
    """Some limits of providers and addresses, connections, and who uses which pool."""
    rates = [["100/s"], ["500/s"]]
    providers = {
        name: {
            "mx": [f"*.{name}.example"],
            "limits": limits(random, sessions=[1, 2, 5], sessions_per_address=[1, 2], rate=rates),
        }
        for name in ("big", "small")
    }
    (directory / "providers.yaml").write_text(yaml.safe_dump({"providers": providers}))
    zone = {
        "connections": random.choice([3, 6, 20]),
        "connections_per_domain": random.choice([1, 2, 5]),
        "retry": {"delays": ["30ms"] * 50, "jitter": "0%"},
    } | limits(random, fallback_pool=["other"])
    tenant = {"users": ["ann"], "domains": ["x.example"], "weight": random.choice([1, 2])}
    whole = {
        "providers": {"file": str(directory / "providers.yaml"), "shipped": False},
        "shaping": {"shipped": False, "controller": {"enabled": False}},
        "pools": {
            name: [
                {"address": each, "limits": limits(random, sessions=[1, 2, 4], rate=rates)}
                for each in random.sample(addresses, random.randint(1, len(addresses)))
            ]
            for name, addresses in POOLS.items()
        },
        "zones": {"default": zone},
        "tenants": {"acme": tenant | limits(random, pool=["other"])},
    }
    return parse_config(yaml.safe_dump(whole), directory / "z.yaml")


class RandomZone:
    """A zone, and what may happen to it."""

    def __init__(self, random: Random, directory: Path) -> None:
        self.random = random
        self.directory = directory
        self.agent = RandomAgent(random)
        self.suspended: set[str] = set()
        self.messages = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        config = configuration(self.random, self.directory)
        window = self.random.choice([16, 40, 160])
        async with opened(
            self.directory, clock.now_ms, store="memory", window=window, on_ready=self._on_ready
        ) as self.queue:
            configure_queue(self.queue, config, self.queue.classifier)
            self.context = DeliveryContext(self.queue, config, "relay.example", make_router(config))
            self.workers = ZoneWorkers("default", config.zones["default"], self.context, self._agent)
            yield
            await self.workers.close(1)
            self.context.egress.close()

    def _agent(self, name: str, zone: object) -> RandomAgent:
        return self.agent

    def _on_ready(self, zone: str, destination: str, low_volume: bool) -> None:
        if hasattr(self, "workers"):
            self.workers.ready(destination, low_volume=low_volume)

    async def mail(self) -> None:
        for _ in range(self.random.choice([1, 4, 12])):
            self.messages += 1
            user, tenant = self.random.choice(SUBMITTERS)
            domains = self.random.choices(DOMAINS, k=self.random.choice([1, 1, 3]))
            to = [f"r{self.messages}.{n}@{domain}" for n, domain in enumerate(domains)]
            await accept(self.queue, *to, user=user, tenant=tenant)

    async def suspend(self) -> None:
        name = self.random.choice(SUSPENDED)
        self.suspended.add(name)
        await self.queue.suspended.suspend(name, "test")
        self.context.egress.changed()

    async def resume(self) -> None:
        if self.suspended:
            await self.queue.suspended.resume(self.suspended.pop())
            self.context.egress.changed()

    async def reload(self) -> None:
        config = configuration(self.random, self.directory)
        configure_queue(self.queue, config, self.queue.classifier)
        use_in_queue(self.queue, config)
        self.context.config = config
        self.context.egress.configure(config, read_egress(config))
        self.workers.configure(config.zones["default"])

    async def wait(self) -> None:
        for _ in range(self.random.choice([1, 10, 100])):
            await asyncio.sleep(0)

    async def step(self, *, reloads: bool) -> None:
        acts = [
            self.mail,
            self.wait,
            self.suspend,
            self.resume,
            self.give_up_old,
            self.flush,
            self.reload,
        ]
        weights = [8, 4, 1.5, 1.5, 0.5, 0.5, 1.0 if reloads else 0.0]
        [act] = self.random.choices(acts, weights)
        await act()

    async def give_up_old(self) -> None:
        await self.workers.give_up_old()

    async def flush(self) -> None:
        await flush(self.queue)

    @property
    def left(self) -> list[object]:
        """What is not as it is after all mail was sent."""
        scheduler, window = self.workers.scheduler, self.queue.windows.zone("default")
        wait_lists = self.context.egress.wait_lists.all()
        turn_queues = [name for turn_queue in scheduler._turn_queues._waiting for name in turn_queue]
        return [
            *everything(self.queue.store)[:3],
            *wait_lists,
            *turn_queues,
            *range(scheduler.active + window.room.size),
        ]


@pytest.mark.parametrize("reloads", [False, True])
@pytest.mark.parametrize("seed", range(6))
async def test_all_mail_is_sent_in_the_end(directory: Path, seed: int, reloads: bool) -> None:
    random = Random(f"{seed} {reloads}")
    zone = RandomZone(random, directory)
    async with zone.running():
        for _ in range(random.randint(20, 40)):
            await zone.step(reloads=reloads)
        zone.agent.is_well = True
        while zone.suspended:
            await zone.resume()
        await until(lambda: not zone.left, f"nothing to be left: {zone.left}", 60)
        assert list(zone.queue.windows.zone("default").problems()) == []
