"""Three providers with limits, and single messages beside: ``python -m benchmarks.providers [--recipients N] [--processes R/S]``.

A relay with two zones of two addresses sends a flood for 40 domains of three providers, which note every attempt over a
limit. A fourth provider without limits gets a message every 50 ms, without the flood and meanwhile. Then one provider
blocks one address for some seconds. The exit code is 1 when a limit was exceeded, a message came twice, or less than 90 % of
the rates was used. The relay and both sources are processes of their own; providers and name server are
in this one, the fourth provider in another.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.provider_figures import Block, kinds, latency, share_of_rates
from zonemta_py.bench.measure import SinkProcess
from zonemta_py.bench.process import CommandProcess, cpu_seconds, rss_anon_bytes
from zonemta_py.bench.setup import Scenario
from zonemta_py.core.clock import monotonic_s
from zonemta_py.core.errors import LocalError
from zonemta_py.core.runtime import loop_factory
from zonemta_py.events.segment_reading import read_segment, sealed_segments
from zonemta_py.sink.nameserver import NameServer
from zonemta_py.sink.script import load_script
from zonemta_py.sink.server import Sink
from zonemta_py.sink.sink_limits import LimitName

PROVIDERS: dict[str, dict[str, Any]] = {
    "alpha": {
        "sessions": 16, "sessions_per_address": 5, "messages_per_session": 100, "rate": ["50/s"],
        "connect_rate": ["60/m"],
    },
    "beta": {
        "sessions": 12, "sessions_per_address": 4, "messages_per_session": 50, "rate": ["75/2s"],
        "connect_rate": ["2/s"],
    },
    "gamma": {
        "sessions": 40, "sessions_per_address": 12, "messages_per_session": 20, "rate": ["400/10s"],
        "connect_rate": ["5/s"],
    },
}  # fmt: skip
SHARE_MIN = 90.0  # percent, of what the rates allow
HOSTS = {"alpha": "127.0.1.1", "beta": "127.0.1.2", "gamma": "127.0.1.3", "free": "127.0.0.1"}
TURNS = (
    "alpha",
    "beta",
    "gamma",
    "alpha",
    "beta",
    "gamma",
    "alpha",
    "beta",
    "gamma",
    "alpha",
)  # of domains
DOMAINS = 40
ZONES = {"one": ["127.0.0.31", "127.0.0.32"], "two": ["127.0.0.33", "127.0.0.34"]}
SINGLES_PER_S = 20
ALONE, MEANWHILE = 400, 1_600  # single messages
BLOCK_PART = 4  # the flood of the second part is so many times smaller
BLOCKED, BLOCKED_AT, BLOCKED_S = "127.0.0.31", "alpha", 3.0
REPLY = "421 4.7.0 your IP is blocked for its bad reputation"
SHAPING = {"rules": [{"name": "block", "class": "blocked", "action": "suspend", "for": "5s"}]}
TIMEOUT_S = 900.0


def write_config(directory: Path, port: int, names_port: int, processes: str) -> Path:
    """The configuration of the relay, and the files that it names."""
    own = {name: {"mx": [f"*.{name}.example"], "limits": limits} for name, limits in PROVIDERS.items()}
    (directory / "providers.yaml").write_text(yaml.safe_dump({"providers": own}))
    (directory / "shaping.yaml").write_text(yaml.safe_dump(SHAPING))
    receivers, _, senders = processes.partition("/")
    document = {
        "hostname": "relay.bench.example",
        "allow_private_destinations": True,
        "listeners": [{"address": "127.0.0.1:0"}],
        "processes": {"receivers": int(receivers), "senders": int(senders)},
        "queue": {"directory": "queue", "min_free_disk": "64MiB"},
        "events": {"directory": "events"},
        "admin": {"address": None},
        "resolver": {"nameservers": [f"127.0.0.1:{names_port}"], "timeout": "5s"},
        "pools": {zone: [{"address": each} for each in pool] for zone, pool in ZONES.items()},
        "zones": {
            "default": {"port": port, "retry": {"delays": ["2s"]}},
            **{zone: {"pool": zone, "connections": 100} for zone in ZONES},
        },
        "routing": [{"sender_domain": f"{zone}.example", "zone": zone} for zone in ZONES],
        "providers": {"file": "providers.yaml", "shipped": False},
        "shaping": {
            "file": "shaping.yaml", "shipped": False,
            "controller": {"interval": "2s", "step": 25},
        },
    }  # fmt: skip
    path = directory / "zonemta.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def records() -> Mapping[str, Mapping[str, Sequence[str]]]:
    """The MX of each domain, and the hosts."""
    found = {f"mx.{name}.example": {"A": [address]} for name, address in HOSTS.items()}
    for number in range(DOMAINS):
        provider = TURNS[number % len(TURNS)]
        found[f"l{number}.flood.example"] = {"MX": [f"10 mx.{provider}.example."]}
    found["single.example"] = {"MX": ["10 mx.free.example."]}
    return found


class Run:
    """One relay, with its providers."""

    def __init__(self, directory: Path, recipients: int, processes: str) -> None:
        self._directory = directory
        self._recipients = recipients
        self._processes = processes
        self._single_sink = SinkProcess(directory, Scenario("single", "", 1, 1))
        hosts = [HOSTS[name] for name in PROVIDERS]
        script = [
            {"name": name, "local": [host], **PROVIDERS[name]}
            for name, host in zip(PROVIDERS, hosts, strict=True)
        ]
        (directory / "sink.yaml").write_text(yaml.safe_dump({"providers": script}))
        self._sink = Sink(load_script(directory / "sink.yaml"))
        self._names = NameServer(records())
        self._submitted_s = 0.0  # when the last flood was accepted

    async def start(self) -> None:
        """Start everything."""
        port = self._single_sink.port
        await self._sink.start([HOSTS[name] for name in PROVIDERS], port)
        names_port = await self._names.start()
        config = write_config(self._directory, port, names_port, self._processes)
        arguments = ["serve", "-c", str(config), "--log-level", "warning"]
        self._relay = CommandProcess(arguments, self._directory / "relay.log")
        self._target = (await asyncio.to_thread(self._relay.wait_ready))[0]

    async def source(self, messages: int, sender: str, *options: str) -> None:
        """Submit ``messages``. Raises LocalError if some were not accepted."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "zonemta_py.bench.source", self._target, f"--messages={messages}", "--keep",
            f"--sender={sender}", *options, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, _ = await process.communicate()
        if process.returncode or json.loads(out)["failed"]:
            raise LocalError(f"the source failed: {out.decode()}")

    async def flood(self, recipients: int, first: int) -> None:
        """Submit a flood, half of it in each zone, and wait until the providers have it."""
        half, before = recipients // 2, self._sink.tally.messages
        async with asyncio.TaskGroup() as group:
            for number, zone in enumerate(ZONES):
                options = (f"--first={first + number * half}", f"--domains={DOMAINS}", "--sessions=15")
                sender = f"list@{zone}.example"
                group.create_task(self.source(half, sender, "--domain=flood.example", *options))
        self._submitted_s = monotonic_s()
        await self.until(lambda: self._sink.tally.messages >= before + 2 * half, "the flood")

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for ``condition``. Raises LocalError after TIMEOUT_S."""
        end_s = monotonic_s() + TIMEOUT_S
        while not condition():
            if monotonic_s() > end_s:
                raise LocalError(f"{what} did not come: {self._sink.as_row()}")
            await asyncio.sleep(0.01)

    async def singles(self, messages: int, first: int) -> "array[float]":
        """Submit a message every 50 ms to the provider without limits; returns when each was accepted."""
        path = self._directory / f"accepted-{first}"
        options = (
            f"--first={first}",
            f"--per-second={SINGLES_PER_S}",
            "--sessions=1",
            f"--times={path}",
        )
        await self.source(messages, "single@one.example", "--domain=single.example", *options)
        await self.until(lambda: self._single_sink.recipients() >= first + messages, "single messages")
        accepted = array("d")
        accepted.frombytes(path.read_bytes())
        return accepted

    async def block(self) -> Block:
        """Block one address at one provider, for some seconds of a second flood."""
        provider = self._sink.providers[BLOCKED_AT]
        account, before = provider.account(BLOCKED), provider.account(BLOCKED).messages
        async with asyncio.TaskGroup() as group:
            group.create_task(self.flood(self._recipients // BLOCK_PART, self._recipients))
            await self.until(lambda: account.messages > before + 100, "mail of the address")
            open_sessions, blocked_s = account.open_sessions, monotonic_s()
            provider.block(BLOCKED, REPLY)
            refusals: list[tuple[float, int]] = []
            while monotonic_s() < blocked_s + BLOCKED_S:
                total = account.refused[LimitName.BLOCKED]
                if total and (not refusals or refusals[-1][1] != total):
                    refusals.append((monotonic_s() - blocked_s, total))
                await asyncio.sleep(0.002)
            provider.unblock(BLOCKED)
        return Block(blocked_s, blocked_s + BLOCKED_S, open_sessions, refusals)

    async def go(self) -> dict[str, Any]:
        """Everything; returns the figures."""
        providers = self._sink.providers
        warm = await self.singles(40, 0)
        alone = await self.singles(ALONE, len(warm))
        cpu_s, began_s = cpu_seconds(self._relay.pid), monotonic_s()
        async with asyncio.TaskGroup() as group:
            flood = group.create_task(self.flood(self._recipients, 0))
            beside = group.create_task(self.singles(MEANWHILE, len(warm) + len(alone)))
            flood.add_done_callback(
                lambda _: print(f"flood: {monotonic_s() - began_s:.1f} s", file=sys.stderr)
            )
        took_s, cpu_s = monotonic_s() - began_s, cpu_seconds(self._relay.pid) - cpu_s
        submitted_s = self._submitted_s
        row: dict[str, Any] = {
            "processes": self._processes, "recipients": self._recipients, "seconds": round(took_s, 1),
            "submitted_after_s": round(submitted_s - began_s, 1),
            "cpu_ms": round(cpu_s * 1000 / (self._recipients + MEANWHILE), 3),
            "rss_anon_mb": round(rss_anon_bytes(self._relay.pid) / 1e6, 1),
            "providers": {
                name: {
                    "messages": len(each.accepted), "violations": kinds(each),
                    "share_of_rates": share_of_rates(each), "most_sessions": each.most_sessions,
                    "most_sessions_of_an_address": max(c.most_sessions for c in each.clients.values()),
                    "sessions": sum(len(c.connected) for c in each.clients.values()),
                }
                for name, each in providers.items()
            },
        }  # fmt: skip
        block = await self.block()
        row["block"] = block.row(providers, BLOCKED, BLOCKED_AT)
        row["violations_with_block"] = {name: kinds(each) for name, each in providers.items()}
        row["repeated"] = sum(1 for count in self._sink.tally.by_recipient.values() if count > 1)
        await asyncio.to_thread(self._relay.stop)
        deliveries = self._single_sink.stop()
        row["alone"] = latency(alone, deliveries.times, len(warm))
        of_beside = beside.result(), deliveries.times, len(warm) + len(alone)
        row["meanwhile"] = latency(*of_beside)
        row["while_submitted"] = latency(*of_beside, until_s=submitted_s)
        row["while_limited"] = latency(*of_beside, from_s=submitted_s, until_s=began_s + took_s)
        row["shaped"] = shaped(self._directory / "events", block.blocked_s)
        return row

    async def close(self) -> None:
        """End what still runs."""
        self._relay.kill()
        await self._sink.close()
        self._names.close()


def shaped(events: Path, blocked_s: float) -> list[str]:
    """The events ``shaped`` of a stopped relay: seconds since the first, what, from, to, cause."""
    records = [record for path in sealed_segments(events) for record in read_segment(path)]
    found = [record for record in records if record["event"] == "shaped"]
    first_ms = min((record["time_ms"] for record in found), default=0)
    return [
        f"{(each['time_ms'] - first_ms) / 1000:.1f} s {each['provider']} {each['address']}: {each['what']} "
        f"{each['from']} → {each['to']}: {each['cause']}" for each in found
    ]  # fmt: skip


def missed(row: dict[str, Any]) -> list[str]:
    """What must not be: mail over a limit, mail twice, less than 90 % of what the rates allow."""
    found = [f"{row['repeated']} recipients got their mail twice"] if row["repeated"] else []
    for name, each in row["providers"].items():
        over = {**each["violations"], **row["violations_with_block"][name]}
        if over:
            found.append(f"{name}: over its limits: {over}")
        if each["share_of_rates"] is not None and each["share_of_rates"] < SHARE_MIN:
            found.append(f"{name}: {each['share_of_rates']} % of its rates were used")
    return found


async def main(options: argparse.Namespace) -> None:
    rows = []
    for processes in options.processes or ["0/0", "2/2"]:
        with tempfile.TemporaryDirectory() as directory:
            run = Run(Path(directory), options.recipients, processes)
            try:
                await run.start()
                rows.append(await run.go())
            finally:
                await run.close()
        print(json.dumps(rows[-1], indent=1, ensure_ascii=False), flush=True)
    if options.output:
        options.output.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    problems = [f"{row['processes']}: {each}" for row in rows for each in missed(row)]
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipients", type=int, default=50_000)
    parser.add_argument("--processes", action="append")
    parser.add_argument("--output", type=Path)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main(parser.parse_args()))
