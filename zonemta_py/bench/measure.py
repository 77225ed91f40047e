"""One run: source → relay → sink, each in a process of its own, measured from outside."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from zonemta_py.admin.control import ask
from zonemta_py.bench.children import Child, cpu_seconds, free_port, rss_anon_bytes
from zonemta_py.bench.scenarios import Scenario
from zonemta_py.codec import from_json
from zonemta_py.errors import LocalError

DELIVER_TIMEOUT_S = 300.0
WARM_UP = 200  # messages before the clock starts

RELAY_CONFIG = """\
hostname: relay.bench.example
listeners: [{{address: "127.0.0.1:0"}}]
queue: {{directory: queue, min_free_disk: 64MiB, durability: {durability}}}
events: {{directory: events}}
zones: {{default: {{smarthost: "127.0.0.1:{sink_port}"}}}}
"""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one run showed. ``cpu_ms`` is per delivery; ``fsyncs`` per message, -1 when not known."""

    scenario: str
    relay: str
    deliveries: int
    seconds: float
    per_second: float
    cpu_ms: float
    rss_anon_mb: float
    fsyncs: float
    mb_per_second: float
    source_seconds: float

    def row(self) -> dict[str, object]:
        """For programs."""
        return asdict(self)


class Subject(Protocol):
    """A relay under test."""

    name: str
    pid: int
    target: str

    def fsyncs(self) -> int:
        """Writes to disk so far, -1 when not known."""

    def stop(self) -> None:
        """End it."""


class OurRelay:
    """zonemta on a fresh queue in ``folder``."""

    def __init__(self, folder: Path, sink_port: int, *, durable: bool = True) -> None:
        self.name = "zonemta" if durable else "zonemta, no fsync"
        self._folder = folder
        config = folder / "zonemta.yaml"
        config.write_text(
            RELAY_CONFIG.format(sink_port=sink_port, durability="sync" if durable else "none")
        )
        self._child = Child(["serve", "-c", str(config), "--log-level", "warning"], folder / "relay.log")
        self.target = self._child.wait_ready()[0]
        self.pid = self._child.pid

    def fsyncs(self) -> int:
        """Group commits so far."""
        return int(next(iter(ask(self._folder / "queue", "stats", {})))["fsyncs"])

    def stop(self) -> None:
        """End it in order."""
        self._child.stop()


class SinkProcess:
    """A sink that counts; ``zonemta sink`` in its own process, asked through its statistics file."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._child = Child(
            [str(self.port), str(folder / "sink.count")],
            folder / "sink.log",
            module="zonemta_py.bench.counter",
        )
        self._child.wait_ready()
        self._counts = folder / "sink.count"

    def recipients(self) -> int:
        """Recipients delivered so far."""
        try:
            return int(self._counts.read_text() or 0)
        except (OSError, ValueError):
            return 0

    def stop(self) -> None:
        """End it."""
        self._child.stop()


def source(target: str, scenario: Scenario, messages: int, folder: Path) -> float:
    """Run the source to its end; the seconds it took. Raises LocalError when the relay refused."""
    arguments = [
        target,
        f"--sessions={scenario.sessions}",
        f"--messages={messages}",
        f"--recipients={scenario.recipients}",
        f"--size={scenario.size}",
        *(["--keep"] if scenario.keep else []),
    ]
    with (folder / "source.log").open("ab") as log:
        done = subprocess.run(
            [sys.executable, "-m", "zonemta_py.bench.source", *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            timeout=DELIVER_TIMEOUT_S,
            check=False,
        )
    if done.returncode != 0:
        raise LocalError(f"the source failed: {(folder / 'source.log').read_text()[-500:]}")
    result = from_json(done.stdout)
    if result["failed"]:
        raise LocalError(f"{target} refused: {result['failed']}")
    return float(result["seconds"])


def measure(
    scenario: Scenario, folder: Path, make: Callable[[Path, int], Subject], pulse: Callable[[int], None]
) -> Measurement:
    """Warm up, run, wait for the last delivery. ``pulse`` is told of deliveries as they come."""
    sink = SinkProcess(folder)
    try:
        relay = make(folder, sink.port)
        try:
            warm = min(WARM_UP, scenario.messages) if scenario.size < 1 << 20 else scenario.sessions
            source(relay.target, scenario, warm, folder)
            before = _wait(sink, warm * scenario.recipients, relay.pid, lambda _: None)[1]
            return _measured(scenario, folder, sink, relay, before, pulse)
        finally:
            relay.stop()
    finally:
        sink.stop()


def _measured(
    scenario: Scenario,
    folder: Path,
    sink: SinkProcess,
    relay: Subject,
    before: int,
    pulse: Callable[[int], None],
) -> Measurement:
    wanted = scenario.messages * scenario.recipients
    cpu_s, fsyncs, began_s = cpu_seconds(relay.pid), relay.fsyncs(), time.monotonic()
    source_s = source(relay.target, scenario, scenario.messages, folder)
    peak, got = _wait(sink, before + wanted, relay.pid, pulse, before)
    took_s = time.monotonic() - began_s
    used_s = cpu_seconds(relay.pid) - cpu_s
    after = relay.fsyncs()
    deliveries = got - before
    return Measurement(
        scenario.name,
        relay.name,
        deliveries,
        round(took_s, 3),
        round(deliveries / took_s, 1),
        round(used_s * 1000 / deliveries, 4),
        round(peak / 1e6, 1),
        round((after - fsyncs) / scenario.messages, 3) if after >= 0 else -1.0,
        round(scenario.messages * scenario.size / took_s / 1e6, 1),
        source_s,
    )


def _wait(
    sink: SinkProcess, wanted: int, pid: int, pulse: Callable[[int], None], got: int = 0
) -> tuple[int, int]:
    """Wait until the sink, which had ``got`` recipients, has ``wanted``; peak anonymous memory and the count."""
    end_s = time.monotonic() + DELIVER_TIMEOUT_S
    peak = 0
    while time.monotonic() < end_s:
        now = sink.recipients()
        pulse(now - got)
        got = now
        peak = max(peak, rss_anon_bytes(pid))
        if got >= wanted:
            return peak, got
        time.sleep(0.02)
    raise LocalError(f"only {got} of {wanted} recipients were delivered in {DELIVER_TIMEOUT_S:.0f} s")
