"""One run: source → relay → sink, each in a process of its own, measured from outside."""

import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from zonemta_py.bench.children import Child, cpu_seconds, free_port, written_bytes
from zonemta_py.bench.openssl import make_certificate
from zonemta_py.bench.sampler import Sampler
from zonemta_py.bench.scenarios import Scenario
from zonemta_py.bench.spans import Span, share, spans
from zonemta_py.core.codec import from_json
from zonemta_py.core.errors import LocalError
from zonemta_py.sink.counter import Deliveries

DELIVER_TIMEOUT_S = 300.0
WARM_UP = 200  # messages before the clock starts
FLOOD_FROM = "127.0.0.9"  # the other submitter


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one run showed; the receiver counted every recipient exactly once.

    ``cpu_ms`` is per delivery, of all processes of the relay; ``tools_cpu_ms`` the source's and sink's.
    ``fsyncs`` and ``written_kb`` are per message, -1 when not known. ``p50_ms`` … are from the 250 to
    the peer's final dot.
    """

    scenario: str
    relay: str
    deliveries: int
    seconds: float
    per_second: float
    cpu_ms: float
    tools_cpu_ms: float
    rss_anon_mb: float
    fsyncs: float
    written_kb: float
    mb_per_second: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    over_time: tuple[Span, ...] = ()  # of a soak

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


class SinkProcess:
    """The counting sink in its own process, asked through its files."""

    def __init__(self, folder: Path, scenario: Scenario) -> None:
        self.port = free_port()
        self._folder = folder
        arguments = [str(self.port), str(folder), f"--delay-ms={scenario.delay_ms}"]
        if scenario.tls:
            make_certificate(folder / "tls.pem", folder / "tls.key")
            arguments.append(f"--tls={folder / 'tls'}")
        self._child = Child(arguments, folder / "sink.log", module="zonemta_py.sink.counter")
        self._child.wait_ready()
        self.pid = self._child.pid

    def recipients(self) -> int:
        """Recipients delivered so far."""
        try:
            return int((self._folder / "count").read_text() or 0)
        except (OSError, ValueError):
            return 0

    def stop(self) -> Deliveries:
        """End it; what it counted."""
        self._child.stop()
        return Deliveries.load(self._folder / "deliveries")


@dataclass(slots=True)
class Submitted:
    """What a source did: its time, its CPU, and when each message was accepted (monotonic s)."""

    seconds: float
    cpu_seconds: float
    accepted_s: "array[float]"


def source(
    target: str, scenario: Scenario, messages: int, folder: Path, *, first: int, options: tuple[str, ...] = ()
) -> Submitted:  # fmt: skip
    """Run the source to its end. Raises LocalError when the relay refused."""
    times = folder / "accepted"
    arguments = [
        target,
        f"--sessions={scenario.sessions}",
        f"--messages={messages}",
        f"--recipients={scenario.recipients}",
        f"--size={scenario.size}",
        f"--first={first}",
        f"--times={times}",
        *(["--keep"] if scenario.keep else []),
        *(["--tls"] if scenario.tls else []),
        *options,
    ]
    with (folder / "source.log").open("ab") as log:
        limit_s = DELIVER_TIMEOUT_S + (messages / scenario.per_second if scenario.per_second else 0)
        try:
            done = subprocess.run(
                [sys.executable, "-m", "zonemta_py.bench.source", *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired as exc:
            raise LocalError(f"{target} did not take {messages} messages in {limit_s:.0f} s") from exc
    if done.returncode != 0:
        raise LocalError(f"the source failed: {(folder / 'source.log').read_text()[-500:]}")
    result = from_json(done.stdout)
    if result["failed"]:
        raise LocalError(f"{target} refused: {result['failed']}")
    accepted = array("d")
    accepted.frombytes(times.read_bytes())
    return Submitted(float(result["seconds"]), float(result["cpu_seconds"]), accepted)


def measure(
    scenario: Scenario, folder: Path, make: Callable[[Path, int], Subject], pulse: Callable[[int], None]
) -> Measurement:
    """Warm up, run, wait for the last delivery. ``pulse`` is told of deliveries as they come."""
    sink = SinkProcess(folder, scenario)
    run = None
    try:
        relay = make(folder, sink.port)
        try:
            run = _Run(scenario, folder, sink, relay, pulse)
            run.warm_up()
            run.go()
        finally:
            relay.stop()
    finally:
        deliveries = sink.stop()
    return run.result(deliveries)


class _Run:
    """A relay and a sink that are up: warmed up, loaded, read off."""

    def __init__(
        self, scenario: Scenario, folder: Path, sink: SinkProcess, relay: Subject, pulse: Callable[[int], None]
    ) -> None:  # fmt: skip
        self._scenario = scenario
        self._folder = folder
        self._sink = sink
        self._relay = relay
        self._pulse = pulse
        self._warm = min(WARM_UP, scenario.messages) if scenario.size < 1 << 20 else scenario.sessions

    def warm_up(self) -> None:
        """Connections, caches, first files; then the flood, which is only waited for to be accepted."""
        scenario = self._scenario
        source(self._relay.target, scenario, self._warm, self._folder, first=0)
        self._wait(self._warm * scenario.recipients, lambda _: None, 0)
        if scenario.flood:
            flood = Scenario("flood", "", scenario.flood, 30)
            options = (f"--client={FLOOD_FROM}",)
            behind = (
                self._warm + scenario.messages
            ) * scenario.recipients  # the numbers of what is measured
            source(
                self._relay.target, flood, flood.messages, self._folder, first=behind, options=options
            )

    def go(self) -> None:
        """The measured part."""
        scenario, relay, sink = self._scenario, self._relay, self._sink
        wanted = scenario.messages * scenario.recipients
        before = self._warm * scenario.recipients + scenario.flood
        cpu_s, fsyncs, written = cpu_seconds(relay.pid), relay.fsyncs(), written_bytes(relay.pid)
        sink_cpu_s, began_s = cpu_seconds(sink.pid), time.monotonic()
        sampler = Sampler(relay.pid, self._folder)
        paced = (f"--per-second={scenario.per_second}",) if scenario.per_second else ()
        first = self._warm * scenario.recipients
        self._submitted = source(
            relay.target, scenario, scenario.messages, self._folder, first=first, options=paced
        )
        self._wait(before + wanted, self._pulse, before)
        self._took_s = time.monotonic() - began_s
        self._samples = sampler.stop()
        self._cpu_s = cpu_seconds(relay.pid) - cpu_s
        self._tools_cpu_s = cpu_seconds(sink.pid) - sink_cpu_s + self._submitted.cpu_seconds
        after = relay.fsyncs()
        self._fsyncs = (after - fsyncs) / scenario.messages if after >= 0 else -1.0
        self._written = (
            (written_bytes(relay.pid) - written) / scenario.messages if written >= 0 else -1.0
        )

    def _wait(self, wanted: int, pulse: Callable[[int], None], got: int) -> None:
        """Wait until the sink, which had ``got`` recipients, has ``wanted``."""
        end_s = time.monotonic() + DELIVER_TIMEOUT_S
        while time.monotonic() < end_s:
            now = self._sink.recipients()
            pulse(max(0, now - got))
            got = max(got, now)
            if got >= wanted:
                return
            time.sleep(0.02)
        raise LocalError(
            f"only {got} of {wanted} recipients were delivered in {DELIVER_TIMEOUT_S:.0f} s"
        )

    def result(self, deliveries: Deliveries) -> Measurement:
        """The figures. Raises LocalError unless every recipient was delivered exactly once."""
        scenario = self._scenario
        wanted = scenario.messages * scenario.recipients
        first = self._warm * scenario.recipients
        counts = deliveries.counts[first : first + wanted]
        missing, repeated = counts.count(0) + wanted - len(counts), sum(1 for n in counts if n > 1)
        if missing or repeated:
            raise LocalError(
                f"{scenario.name}: {missing} recipients missing, {repeated} delivered twice"
            )
        waits_ms = [
            max(0.0, deliveries.times[first + n] - self._submitted.accepted_s[n // scenario.recipients])
            * 1000
            for n in range(wanted)
        ]
        waited_ms = sorted(waits_ms)
        return Measurement(
            scenario=scenario.name,
            relay=self._relay.name,
            deliveries=wanted,
            seconds=round(self._took_s, 3),
            per_second=round(wanted / self._took_s, 1),
            cpu_ms=round(self._cpu_s * 1000 / wanted, 4),
            tools_cpu_ms=round(self._tools_cpu_s * 1000 / wanted, 4),
            rss_anon_mb=max(sample.rss_anon_mb for sample in self._samples),
            fsyncs=round(self._fsyncs, 3),
            written_kb=round(self._written / 1000, 2) if self._written >= 0 else -1.0,
            mb_per_second=round(scenario.messages * scenario.size / self._took_s / 1e6, 1),
            p50_ms=share(waited_ms, 0.50),
            p95_ms=share(waited_ms, 0.95),
            p99_ms=share(waited_ms, 0.99),
            over_time=spans(self._samples, waits_ms, scenario.per_second) if scenario.soak else (),
        )
