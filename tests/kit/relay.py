"""A complete relay in this process: a listener, a queue, DNS and scripted receivers, all of them real."""

import asyncio
import os
import smtplib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.kit.deadlines import time_limit, until
from tests.kit.queue import everything, problems
from zonemta_py.bench.process import free_port
from zonemta_py.config.load import parse_config
from zonemta_py.config.schema import Config
from zonemta_py.events.accounting import RecipientHistory, read_history
from zonemta_py.events.segment_reading import read_segment, sealed_segments
from zonemta_py.relay.relay import Relay
from zonemta_py.sink.nameserver import NameServer
from zonemta_py.sink.provider import SinkProvider
from zonemta_py.sink.script import Rule, Script, load_script
from zonemta_py.sink.server import Received, Sink

FAST_RETRY = {"delays": ["100ms"], "give_up_after": "1h"}


PROCESS_COUNTS = "ZONEMTA_TEST_PROCESSES"  # "receivers/senders": the suites run in every one
ONE_PROCESS = {"receivers": 0, "senders": 0}
ADDRESSES = 16  # of receivers on one stage
RECEIVERS, SENDERS = map(int, os.environ.get(PROCESS_COUNTS, "0/0").split("/"))


class Stage:
    """Receivers by domain, each at its own address, and a name server that resolves their domains."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port("127.0.0.1", *(f"127.0.1.{n}" for n in range(1, ADDRESSES + 1)))
        self.names = NameServer({})
        self.dns_port = 0
        self.sinks: dict[str, Sink] = {}
        self._used = 0

    async def start(self) -> None:
        self.dns_port = await self.names.start()

    async def receiver(
        self, domain: str, *rules: Rule, kind: Callable[..., Sink] = Sink, **options: Any
    ) -> Sink:
        """Start a receiver for ``domain`` that keeps its messages."""
        ip = self._next_address()
        sink = kind(Script(rules), keep=True, **options)
        await sink.start(ip, self.port)
        self.sinks[domain] = sink
        records = dict(self.names.records)
        records[domain] = {"MX": [f"10 mx.{domain}."]}
        records[f"mx.{domain}"] = {"A": [ip]}
        self.names.records = records
        return sink

    async def provider(
        self,
        name: str,
        domains: Sequence[str],
        hosts: Sequence[str] = (),
        rules: Sequence[dict[str, Any]] = (),
        **limits: Any,
    ) -> SinkProvider:
        """Start a provider whose ``hosts`` are the MX of ``domains``, each with an address, all of one preference.

        ``limits`` and ``rules`` are what a script of ``zonemta sink`` has. ``sinks[name]`` keeps the messages.
        """
        addresses = {host: self._next_address() for host in hosts or [f"mx.{name}.example"]}
        document = {"name": name, "local": list(addresses.values()), **limits}
        path = self.directory / f"{name}.yaml"
        path.write_text(yaml.safe_dump({"rules": list(rules), "providers": [document]}))
        sink = self.sinks[name] = Sink(load_script(path), keep=True)
        await sink.start(list(addresses.values()), self.port)
        records = dict(self.names.records)
        records |= {host: {"A": [ip]} for host, ip in addresses.items()}
        records |= {domain: {"MX": [f"10 {host}." for host in addresses]} for domain in domains}
        self.names.records = records
        return sink.providers[name]

    def _next_address(self) -> str:
        self._used += 1
        assert self._used <= ADDRESSES, "more receivers than addresses with a free port"
        return f"127.0.1.{self._used}"

    def config(self, **changes: Any) -> Config:
        """A configuration that resolves the domains of the receivers; zones inherit a fast retry."""
        zones = {"default": {"port": self.port, "retry": FAST_RETRY}}
        for name, zone in changes.pop("zones", {}).items():
            zones[name] = {**zones.get(name, {}), **zone}
        document = {
            "hostname": "relay.example",
            "allow_private_destinations": True,
            "listeners": [{"address": "127.0.0.1:0"}],
            "queue": {"directory": "queue", "min_free_disk": "1MiB"},
            "events": {"directory": "events"},
            "resolver": {"nameservers": [f"127.0.0.1:{self.dns_port}"], "timeout": time_limit(1)},
            "zones": zones,
            "shutdown_grace": time_limit(1),
            "admin": {"address": None},
            "processes": {"receivers": RECEIVERS, "senders": SENDERS},
            **changes,
        }
        text = yaml.safe_dump(document)
        (self.directory / "zonemta.yaml").write_text(text)
        return parse_config(text, self.directory / "zonemta.yaml")

    async def close(self) -> None:
        for sink in self.sinks.values():
            await sink.close()
        self.names.close()


@asynccontextmanager
async def staged(directory: Path) -> AsyncIterator[Stage]:
    stage = Stage(directory)
    await stage.start()
    try:
        yield stage
    finally:
        await stage.close()


@asynccontextmanager
async def relaying(config: Config) -> AsyncIterator[Relay]:
    relay = Relay(config)
    await relay.start()
    try:
        yield relay
    finally:
        await relay.stop()


def http_port(relay: Relay) -> int:
    """The port of the admin listener."""
    assert relay.admin is not None
    assert relay.admin.server is not None
    return relay.admin.server.ports[0]


async def send(
    relay: Relay,
    recipients: Sequence[str],
    message: bytes = b"Subject: hi\r\n\r\nbody\r\n",
    sender: str = "s@sender.example",
) -> None:
    """Submit one message by SMTP."""
    host, port = relay.addresses[0]

    def dialogue() -> None:
        with smtplib.SMTP(host, port, "client.example") as client:
            options = ["SMTPUTF8"] if not all(r.isascii() for r in [*recipients, sender]) else []
            client.sendmail(sender, list(recipients), message, mail_options=options)

    await asyncio.to_thread(dialogue)


async def empty(relay: Relay) -> None:
    """Wait until the queue has no keys."""
    await until(lambda: everything(relay.queue.store) == [], "an empty queue")


async def received(sink: Sink, count: int) -> list[Received]:
    """Wait for ``count`` messages."""
    await until(lambda: len(sink.messages) >= count, f"{count} messages")
    return sink.messages


def ledger(directory: Path) -> RecipientHistory:
    """The accounts of a stopped relay."""
    return read_history(directory / "events")


def logged_events(directory: Path, name: str) -> list[dict[str, Any]]:
    """Every event of that name in the event log of a stopped relay."""
    records = [r for path in sealed_segments(directory / "events") for r in read_segment(path)]
    return [record for record in records if record["event"] == name]


def sound(relay: Relay) -> bool:
    """Whether the queue check finds no problem."""
    return problems(relay.queue.store) == []
