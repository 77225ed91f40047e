"""The limits of sending as an operator sees and changes them: in a running relay, and in a queue whose relay is down."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from heapq import nlargest
from typing import Any, Protocol

from zonemta_py.config.plain import rate_text
from zonemta_py.config.providers import SMARTHOST
from zonemta_py.config.schema import Config
from zonemta_py.core import clock
from zonemta_py.core.errors import LocalError, UnknownName
from zonemta_py.core.model import ALL_PROVIDERS, PathKey
from zonemta_py.core.text import no_such
from zonemta_py.delivery.egress import Egress, read_egress
from zonemta_py.delivery.shaper import event_of, pace_put, read_stored, reroute_put, warmup_put
from zonemta_py.egress.controller import Controller, Pace, ShapingChange
from zonemta_py.egress.limits import ANY
from zonemta_py.egress.paths import EgressPath, RateWindows
from zonemta_py.egress.rules import OPERATOR, POOL, Reroute, RerouteKey
from zonemta_py.egress.shared import Puts
from zonemta_py.egress.sources import source_name
from zonemta_py.egress.warmup import DAY_MS, Warming, WarmUp
from zonemta_py.events.schema import Event, Shaped
from zonemta_py.queue.commit import WriteBatch
from zonemta_py.queue.queue import Queue
from zonemta_py.routing import DEQUEUE_TRANSPORT

# ---- rows for commands, the API, the page and metrics

ROWS_MAX = 300  # in metrics: a row costs 15 to 50 µs, and is some ten series


def path_rows(
    egress: Egress, provider: str = "", address: str = "", most: int = ROWS_MAX
) -> list[dict[str, object]]:
    """Each path from an address to a provider on which something is limited, under way, or was refused lately.

    An address with limits of its own has a row with the provider ALL_PROVIDERS as well. ``provider``, ``address``: only those of it.
    Of more than ``most`` paths those with the least mail are left out, and none that is lowered, paused or suspended before them.
    """
    _make_suspended(egress)
    now_ms, paces = egress.now_ms(), egress.shaper.controller.paces
    counts = {key: found for key, *found in egress.shaper.controller.counts(now_ms)}
    found = [
        path
        for path in egress.permits.paths()
        if path.address
        and provider in ("", path.provider or ALL_PROVIDERS)
        and address in ("", path.address)
    ]
    found = [path for path in found if _is_shown(egress, path, counts)]
    if len(found) > most:
        found = nlargest(most, found, lambda path: _weight(egress, path, counts, now_ms))
    waiting: Counter[str] = Counter()
    for wait_list in egress.wait_lists.all():
        waiting[wait_list.provider or wait_list.key.cause.removeprefix("provider:")] += len(
            wait_list.waiting
        )
    rows = []
    for path in found:
        key = path.provider, path.address
        attempts, refused = counts.get(key, (0, 0))
        stopped = egress.stopped(("provider", path.provider), ("address", path.address))
        warming = egress.warmup.of(path.address, path.provider) if egress.warmup else []
        total = egress.permits.path(path.provider, ANY) if path.provider else None
        rows.append(path_row(path, now_ms) | pace_row(paces.get(key)) | {
            "provider_sessions": total.sessions if total is not None else 0,
            "provider_sessions_max": total.most() if total is not None else None,
            "attempts": attempts, "refused": refused,
            "last_classes": list(egress.shaper.last_classes.get(key, ())),
            "suspended": stopped[1].reason if stopped else "",
            "waiting": waiting[path.provider] if path.provider else egress.wait_lists.waiting_for(path.address),
            "warmup": [warmup_row(each, egress.calendar_ms(now_ms)) for each in warming],
        })  # fmt: skip
    return rows


def _make_suspended(egress: Egress) -> None:
    """Make paths for suspended addresses and providers, also before any mail uses them."""
    for name in egress.queue.suspended.sending():
        kind, _, value = name.partition(":")
        if kind == "address":
            egress.permits.path("", value)
        elif kind == "provider":
            for each in {source_name(entry) for pool in egress.pools.values() for entry in pool}:
                egress.permits.path(value, each)


def _is_shown(egress: Egress, path: EgressPath, counts: Mapping[PathKey, Sequence[int]]) -> bool:
    if path.is_limited or egress.stopped(("provider", path.provider), ("address", path.address)):
        return True
    key = path.provider, path.address
    return bool(path.provider) and bool(
        path.sessions
        or any(counts.get(key, ()))
        or egress.shaper.last_classes.get(key)
        or (egress.warmup and any(each.schedule.provider for each in egress.warmup.of(*key[::-1])))
    )


def _weight(
    egress: Egress, path: EgressPath, counts: Mapping[PathKey, Sequence[int]], now_ms: int
) -> tuple[bool, int, int]:
    key, ceiling = (path.provider, path.address), path.ceiling
    stopped = egress.stopped(("provider", path.provider), ("address", path.address))
    needs_attention = (
        stopped is not None or ceiling.paused_ms > now_ms or key in egress.shaper.controller.paces
    )
    return needs_attention, sum(counts.get(key, ())), path.sessions


def warmup_rows(egress: Egress) -> list[dict[str, object]]:
    """Each schedule of an address that is new."""
    today_ms = egress.calendar_ms(egress.now_ms())
    return [warmup_row(each, today_ms) for each in egress.warmup.all()]


def path_row(path: EgressPath, now_ms: int) -> dict[str, object]:
    """The row of an address and a provider: what is under way between them, and what is allowed. Times are unix ms, 0 for none."""
    ceiling = path.ceiling
    return {
        "provider": path.provider or ALL_PROVIDERS,
        "address": path.address,
        "sessions": path.sessions,
        "idle": path.idle,
        "sessions_max": path.most(),
        "rates": _rates(path.messages, now_ms),
        "connect_rates": _rates(path.connects, now_ms),
        "pace_sessions": ceiling.sessions,
        "pace_rates": _rates(ceiling.messages, now_ms),
        "paused_until_ms": ceiling.paused_ms if ceiling.paused_ms > now_ms else 0,
        "cause": ceiling.reason,
    }


def pace_row(pace: Pace | None) -> dict[str, object]:
    """To how much the controller, or a rule, has lowered a path: messages a minute and sessions, and those of its limits.

    None: nothing is lowered.
    """
    return {
        "pace_per_min": None if pace is None else pace.rate,
        "full_per_min": None if pace is None else pace.top_rate,
        "full_sessions": None if pace is None else pace.top_sessions,
    }


_rate_text = lru_cache(1000)(rate_text)


def _rates(windows: RateWindows | None, now_ms: int) -> list[dict[str, object]]:
    if windows is None:
        return []
    return [
        {"rate": _rate_text(rate), "used": used, "of": rate.events}
        for rate, used in windows.used(now_ms)
    ]


def warmup_row(warming: Warming, now_ms: int) -> dict[str, object]:
    """How far the warm-up of an address is. ``allowed`` and ``left`` None: no limit any more.

    ``late_days``: with those of a pause.
    """
    day, state, schedule = now_ms // DAY_MS, warming.state, warming.schedule
    return {
        "address": schedule.address,
        "provider": schedule.provider,
        "begins": schedule.begins.isoformat(),
        "step": warming.step(day) + 1,
        "steps": len(schedule.daily),
        "allowed": warming.allowed(day),
        "sent": state.sent if state.day == day else 0,
        "left": warming.room(now_ms),
        "late_days": warming.late_days(day),
        "paused": bool(state.paused_day),
    }


# ---- changes

Row = dict[str, Any]


class HasEgress(Protocol):
    """A delivery service, whose limits are made when it starts."""

    @property
    def egress(self) -> Egress:
        """The limits of providers and addresses, as the running relay uses them."""


class EgressOperator:
    """The limits of sending as an operator sees and changes them; ``admin.relay_port.EgressView`` is the interface.

    ``delivery``: that of a running relay, whose limits are read and changed at once. None: no relay uses the queue, and each call loads
    what the files and the queue have of them.
    """

    def __init__(
        self, queue: Queue, config: Callable[[], Config], delivery: HasEgress | None = None
    ) -> None:
        self._queue = queue
        self._config = config
        self._delivery = delivery

    @property
    def _running(self) -> Egress | None:
        return self._delivery.egress if self._delivery is not None else None

    def _warmup(self) -> WarmUp:
        if (egress := self._running) is not None:
            return egress.warmup
        warmup = WarmUp()
        warmup.configure(read_egress(self._config()).schedules, read_stored(self._queue.store).warmups)
        return warmup

    def names(self, kind: str) -> Collection[str]:
        """The zones, providers or addresses of the configuration, and the providers that a running relay has met."""
        config, egress = self._config(), self._running
        if egress is None:
            return _names(kind, config, read_egress(config).table.providers)
        return _names(kind, config, [*egress.providers.table.providers, *egress.providers.names()])

    def smarthost_zones(self) -> list[str]:
        """The zones whose mail goes to a smarthost, whatever its domain."""
        zones = self._config().zones.items()
        return sorted(name for name, zone in zones if any(part.smarthost for _, part in zone.parts()))

    def changed(self) -> None:
        """Something was suspended or resumed."""
        if (egress := self._running) is not None:
            egress.changed()

    def rows(self, provider: str, address: str, most: int) -> list[Row]:
        """The rows of ``path_rows`` with ``reroutes``: the mail of which pools leaves from which other ones to the provider.

        Raises LocalError when no relay runs: nothing is under way.
        """
        egress = self._running
        if egress is None:
            raise LocalError("no relay is running; `zonemta serve` starts one")
        now_ms, found = egress.now_ms(), egress.shaper.engine.reroutes.items()
        return [
            row | {
                "reroutes": [
                    {"pool": pool, "to": each.pool, "until_ms": each.until_ms}
                    for (provider, pool), each in found
                    if provider == row["provider"] and each.until_ms > now_ms
                ]
            }
            for row in path_rows(egress, provider, address, most)
        ]  # fmt: skip

    def warmups(self) -> list[Row]:
        """A row for each schedule."""
        if (egress := self._running) is not None:
            return warmup_rows(egress)
        return [warmup_row(each, clock.now_ms()) for each in self._warmup().all()]

    async def pause_warmup(self, address: str, provider: str, *, paused: bool) -> list[Row]:
        """Pause or continue schedules. Raises LocalError when there is none, QueueUnavailable."""
        found, now_ms = _schedules(self._warmup(), address, provider), clock.now_ms()
        batch = _paused(found, now_ms, paused=paused)
        self.changed()
        await self._queue.commits.submit(batch)
        return [warmup_row(each, now_ms) for each in found]

    async def end_pace(self, provider: str, address: str) -> Row:
        """Forget a pace. Raises LocalError when there is none, QueueUnavailable."""
        key, egress = (provider, address), self._running
        if egress is not None:
            shaper, now_ms = egress.shaper, egress.now_ms()
            # Steps that were due before are recorded before: a replay takes them first.
            shaper.run_due(now_ms)
            change = _end(shaper.controller, key, now_ms)
            batch = _batch(*shaper.apply([change]))
        else:
            controller, now_ms = self._stored_controller(), clock.now_ms()
            steps = controller.advance(key, now_ms)
            change = _end(controller, key, now_ms)
            batch = _batch(map(event_of, [*steps, change]), [pace_put(key, None)])
        await self._queue.commits.submit(batch)
        return {"provider": change.provider, "address": change.address, "ended": change.before}

    def _stored_controller(self) -> Controller:
        config = self._config()
        controller, table = Controller(), read_egress(config).table
        controller.configure(config.shaping.controller, lambda name: table.settings(name).limits)
        controller.paces |= read_stored(self._queue.store).paces
        return controller

    async def end_reroute(self, provider: str, pool: str) -> Row:
        """Forget a reroute. Raises LocalError when there is none, QueueUnavailable."""
        if (egress := self._running) is not None:
            reroutes, now_ms = egress.shaper.engine.reroutes, egress.now_ms()
        else:
            reroutes, now_ms = read_stored(self._queue.store).reroutes, clock.now_ms()
        batch, row = _end_reroute(reroutes, provider, pool, now_ms)
        self.changed()
        await self._queue.commits.submit(batch)
        return row


def _names(kind: str, config: Config, providers: Iterable[str]) -> Collection[str]:
    match kind:
        case "zone":
            zones = config.zones.items()
            return {name for name, zone in zones if zone.transport != DEQUEUE_TRANSPORT}
        case "provider":
            return {SMARTHOST, *providers} - {"default"}
        case _:
            return {source_name(each) for pool in config.pools.values() for each in pool}


def _schedules(warmup: WarmUp, address: str, provider: str) -> list[Warming]:
    """Those of an address, or the one for ``provider``. Raises UnknownName."""
    found = [each for each in warmup.all() if each.key[0] == address]
    if not found:
        raise UnknownName(no_such("warm-up of", address, {each.key[0] for each in warmup.all()}))
    chosen = [each for each in found if provider in ("", each.key[1])]
    if not chosen:
        names = {each.key[1] or "all mail" for each in found}
        raise UnknownName(no_such(f"warm-up of {address} for", provider, names))
    return chosen


def _paused(found: Iterable[Warming], now_ms: int, *, paused: bool) -> WriteBatch:
    events: list[Event] = []
    puts: Puts = []
    for each in found:
        if bool(each.state.paused_day) == paused:
            continue
        if paused:
            each.pause(now_ms)
        else:
            each.resume(now_ms)
        words = ("continued", "paused") if paused else ("paused", "continued")
        events.append(
            Shaped(
                time_ms=now_ms, provider=each.key[1], address=each.key[0], what="warmup",
                before=words[0], after=words[1], cause=OPERATOR,
            )
        )  # fmt: skip
        puts.append(warmup_put(each))
    return _batch(events, puts)


def _batch(events: Iterable[Event], puts: Puts) -> WriteBatch:
    batch = WriteBatch()
    batch.put_latest(puts)
    for event in events:
        batch.record(event)
    return batch


def _end(controller: Controller, key: PathKey, now_ms: int) -> ShapingChange:
    change = controller.end(key, now_ms, OPERATOR)
    if change is None:
        raise LocalError(
            f"there is no pace of {key[1]} at {key[0]}; `zonemta shaping status` lists them"
        )
    return change


def _end_reroute(
    reroutes: dict[RerouteKey, Reroute], provider: str, pool: str, now_ms: int
) -> tuple[WriteBatch, Row]:
    found = reroutes.pop((provider, pool), None)
    if found is None or found.until_ms <= now_ms:
        raise LocalError(f"no rule moved the mail of pool {pool} to {provider}")
    event = Shaped(
        time_ms=now_ms, provider=provider, address="", what=POOL, before=found.pool, after=pool, cause=OPERATOR,
    )  # fmt: skip
    batch = _batch([event], [reroute_put((provider, pool), None)])
    return batch, {"provider": provider, "pool": pool, "ended": found.pool}
