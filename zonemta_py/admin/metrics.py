"""``/metrics`` for Prometheus and OpenMetrics, ``/livez`` and ``/readyz``: what the relay counts anyway, read when it is asked for.

States of ``LoopWatch``: made ─ start ─▶ a tick each TICK_S ─ stop ─▶ ended. ``RelayCollector`` has no state but the time of its start.

Invariants:

- There are at most 10,000 series, so that the mail does not decide how many: zones, destinations, tenants, providers, refusals and
  classes beyond the limits (``…_MAX``) are left out, or added up as OTHER.
- Nothing is counted here but the delays of the loop: the counts are those of the queue's ``traffic``, ``census`` and ``commits``.
- Of paths from an address to a provider those come first that need most attention (``admin.egress.level``).
- The routes need no token on a loopback address, and are answered whatever else is under way (``is_quick``).
- Every metric is in docs/metrics.md; a test compares.

Callers: ``relay.admin_service`` makes ``MetricSources`` and the routes, and starts and stops the ``LoopWatch``.

Example: ``curl http://127.0.0.1:PORT/metrics`` has lines such as ``zonemta_queue_recipients{state="waiting",zone="default"} 42.0``.
"""

import asyncio
import os
import resource
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web
from prometheus_client import exposition
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector, CollectorRegistry

from zonemta_py.admin.egress import is_lowered, level
from zonemta_py.admin.http_server import HttpRoute
from zonemta_py.admin.reasons import Depths, SuspendedMail
from zonemta_py.admin.relay_port import ZoneView
from zonemta_py.admin.requests import Row
from zonemta_py.admin.suspensions import suspended_names
from zonemta_py.admin.tokens import Role, Token
from zonemta_py.core import clock
from zonemta_py.core.clock import monotonic_s
from zonemta_py.core.counters import Histogram
from zonemta_py.core.model import AGES_MIN, STATES, OutcomeKind
from zonemta_py.core.runtime import open_descriptors, process_use
from zonemta_py.queue.census import OTHER
from zonemta_py.queue.queue import Queue

# ---- Health: ``/livez`` is about the event loop, ``/readyz`` about new mail.

TICK_S = 0.25
STUCK_S = 10.0  # a loop that did not turn for so long does not live
DELAYS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

Check = Callable[[], str]  # why the relay is not ready; empty when it is


class LoopWatch:
    """Measures how late the event loop calls a timer. ``delays``: in seconds."""

    def __init__(self) -> None:
        self.delays = Histogram(DELAYS_S)
        self._due_s = self._ticked_s = monotonic_s()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin; needs a running loop."""
        self._loop = asyncio.get_running_loop()
        self._due_s = monotonic_s() + TICK_S
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        now_s = self._ticked_s = monotonic_s()
        self.delays.add(max(0.0, now_s - self._due_s))
        self._due_s = now_s + TICK_S
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def stop(self) -> None:
        """Measure no more; idempotent."""
        if self._timer is not None:
            self._timer.cancel()

    def stuck_s(self) -> float:
        """Seconds since the loop last turned, if these are more than STUCK_S; else 0."""
        ago_s = monotonic_s() - self._ticked_s
        return ago_s if ago_s > STUCK_S else 0.0


def health_routes(watch: LoopWatch, checks: Sequence[Check]) -> list[HttpRoute]:
    """``/livez`` and ``/readyz``, which need no token on a loopback address."""

    async def live(request: web.Request, token: Token | None) -> web.Response:
        stuck_s = watch.stuck_s()
        if stuck_s:
            return web.json_response({"live": False, "stuck_s": round(stuck_s, 1)}, status=503)
        return web.json_response({"live": True})

    async def ready(request: web.Request, token: Token | None) -> web.Response:
        reasons = [reason for check in checks if (reason := check())]
        body = {"ready": not reasons, "reasons": reasons}
        return web.json_response(body, status=503 if reasons else 200)

    return [
        HttpRoute("GET", "/livez", live, Role.READ, is_local=True, is_quick=True),
        HttpRoute("GET", "/readyz", ready, Role.READ, is_local=True, is_quick=True),
    ]


# ---- The metrics of sending: what is used of the limits of providers, and how far warm-ups are. Pure.
#
# Of paths from an address to a provider those PATHS_MAX that need most attention, then have most attempts, so that neither
# the mail nor the number of providers decides how many series there are.

PATHS_MAX = 500
RATES_MAX = 1000
SHAPING_CLASSES_MAX = 1000
WARMUPS_MAX = 500
PATH_LABELS = ("provider", "address")
WARMUP = ("address", "provider")

Values = list[tuple[tuple[str, ...], float]]  # of labels, and the number


class SeriesFamily(NamedTuple):
    """A gauge with its series."""

    name: str
    help_text: str
    labels: tuple[str, ...]
    values: Values


def shaping_series(rows: Sequence[Row], warmups: Sequence[Row]) -> Iterator[SeriesFamily]:
    """Series of ``zonemta_provider_…`` and ``zonemta_warmup_…`` from rows of paths and warm-ups."""
    first = sorted(rows, key=lambda row: (level(row), -row["attempts"]))[:PATHS_MAX]
    paths = {(row["provider"], row["address"]): row for row in first}
    yield SeriesFamily(
        "zonemta_provider_sessions", "Sessions with a provider that are in use.", PATH_LABELS,
        [(path, row["sessions"]) for path, row in paths.items()],
    )  # fmt: skip
    yield SeriesFamily(
        "zonemta_provider_sessions_max", "As many as there may be, where there is a limit.", PATH_LABELS,
        [(path, row["sessions_max"]) for path, row in paths.items() if row["sessions_max"] is not None],
    )  # fmt: skip
    yield SeriesFamily(
        "zonemta_provider_rate_used_ratio", "How much of a rate is used, from 0 to 1.", (*PATH_LABELS, "rate"),
        [each for path, row in paths.items() for each in _rates(path, row)][:RATES_MAX],
    )  # fmt: skip
    yield SeriesFamily(
        "zonemta_provider_paused", "1 while nothing is sent: paused by replies, or suspended by an operator.", PATH_LABELS,
        [(path, int(bool(row["paused_until_ms"] or row["suspended"]))) for path, row in paths.items()],
    )  # fmt: skip
    yield SeriesFamily(
        "zonemta_provider_pace_ratio", "The messages a minute to which sending is lowered, of those of the limits.", PATH_LABELS,
        [
            (path, row["pace_per_min"] / max(1, row["full_per_min"]))
            for path, row in paths.items() if is_lowered(row)
        ],
    )  # fmt: skip
    yield SeriesFamily(
        "zonemta_provider_refused_recent",
        "Replies of the last interval of the controller that refuse or defer mail for reasons of the sender.", PATH_LABELS,
        [(path, row["refused"]) for path, row in paths.items()],
    )  # fmt: skip
    yield SeriesFamily(
        "zonemta_provider_last_refusals", "The last five refusals and deferrals, by their class.", (*PATH_LABELS, "class"),
        [each for path, row in paths.items() for each in _shaping_classes(path, row)][:SHAPING_CLASSES_MAX],
    )  # fmt: skip
    yield SeriesFamily(
        "zonemta_provider_waiting", "Destinations that wait for a limit.", ("provider",),
        [((name,), count) for name, count in {row["provider"]: row["waiting"] for row in paths.values()}.items()],
    )  # fmt: skip
    yield from _warmup_series(warmups)


def _shaping_classes(path: tuple[str, str], row: Row) -> Iterator[tuple[tuple[str, ...], float]]:
    counts: Counter[str] = Counter(row["last_classes"])
    for name, count in sorted(counts.items()):
        yield (*path, name), count


def _rates(path: tuple[str, str], row: Row) -> Iterator[tuple[tuple[str, ...], float]]:
    for kind, name in (("", "rates"), ("connect ", "connect_rates")):
        for each in row[name]:
            yield (*path, kind + each["rate"]), each["used"] / each["of"]


def _warmup_series(warmups: Sequence[Row]) -> Iterator[SeriesFamily]:
    known = [((row["address"], row["provider"]), row) for row in warmups]
    known.sort(key=lambda item: (item[1]["allowed"] is None, -item[1]["late_days"], -item[1]["sent"]))
    del known[WARMUPS_MAX:]
    yield SeriesFamily(
        "zonemta_warmup_sent", "Recipients of today (UTC) from an address with a warm-up.", WARMUP,
        [(path, row["sent"]) for path, row in known],
    )  # fmt: skip
    yield SeriesFamily(
        "zonemta_warmup_allowed", "As many as the warm-up allows today, until its last day.", WARMUP,
        [(path, row["allowed"]) for path, row in known if row["allowed"] is not None],
    )  # fmt: skip
    yield SeriesFamily(
        "zonemta_warmup_late_days", "By how many days the warm-up is late.", WARMUP,
        [(path, row["late_days"]) for path, row in known if row["allowed"] is not None],
    )  # fmt: skip


# ---- metrics

ZONES_MAX = 50
DESTINATIONS_MAX = 50
TENANTS_MAX = 50
REFUSALS_MAX = 60
CLASSES_MAX = 500
SUSPENDED_MAX = 500


@dataclass(frozen=True, slots=True)
class MetricSources:
    """Sources of the metrics. ``pids``: of the processes, by role. ``lag_s``: of the event log.

    ``paths`` and ``warmups``: rows of ``delivery.egress_operator``.
    """

    version: str
    queue: Queue
    watch: LoopWatch
    zones: Mapping[str, ZoneView]
    sessions_in: Callable[[], int]
    lag_s: Callable[[], float]
    pids: Callable[[], Mapping[str, list[int]]]
    directory: Path
    reserve_bytes: int
    paths: Callable[[], Sequence[Row]]
    warmups: Callable[[], Sequence[Row]]


class RelayCollector(Collector):
    """Makes the metrics of a relay."""

    def __init__(self, sources: MetricSources) -> None:
        self._sources = sources
        self._began_s = clock.now_ms() / 1000

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, as they are now; called once per request."""
        yield from self._relay()
        yield from self._intake()
        yield from self._delivery()
        yield from self._shaping()
        yield from self._depths()
        yield from self._suspended()
        yield from self._storage()
        yield from self._processes()

    def _relay(self) -> Iterator[Metric]:
        info = GaugeMetricFamily("zonemta_info", "The version of the relay.", labels=["version"])
        info.add_metric([self._sources.version], 1)
        yield info
        yield _gauge(
            "zonemta_start_time_seconds", "When the relay was started (unix time).", self._began_s
        )
        help_text = "How late the event loop called a timer."
        yield _histogram("zonemta_loop_delay_seconds", help_text, {(): self._sources.watch.delays}, [])

    def _intake(self) -> Iterator[Metric]:
        traffic = self._sources.queue.traffic
        yield _counter(
            "zonemta_messages_accepted", "Messages that were answered with 250.", traffic.messages
        )
        yield _by_label(
            CounterMetricFamily, "zonemta_recipients_accepted", "Recipients of accepted messages.", "zone",
            _largest(traffic.accepted, ZONES_MAX),
        )  # fmt: skip
        yield _counter(
            "zonemta_unknown_zones", "Messages whose header asked for a zone that there is not.",
            self._sources.queue.unusable_fields.unknown_zones,
        )  # fmt: skip
        yield _histogram(
            "zonemta_message_size_bytes", "Sizes of accepted messages.", {(): traffic.sizes}, []
        )
        refused = CounterMetricFamily(
            "zonemta_rejected", "Commands and messages that were refused.", labels=["command", "code"]
        )
        most = Counter(traffic.rejected).most_common(REFUSALS_MAX)
        for (command, code), count in most:
            refused.add_metric([command, str(code)], count)
        yield refused
        yield _gauge(
            "zonemta_sessions_in", "Open SMTP sessions of clients.", self._sources.sessions_in()
        )

    def _delivery(self) -> Iterator[Metric]:
        traffic, zones = self._sources.queue.traffic, self._zone_names()
        outcomes = CounterMetricFamily(
            "zonemta_outcomes", "Recipients by the outcome of an attempt, and the class of the reply (0: none).",
            labels=["zone", "outcome", "reply_class"],
        )  # fmt: skip
        summed: Counter[tuple[str, str, int]] = Counter()
        for (zone, kind, reply_class), count in traffic.outcomes.items():
            summed[zones.get(zone, OTHER), kind.value, reply_class] += count
        for (zone, outcome, reply_class), count in summed.items():
            outcomes.add_metric([zone, outcome, str(reply_class)], count)
        yield outcomes
        yield _classes(traffic.classes, zones)
        for name, help_text, by_zone in (
            ("zonemta_attempt_seconds", "How long attempts took.", traffic.attempt_s),
            ("zonemta_delivery_seconds", "From acceptance to delivery.", traffic.delivery_s),
        ):
            known: dict[tuple[str, ...], Histogram]
            known = {(zone,): found for zone, found in by_zone.items() if zone in zones}
            yield _histogram(name, help_text, known, ["zone"])
        yield _by_label(
            CounterMetricFamily, "zonemta_sessions_opened", "Sessions that were opened with other servers.",
            "zone", _largest(traffic.sessions, ZONES_MAX),
        )  # fmt: skip
        open_now = {name: view.sessions for name, view in self._sources.zones.items()}
        yield _by_label(
            GaugeMetricFamily, "zonemta_sessions_out", "Sessions with other servers that are in use.", "zone",
            _largest(open_now, ZONES_MAX),
        )  # fmt: skip

    def _zone_names(self) -> dict[str, str]:
        """The zones that have series of their own."""
        zones = self._sources.queue.census.zones()
        names = sorted(self._sources.zones, key=lambda name: -sum(zones.get(name, ())))[:ZONES_MAX]
        return {name: name for name in names}

    def _shaping(self) -> Iterator[Metric]:
        for found in shaping_series(self._sources.paths(), self._sources.warmups()):
            made = GaugeMetricFamily(found.name, found.help_text, labels=found.labels)
            for labels, value in found.values:
                made.add_metric(labels, value)
            yield made

    def _depths(self) -> Iterator[Metric]:
        queue, zones = self._sources.queue, self._zone_names()
        depths = Depths(queue.census, queue.windows, SuspendedMail(queue.suspended, self._sources.zones))
        waiting = GaugeMetricFamily(
            "zonemta_queue_recipients", "Recipients in the queue.", labels=["zone", "state"]
        )
        unreachable = GaugeMetricFamily(
            "zonemta_destinations_unreachable", "Destinations that do not answer.", labels=["zone"]
        )
        large: list[tuple[str, str, int]] = []
        for zone in zones:
            found = depths.zone(zone)
            for state in STATES:
                waiting.add_metric([zone, state], found[state])
            unreachable.add_metric([zone], len(queue.windows.zone(zone).unreachable()))
            largest = queue.census.largest(zone, DESTINATIONS_MAX)
            large += [(zone, name, row[-1]) for name, row in largest]
        yield waiting
        yield unreachable
        ages = GaugeMetricFamily(
            "zonemta_queue_age_recipients", "Recipients by age: up to this many minutes, and more than the bound before.",
            labels=["zone", "minutes"],
        )  # fmt: skip
        for zone, counts in depths.ages(queue.now()).items():
            for minutes, count in zip((*map(str, AGES_MIN), "+Inf"), counts, strict=True):
                if zone in zones:
                    ages.add_metric([zone, minutes], count)
        yield ages
        destinations = GaugeMetricFamily(
            "zonemta_destination_recipients", "Recipients of the largest destinations.",
            labels=["zone", "destination"],
        )  # fmt: skip
        for zone, name, count in sorted(large, key=lambda row: -row[2])[:DESTINATIONS_MAX]:
            destinations.add_metric([zone, name], count)
        yield destinations
        yield _by_label(
            GaugeMetricFamily, "zonemta_tenant_recipients", "Recipients of the largest tenants.", "tenant",
            _largest(queue.census.tenants(), TENANTS_MAX),
        )  # fmt: skip
        counting = int(not queue.census.is_complete)
        yield _gauge(
            "zonemta_queue_counting", "1 while mail of before the start is being counted.", counting
        )

    def _suspended(self) -> Iterator[Metric]:
        suspended = suspended_names(self._sources.queue.suspended)[:SUSPENDED_MAX]
        by_operator = GaugeMetricFamily(
            "zonemta_suspended_by_operator",
            "1 for what an operator has suspended.",
            labels=["kind", "name"],
        )
        for kind, name in suspended:
            by_operator.add_metric([kind, name], 1)
        yield by_operator

    def _storage(self) -> Iterator[Metric]:
        sources, commits = self._sources, self._sources.queue.commits
        help_text = "How long writes of the queue took, fsync included."
        yield _histogram("zonemta_write_seconds", help_text, {(): commits.write_s}, [])
        yield _counter(
            "zonemta_transitions", "Transitions of messages that are on disk.", commits.batches
        )
        writable = int(commits.failure is None)
        yield _gauge("zonemta_queue_writable", "0 when nothing can be written any more.", writable)
        yield _gauge(
            "zonemta_event_log_lag_seconds",
            "Age of the oldest event that is not in the event log yet.",
            sources.lag_s(),
        )
        try:
            stat = os.statvfs(sources.directory)
        except OSError:
            return
        free = stat.f_bavail * stat.f_frsize
        yield _gauge("zonemta_disk_free_bytes", "Free space of the queue's disk.", free)
        help_text = "Below it new mail is refused (queue.min_free_disk)."
        yield _gauge("zonemta_disk_reserve_bytes", help_text, sources.reserve_bytes)

    def _processes(self) -> Iterator[Metric]:
        count = GaugeMetricFamily("zonemta_processes", "Processes of the relay.", labels=["role"])
        resident = GaugeMetricFamily(
            "zonemta_process_resident_bytes",
            "Memory of the processes, without pages of files.",
            labels=["role"],
        )
        cpu = CounterMetricFamily(
            "zonemta_process_cpu_seconds", "CPU time of the processes.", labels=["role"]
        )
        for role, pids in self._sources.pids().items():
            used = [found for pid in pids if (found := process_use(pid)) is not None]
            count.add_metric([role], len(used))
            resident.add_metric([role], sum(memory for memory, _ in used))
            cpu.add_metric([role], sum(seconds for _, seconds in used))
        yield from (count, resident, cpu)
        descriptors = open_descriptors()
        if descriptors is None:
            return
        yield _gauge("zonemta_open_descriptors", "File descriptors of the queue's process.", descriptors)
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        yield _gauge(
            "zonemta_max_descriptors", "The limit of file descriptors of the queue's process.", most
        )


def metric_routes(sources: MetricSources) -> list[HttpRoute]:
    """``/metrics``, which needs no token on a loopback address."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(RelayCollector(sources))

    async def metrics(request: web.Request, token: Token | None) -> web.Response:
        encode, media_type = exposition.choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={"Content-Type": media_type})

    return [HttpRoute("GET", "/metrics", metrics, Role.READ, is_local=True, is_quick=True)]


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help_text, value=value)


def _counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(name, help_text, value=value)


def _classes(found: Counter[tuple[str, OutcomeKind, str]], zones: Mapping[str, str]) -> Metric:
    made = CounterMetricFamily(
        "zonemta_failures", "Recipients that were not delivered, by the class of the reply.",
        labels=["zone", "outcome", "class"],
    )  # fmt: skip
    summed: Counter[tuple[str, str, str]] = Counter()
    for (zone, kind, reply_class), count in found.items():
        summed[zones.get(zone, OTHER), kind.value, reply_class] += count
    for labels, count in summed.most_common(CLASSES_MAX):
        made.add_metric(labels, count)
    return made


def _by_label(
    family: Any, name: str, help_text: str, label: str, values: Iterable[tuple[str, float]]
) -> Metric:
    made = family(name, help_text, labels=[label])
    for key, value in values:
        made.add_metric([key], value)
    found: Metric = made
    return found


def _histogram(
    name: str, help_text: str, found: Mapping[tuple[str, ...], Histogram], labels: list[str]
) -> Metric:
    made = HistogramMetricFamily(name, help_text, labels=labels or None)
    for values, histogram in found.items():
        made.add_metric(list(values), histogram.cumulative(), histogram.total)
    return made


def _largest(values: Mapping[str, int], most: int) -> list[tuple[str, float]]:
    """The largest values, and the sum of the others as OTHER."""
    ranked = Counter(values).most_common()
    rest = sum(count for _, count in ranked[most:])
    return [*ranked[:most], (OTHER, rest)] if rest else [*ranked[:most]]
