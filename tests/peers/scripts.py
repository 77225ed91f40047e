"""Scripted mail hosts of a domain, each in a few lines of text.

A line is ``HOST STEP [KEY=VALUE …] REPLY``: the host (``one``, ``two``, in the order of their preference), the
step (connect, ehlo, mail, rcpt, data, dot), and which (``recipient``, ``sender``, ``after``, ``session``,
``times``, ``stall``), and the reply;
``drop`` closes the connection without one.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.kit.deadlines import until
from tests.kit.queue import everything
from tests.kit.relay import FAST_RETRY, Stage, relaying, send, staged
from zonemta_py.config.values import duration
from zonemta_py.queue.format.keys import DEFERRED, end_of, parse_recipient
from zonemta_py.relay.relay import Relay
from zonemta_py.sink.script import Rule, Step
from zonemta_py.sink.server import Sink, SinkSession

HOSTS = ("one", "two", "three")
DOMAIN = "peer.example"
SENDERS = pytest.mark.parametrize(
    "senders", [0, 1], ids=["in the queue's process", "in another process"]
)


def parse_script(script: str) -> dict[str, list[Rule]]:
    """The rules of each host."""
    rules: dict[str, list[Rule]] = {}
    for line in script.strip().splitlines():
        host, step, *words = line.split()
        values: dict[str, Any] = {}
        while words and "=" in words[0]:
            key, _, value = words.pop(0).partition("=")
            if key in ("times", "after", "session"):
                values[key] = int(value)
            elif key == "stall":
                values["stall_s"] = duration(value)
            else:
                values[key] = value
        reply = " ".join(words)
        rule = Rule(
            Step(step), reply=None if reply == "drop" else reply or None, drop=reply == "drop", **values
        )
        rules.setdefault(host, []).append(rule)
    return rules


class BreaksOnPipelining(Sink):
    """Offers PIPELINING, and closes a connection on which commands come together, after the first reply."""

    def session(self) -> SinkSession:
        return _OneByOne(self)


class _OneByOne(SinkSession):
    def data_received(self, data: bytes) -> None:
        if self._in_data or data.count(b"\r\n") < 2:
            super().data_received(data)
            return
        super().data_received(data[: data.index(b"\r\n") + 2])
        self._transport.close()


@dataclass
class Peers:
    """A running relay, and the hosts of DOMAIN."""

    stage: Stage
    relay: Relay
    hosts: dict[str, Sink]

    async def send(self, *recipients: str, **options: Any) -> None:
        """Submit a message to recipients of DOMAIN; those without a domain get it."""
        addresses = [r if "@" in r else f"{r}@{DOMAIN}" for r in recipients]
        await send(self.relay, addresses, **options)

    async def finished(self) -> None:
        """Wait until every recipient has an outcome."""
        store = self.relay.queue.store
        await until(lambda: everything(store) == [], "an empty queue")

    async def sent_to(self, host: str, recipients: int) -> None:
        """Wait until ``host`` has this number of recipients, and the outcome of each other is known."""
        await until(lambda: len(self.arrived(host)) == recipients, f"{recipients} recipients at {host}")
        await until(lambda: self.workers() == 0, "the end of the workers")

    async def is_deferred(self, *names: str) -> None:
        """Wait until these recipients, and no others, wait for another attempt."""
        await until(lambda: self.deferred() == sorted(names), f"{names} deferred")

    def deferred(self) -> list[str]:
        """The recipients that wait for another attempt, without their domain."""
        store = self.relay.queue.store
        addresses = [parse_recipient(key)[2] for key in store.keys(DEFERRED, end_of(DEFERRED))]
        return sorted(address.partition("@")[0] for address in addresses)

    def suspended(self) -> str:
        """Why the destination is suspended; empty when it is not."""
        return self.relay._delivery.zones["default"].describe(DOMAIN)

    def workers(self) -> int:
        """How many are at work in the zone."""
        return self.relay._delivery.zones["default"].scheduler.active

    def arrived(self, host: str) -> list[str]:
        """The recipients that ``host`` has got, without their domain, in order of name."""
        messages = self.hosts[host].messages
        return sorted(r.partition("@")[0] for message in messages for r in message.recipients)

    def sessions(self, host: str) -> int:
        """The connections that ``host`` has had."""
        return self.hosts[host].tally.sessions


@asynccontextmanager
async def peers(
    directory: Path,
    script: str,
    senders: int = 0,
    hosts: Sequence[str] = HOSTS[:2],
    *,
    offers: Mapping[str, tuple[str, ...]] | None = None,
    kind: type[Sink] = Sink,
    settings: Callable[[Stage], Mapping[str, Any]] = lambda stage: {},
    equal: bool = False,
    **zone: Any,
) -> AsyncIterator[Peers]:
    """A relay that sends to the hosts of ``script``.

    ``offers``: the extensions of hosts, which are of ``kind``. ``settings`` returns keys of the configuration, ``zone`` are some of its zone.
    With ``equal`` all hosts have the same preference.
    """
    rules = parse_script(script)
    async with staged(directory) as stage:
        sinks = {}
        for host in hosts:
            options: dict[str, Any] = {"kind": kind}
            if offers and host in offers:
                options["extensions"] = offers[host]
            sinks[host] = await stage.receiver(f"{host}.example", *rules.get(host, ()), **options)
        preferences = {host: 10 if equal else 10 * n for n, host in enumerate(hosts, 1)}
        stage.names.records = {
            **stage.names.records,
            DOMAIN: {"MX": [f"{n} mx.{host}.example." for host, n in preferences.items()]},
        }
        own = dict(settings(stage))
        config = stage.config(
            zones={"default": {"retry": FAST_RETRY, **zone, **own.pop("zone", {})}},
            processes={"receivers": 0, "senders": senders},
            **own,
        )
        async with relaying(config) as relay:
            yield Peers(stage, relay, sinks)
