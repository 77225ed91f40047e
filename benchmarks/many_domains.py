"""Many domains in 200 providers: ``python -m benchmarks.many_domains [--recipients N] [--domains N]…``.

Domain ``lN.many.example`` has one exchanger, that of provider N modulo 200. Every provider has limits, which are high. A
relay in one process sends to the domains in turn, twice: the first time each of them is looked up. Prints its CPU per
delivery and its memory for each number of domains.
"""

import argparse
import asyncio
import gc
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from zonemta_py.bench.process import CommandProcess, cpu_seconds, free_port, rss_anon_bytes
from zonemta_py.core.clock import monotonic_s
from zonemta_py.core.errors import LocalError
from zonemta_py.core.runtime import loop_factory
from zonemta_py.sink.counter import CountingSession, Deliveries
from zonemta_py.sink.nameserver import NameServer

PROVIDERS = 200
ROUNDS = 2
LIMITS = {
    "sessions": 20, "sessions_per_address": 20, "messages_per_session": 1000, "rate": ["10000/s", "10000000/d"],
    "connect_rate": ["10000/s"],
}  # fmt: skip
TIMEOUT_S = 1200.0


class _Names(Mapping[str, Mapping[str, Sequence[str]] | str]):
    """The records of all domains, made when they are asked for."""

    def __getitem__(self, name: str) -> Mapping[str, Sequence[str]]:
        first, _, parent = name.partition(".")
        if parent == "many.example":
            return {"MX": [f"10 mx.p{int(first[1:]) % PROVIDERS}.example."]}
        if first == "mx":
            return {"A": [_address(int(parent.removeprefix("p").partition(".")[0]))]}
        raise KeyError(name)

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0


def _address(provider: int) -> str:
    return f"127.0.2.{provider + 1}"


def write_config(directory: Path, port: int, names_port: int) -> Path:
    """The configuration of the relay, and its file of providers."""
    (directory / "providers.yaml").write_text(
        yaml.safe_dump({"providers": {"default": {"limits": LIMITS}}})
    )
    document = {
        "hostname": "relay.bench.example",
        "allow_private_destinations": True,
        "listeners": [{"address": "127.0.0.1:0"}],
        "processes": {"receivers": 0, "senders": 0},
        "queue": {"directory": "queue", "min_free_disk": "64MiB"},
        "events": {"directory": "events"},
        "admin": {"address": None},
        "resolver": {"nameservers": [f"127.0.0.1:{names_port}"], "timeout": "5s"},
        "pools": {"default": [{"address": "127.0.0.31"}, {"address": "127.0.0.32"}]},
        "zones": {"default": {"port": port, "connections": 1000}},
        "providers": {"file": "providers.yaml", "shipped": False},
    }
    path = directory / "zonemta.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


async def round_of(
    relay: CommandProcess, target: str, domains: int, messages: int, got: Deliveries
) -> dict[str, Any]:
    """Send ``messages``; returns what they cost."""
    before, cpu_s, began_s, most_bytes = got.recipients, cpu_seconds(relay.pid), monotonic_s(), 0
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "zonemta_py.bench.source", target, f"--messages={messages}", "--keep",
        f"--first={before}", f"--domains={domains}", "--domain=many.example", stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    while got.recipients < before + messages:
        if monotonic_s() > began_s + TIMEOUT_S or process.returncode:
            raise LocalError(f"only {got.recipients - before} of {messages} came")
        most_bytes = max(most_bytes, rss_anon_bytes(relay.pid))
        await asyncio.sleep(0.1)
    took_s, cpu_s = monotonic_s() - began_s, cpu_seconds(relay.pid) - cpu_s
    await process.wait()
    return {
        "seconds": round(took_s, 1), "cpu_ms": round(cpu_s * 1000 / messages, 4),
        "rss_anon_mb": round(most_bytes / 1e6, 1), "rss_anon_after_mb": round(rss_anon_bytes(relay.pid) / 1e6, 1),
    }  # fmt: skip


async def measure(directory: Path, domains: int, recipients: int) -> dict[str, Any]:
    """One relay, ROUNDS times."""
    loop, got, names = asyncio.get_running_loop(), Deliveries(), NameServer({}, ttl_s=3600)
    names.records = _Names()  # type: ignore[assignment]
    hosts = [_address(provider) for provider in range(PROVIDERS)]
    port = free_port(*hosts[:20])
    server = await loop.create_server(lambda: CountingSession(got, 0.0), hosts, port, backlog=1024)
    config = write_config(directory, port, await names.start())
    relay = CommandProcess(
        ["serve", "-c", str(config), "--log-level", "warning"], directory / "relay.log"
    )
    try:
        [target] = await asyncio.to_thread(relay.wait_ready)
        row: dict[str, Any] = {
            "domains": domains,
            "rss_anon_mb": round(rss_anon_bytes(relay.pid) / 1e6, 1),
        }
        for number in range(ROUNDS):
            row[f"round_{number + 1}"] = await round_of(
                relay, target, domains, recipients // ROUNDS, got
            )
        row["repeated"] = sum(1 for count in got.counts if count > 1)
        row["questions"] = sum(names.queries.values())
        await asyncio.to_thread(relay.stop)
    finally:
        relay.kill()
        server.close()
        names.close()
        gc.collect()
    return row


async def main(options: argparse.Namespace) -> None:
    rows = []
    for domains in options.domains or [200, 1_000, 100_000]:
        with tempfile.TemporaryDirectory() as directory:
            rows.append(await measure(Path(directory), domains, options.recipients))
        print(json.dumps(rows[-1]), flush=True)
    if options.output:
        options.output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipients", type=int, default=200_000)
    parser.add_argument("--domains", type=int, action="append")
    parser.add_argument("--output", type=Path)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main(parser.parse_args()))
