"""One run of a benchmark: source, relay and sink, each in a process of its own, measured from outside.

Steps (``measure``): sink and relay start ─▶ warm-up is delivered ─▶ flood is submitted ─▶ run ─▶ last delivery ─▶ figures.

Invariants:

- Figures are valid only if each recipient arrived exactly once; otherwise ``result`` raises LocalError.
- CPU time is that of the run, of all processes of the relay, also of those that have ended; source and sink are counted apart.
- ``Sampler`` reads memory, files and disk from outside, in a thread of its own, so that the relay has no code for it.

Callers: ``zonemta bench``, and benchmarks that need one scenario. A relay implements ``RelayUnderTest``.

Example: ``measure(scenario, directory, make, on_progress)``, where ``make(directory, sink_port)`` starts the relay and returns it.
"""

import os
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from zonemta_py.bench.process import (
    CommandProcess,
    cpu_of,
    cpu_seconds,
    free_port,
    process_tree,
    rss_anon_bytes,
    written_bytes,
)
from zonemta_py.bench.setup import Scenario, make_certificate
from zonemta_py.core.codec import from_json
from zonemta_py.core.errors import LocalError
from zonemta_py.sink.counter import Deliveries

# ---- Samples: memory, files and disk of a running relay, and a long run cut into twelve parts.

INTERVAL_S = 0.25
PARTS = 12


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample, ``at_s`` seconds after the first; ``queue_mb`` is the queue without the event log."""

    at_s: float
    rss_anon_mb: float
    open_files: int
    queue_mb: float


class Sampler:
    """Samples the process tree of ``pid`` and the queue in ``directory`` in a thread of its own."""

    def __init__(self, pid: int, directory: Path) -> None:
        self.samples: list[Sample] = []
        self._pid = pid
        self._queue = directory / "queue"
        self._stopped = threading.Event()
        self._began_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.samples.append(self._sample())
            self._stopped.wait(INTERVAL_S)

    def _sample(self) -> Sample:
        return Sample(
            round(time.monotonic() - self._began_s, 2),
            round(rss_anon_bytes(self._pid) / 1e6, 1),
            sum(map(_open_files, process_tree(self._pid))),
            round(_size_bytes(self._queue) / 1e6, 1),
        )

    def stop(self) -> list[Sample]:
        """End the thread and return the samples."""
        self._stopped.set()
        self._thread.join()
        return self.samples


def _open_files(pid: int) -> int:
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return 0


def _size_bytes(directory: Path) -> int:
    """The size of all files below ``directory``; ``os.walk`` skips directories that vanish meanwhile."""
    total = 0
    for place, _, names in os.walk(directory):
        for name in names:
            try:
                total += Path(place, name).stat().st_size
            except OSError:
                pass  # compacted away meanwhile
    return total


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a run, from ``from_s`` on: the maximum of each figure, and its latencies."""

    from_s: float
    rss_anon_mb: float
    open_files: int
    queue_mb: float
    p50_ms: float
    p99_ms: float


def quantile(ordered: Sequence[float], part: float) -> float:
    """The value that ``part`` (0 to 1) of the sorted ``ordered`` does not exceed."""
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * part))], 2)


def spans(samples: Sequence[Sample], waits_ms: Sequence[float], per_second: int) -> tuple[Span, ...]:
    """Cut a run into PARTS. ``waits_ms``: the delay of each message in the order of submission, ``per_second``."""
    whole_s = len(waits_ms) / per_second
    found = []
    for part in range(PARTS):
        begin_s, end_s = whole_s * part / PARTS, whole_s * (part + 1) / PARTS
        here = [sample for sample in samples if begin_s <= sample.at_s < end_s]
        waited = sorted(waits_ms[int(begin_s * per_second) : int(end_s * per_second)])
        if here and waited:
            found.append(
                Span(
                    from_s=round(begin_s, 1),
                    rss_anon_mb=max(sample.rss_anon_mb for sample in here),
                    open_files=max(sample.open_files for sample in here),
                    queue_mb=max(sample.queue_mb for sample in here),
                    p50_ms=quantile(waited, 0.50),
                    p99_ms=quantile(waited, 0.99),
                )
            )
    return tuple(found)


# ---- The run.

DELIVER_TIMEOUT_S = 300.0
WARM_UP = 200  # messages before the measurement starts
FLOOD_FROM = "127.0.0.9"  # the address of the other submitter
LOGIN = "bench:correct horse battery staple"

Progress = Callable[[int], None]  # is given the number of new deliveries


@dataclass(frozen=True, slots=True)
class Measurement:
    """The figures of one run, in which the receiver counted every recipient exactly once.

    ``cpu_ms`` is the CPU time of all processes of the relay per delivery, ``system_cpu_ms`` its part in the
    kernel, ``main_cpu_ms`` that of the relay's first process, ``tools_cpu_ms`` that of source and sink. ``fsyncs`` and ``written_kb`` are per message, -1 when not known. ``p50_ms``, ``p95_ms`` and
    ``p99_ms`` run from the 250 to the peer's final dot.
    """

    scenario: str
    relay: str
    deliveries: int
    seconds: float
    per_second: float
    cpu_ms: float
    system_cpu_ms: float
    main_cpu_ms: float
    tools_cpu_ms: float
    rss_anon_mb: float
    fsyncs: float
    written_kb: float
    mb_per_second: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    over_time: tuple[Span, ...] = ()  # of a soak run

    def row(self) -> dict[str, object]:
        """All fields as a dictionary, for JSON."""
        return asdict(self)


class RelayUnderTest(Protocol):
    """A relay under test."""

    name: str
    pid: int
    target: str

    def fsyncs(self) -> int:
        """The number of fsyncs so far, -1 when not known."""

    def stop(self) -> None:
        """Stop the relay."""


class SinkProcess:
    """The counting sink in its own process, which reports through files."""

    def __init__(self, directory: Path, scenario: Scenario) -> None:
        self.port = free_port()
        self._directory = directory
        arguments = [str(self.port), str(directory), f"--delay-ms={scenario.delay_ms}"]
        if scenario.tls:
            make_certificate(directory / "tls.pem", directory / "tls.key")
            arguments.append(f"--tls={directory / 'tls'}")
        self._process = CommandProcess(
            arguments, directory / "sink.log", module="zonemta_py.sink.counter"
        )
        self._process.wait_ready()
        self.pid = self._process.pid

    def recipients(self) -> int:
        """The number of recipients delivered so far."""
        try:
            return int((self._directory / "count").read_text() or 0)
        except (OSError, ValueError):
            return 0

    def stop(self) -> Deliveries:
        """Stop the sink and return its counts."""
        self._process.stop()
        return Deliveries.load(self._directory / "deliveries")


@dataclass(slots=True)
class Submitted:
    """The time and CPU of a source, and when each message was accepted (monotonic seconds)."""

    seconds: float
    cpu_seconds: float
    accepted_s: "array[float]"


def source(
    target: str, scenario: Scenario, messages: int, directory: Path, *, first: int, options: tuple[str, ...] = ()
) -> Submitted:  # fmt: skip
    """Run the source to its end. Raises LocalError when the relay refused a command or took too long."""
    times = directory / "accepted"
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
        *([f"--domains={scenario.domains}"] if scenario.domains else []),
        *([f"--login={LOGIN}"] if scenario.auth else []),
        *options,
    ]
    with (directory / "source.log").open("ab") as log:
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
        raise LocalError(f"the source failed: {(directory / 'source.log').read_text()[-500:]}")
    result = from_json(done.stdout)
    if result["failed"]:
        raise LocalError(f"{target} refused: {result['failed']}")
    accepted = array("d")
    accepted.frombytes(times.read_bytes())
    return Submitted(float(result["seconds"]), float(result["cpu_seconds"]), accepted)


def measure(
    scenario: Scenario,
    directory: Path,
    make: Callable[[Path, int], RelayUnderTest],
    on_progress: Progress,
) -> Measurement:
    """Warm up, run and wait for the last delivery. Raises LocalError unless each recipient arrived once.

    ``make(directory, sink_port)`` starts the relay.
    """
    sink = SinkProcess(directory, scenario)
    run = None
    try:
        relay = make(directory, sink.port)
        try:
            run = _Run(scenario, directory, sink, relay, on_progress)
            run.warm_up()
            run.go()
        finally:
            relay.stop()
    finally:
        deliveries = sink.stop()
    return run.result(deliveries)


class _Run:
    """The steps of a run, once relay and sink are ready."""

    def __init__(
        self, scenario: Scenario, directory: Path, sink: SinkProcess, relay: RelayUnderTest, on_progress: Progress
    ) -> None:  # fmt: skip
        self._scenario = scenario
        self._directory = directory
        self._sink = sink
        self._relay = relay
        self._on_progress = on_progress
        self._warm = min(WARM_UP, scenario.messages) if scenario.size < 1 << 20 else scenario.sessions

    def warm_up(self) -> None:
        """Submit and deliver the warm-up; then submit the flood, which is delivered during the run."""
        scenario = self._scenario
        source(self._relay.target, scenario, self._warm, self._directory, first=0)
        self._wait(self._warm * scenario.recipients, lambda _: None, 0)
        if scenario.flood:
            flood = Scenario("flood", "", scenario.flood, 30)
            options = (
                ("--sender=flood@flood.example",) if scenario.same_host else (f"--client={FLOOD_FROM}",)
            )
            first = (
                self._warm + scenario.messages
            ) * scenario.recipients  # after the measured recipients
            source(
                self._relay.target, flood, flood.messages, self._directory, first=first, options=options
            )

    def go(self) -> None:
        """Submit the messages of the scenario, wait for their delivery and measure."""
        scenario, relay, sink = self._scenario, self._relay, self._sink
        wanted = scenario.messages * scenario.recipients
        before = self._warm * scenario.recipients + scenario.flood
        cpu, fsyncs, written = cpu_of(relay.pid), relay.fsyncs(), written_bytes(relay.pid)
        sink_cpu_s, began_s = cpu_seconds(sink.pid), time.monotonic()
        sampler = Sampler(relay.pid, self._directory)
        paced = (f"--per-second={scenario.per_second}",) if scenario.per_second else ()
        first = self._warm * scenario.recipients
        self._submitted = source(
            relay.target, scenario, scenario.messages, self._directory, first=first, options=paced
        )
        self._wait(before + wanted, self._on_progress, before)
        self._took_s = time.monotonic() - began_s
        self._samples = sampler.stop()
        self._cpu_s = [now - before for now, before in zip(cpu_of(relay.pid), cpu, strict=True)]
        self._tools_cpu_s = cpu_seconds(sink.pid) - sink_cpu_s + self._submitted.cpu_seconds
        after = relay.fsyncs()
        self._fsyncs = (after - fsyncs) / scenario.messages if after >= 0 else -1.0
        self._written = (
            (written_bytes(relay.pid) - written) / scenario.messages if written >= 0 else -1.0
        )

    def _wait(self, wanted: int, on_progress: Progress, got: int) -> None:
        """Wait until the sink, which has ``got`` recipients, has ``wanted``."""
        end_s = time.monotonic() + DELIVER_TIMEOUT_S
        while time.monotonic() < end_s:
            now = self._sink.recipients()
            on_progress(max(0, now - got))
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
        user_s, system_s, main_s = self._cpu_s
        return Measurement(
            scenario=scenario.name,
            relay=self._relay.name,
            deliveries=wanted,
            seconds=round(self._took_s, 3),
            per_second=round(wanted / self._took_s, 1),
            cpu_ms=round((user_s + system_s) * 1000 / wanted, 4),
            system_cpu_ms=round(system_s * 1000 / wanted, 4),
            main_cpu_ms=round(main_s * 1000 / wanted, 4),
            tools_cpu_ms=round(self._tools_cpu_s * 1000 / wanted, 4),
            rss_anon_mb=max(sample.rss_anon_mb for sample in self._samples),
            fsyncs=round(self._fsyncs, 3),
            written_kb=round(self._written / 1000, 2) if self._written >= 0 else -1.0,
            mb_per_second=round(scenario.messages * scenario.size / self._took_s / 1e6, 1),
            p50_ms=quantile(waited_ms, 0.50),
            p95_ms=quantile(waited_ms, 0.95),
            p99_ms=quantile(waited_ms, 0.99),
            over_time=spans(self._samples, waits_ms, scenario.per_second) if scenario.soak else (),
        )


# ---- Results as bars: text for a terminal, or a picture by matplotlib (extra ``bench``).

WIDTH = 40  # characters of the longest bar of text
_BAR = 0.8  # of the width of a group


def bars(title: str, values: Sequence[tuple[str, float]], unit: str) -> str:
    """Bars of text: one line per value, the longest WIDTH characters wide."""
    most = max((value for _, value in values), default=0.0) or 1.0
    wide = max((len(name) for name, _ in values), default=0)
    lines = [title]
    for name, value in values:
        bar = "█" * max(1, round(WIDTH * value / most)) if value > 0 else ""
        lines.append(f"  {name:<{wide}}  {bar} {value:,.{'3g' if value < 100 else '0f'}} {unit}")
    return "\n".join(lines)


def save_picture(path: Path, results: Sequence[Measurement], titles: dict[str, str], note: str) -> None:
    """Draw rate and CPU, a group of bars for each scenario, into ``path`` (PNG, SVG or PDF by its suffix).

    Raises LocalError without matplotlib, or when the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise LocalError("a picture needs matplotlib: pip install 'zonemta_py[bench]'") from exc
    relays = list(dict.fromkeys(m.relay for m in results))
    scenarios = list(dict.fromkeys(m.scenario for m in results))
    figure = Figure(figsize=(2 + 2.2 * len(scenarios), 7), layout="constrained")
    rates, costs = figure.subplots(2, 1, sharex=True)
    for number, relay in enumerate(relays):
        own = {m.scenario: m for m in results if m.relay == relay}
        width = _BAR / len(relays)
        places = [at - _BAR / 2 + width * (number + 0.5) for at in range(len(scenarios))]
        for axes, name in ((rates, "per_second"), (costs, "cpu_ms")):
            values = [getattr(own[s], name) if s in own else 0 for s in scenarios]
            bars = axes.bar(places, values, width, label=relay)
            axes.bar_label(bars, [_short(value) for value in values], fontsize=8)
    rates.set_ylabel("deliveries/s")
    costs.set_ylabel("CPU ms per delivery")
    for axes in (rates, costs):
        axes.set_yscale("log")
        axes.grid(axis="y", alpha=0.3)
    costs.set_xticks(range(len(scenarios)), [titles[s].replace(", ", "\n") for s in scenarios])
    rates.legend()
    figure.supxlabel(note, fontsize=8)
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as exc:
        raise LocalError(f"{path}: {exc}") from exc


def _short(value: float) -> str:
    if not value:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
