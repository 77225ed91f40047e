"""What an operator sees and changes of the limits of sending: in a running relay, and in a queue whose relay is down."""

from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from zonemta_py.config.providers import SMARTHOST
from zonemta_py.config.schema import Config
from zonemta_py.core import clock
from zonemta_py.core.errors import LocalError, UnknownName
from zonemta_py.core.similar import no_such
from zonemta_py.delivery.egress import Egress, read_egress
from zonemta_py.delivery.egress_store import (
    Puts,
    pace_put,
    read_stored,
    reroute_put,
    warmup_put,
)
from zonemta_py.delivery.egress_view import path_rows, warmup_row, warmup_rows
from zonemta_py.delivery.shaper import event_of
from zonemta_py.events.schema import Event, Shaped
from zonemta_py.queue.batch import WriteBatch
from zonemta_py.queue.queue import Queue
from zonemta_py.routing import DEQUEUE_TRANSPORT
from zonemta_py.schedule.controller import Controller, ShapingChange
from zonemta_py.schedule.shaping import OPERATOR, POOL, Reroute, RerouteKey
from zonemta_py.schedule.sources import source_name
from zonemta_py.schedule.warmup import Warming, WarmUp

Row = dict[str, Any]


class HasEgress(Protocol):
    """A delivery service, whose limits are made when it starts."""

    @property
    def egress(self) -> Egress:
        """The limits of providers and addresses."""


class RunningEgress:
    """Of a running relay that delivers by ``delivery``."""

    def __init__(self, queue: Queue, delivery: HasEgress, config: Callable[[], Config]) -> None:
        self._queue = queue
        self._delivery = delivery
        self._config = config

    def names(self, kind: str) -> Collection[str]:
        """The zones, providers or addresses that there are."""
        providers = self._delivery.egress.providers
        return _names(kind, self._config(), [*providers.table.providers, *providers.names()])

    def smarthost_zones(self) -> list[str]:
        """The zones whose mail goes to a smarthost, whatever its domain."""
        return _smarthost_zones(self._config())

    def changed(self) -> None:
        """Something was suspended or resumed."""
        self._delivery.egress.changed()

    def rows(self, provider: str, address: str, most: int) -> list[Row]:
        """See ``path_rows``; ``reroutes``: the mail of which pools leaves from which other ones to the provider."""
        egress = self._delivery.egress
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
        """See ``egress_view.warmup_row``."""
        return warmup_rows(self._delivery.egress)

    async def pause_warmup(self, address: str, provider: str, *, paused: bool) -> list[Row]:
        """Pause or continue schedules. Raises LocalError when there is none, QueueUnavailable."""
        egress = self._delivery.egress
        found, now_ms = _schedules(egress.warmup, address, provider), clock.now_ms()
        batch = _paused(found, now_ms, paused=paused)
        egress.changed()
        await self._queue.commits.submit(batch)
        return [warmup_row(each, now_ms) for each in found]

    async def end_pace(self, provider: str, address: str) -> Row:
        """Forget a pace. Raises LocalError when there is none, QueueUnavailable."""
        egress = self._delivery.egress
        shaper, now_ms = egress.shaper, egress.now_ms()
        # Steps that were due before are recorded before: a replay takes them first.
        shaper.run_due(now_ms)
        change = _end(shaper.controller, provider, address, now_ms)
        await self._queue.commits.submit(_batch(*shaper.apply([change])))
        return _ended(change)

    async def end_reroute(self, provider: str, pool: str) -> Row:
        """Forget a reroute. Raises LocalError when there is none, QueueUnavailable."""
        egress = self._delivery.egress
        batch, row = _end_reroute(egress.shaper.engine.reroutes, provider, pool, egress.now_ms())
        egress.changed()
        await self._queue.commits.submit(batch)
        return row


class StoppedEgress:
    """Of a queue that no relay uses."""

    def __init__(self, queue: Queue, config: Config) -> None:
        self._queue = queue
        self._config = config

    def names(self, kind: str) -> Collection[str]:
        """The zones, providers or addresses of the configuration."""
        return _names(kind, self._config, read_egress(self._config).table.providers)

    def smarthost_zones(self) -> list[str]:
        """The zones whose mail goes to a smarthost, whatever its domain."""
        return _smarthost_zones(self._config)

    def changed(self) -> None:
        """Nothing waits for it."""

    def rows(self, provider: str, address: str, most: int) -> list[Row]:
        """Raises LocalError: nothing is under way."""
        raise LocalError("no relay is running; `zonemta serve` starts one")

    def _warmup(self) -> WarmUp:
        warmup = WarmUp()
        files, stored = read_egress(self._config), read_stored(self._queue.store)
        warmup.configure(files.schedules, stored.warmups)
        return warmup

    def warmups(self) -> list[Row]:
        """See ``egress_view.warmup_row``."""
        return [warmup_row(each, clock.now_ms()) for each in self._warmup().all()]

    async def pause_warmup(self, address: str, provider: str, *, paused: bool) -> list[Row]:
        """Pause or continue schedules. Raises LocalError when there is none, QueueUnavailable."""
        found, now_ms = _schedules(self._warmup(), address, provider), clock.now_ms()
        await self._queue.commits.submit(_paused(found, now_ms, paused=paused))
        return [warmup_row(each, now_ms) for each in found]

    async def end_pace(self, provider: str, address: str) -> Row:
        """Forget a pace. Raises LocalError when there is none, QueueUnavailable."""
        controller, table, now_ms = Controller(), read_egress(self._config).table, clock.now_ms()
        controller.configure(self._config.shaping.controller, lambda name: table.settings(name).limits)
        controller.paces |= read_stored(self._queue.store).paces
        steps = controller.advance((provider, address), now_ms)
        change = _end(controller, provider, address, now_ms)
        puts = [pace_put((provider, address), None)]
        await self._queue.commits.submit(_batch(map(event_of, [*steps, change]), puts))
        return _ended(change)

    async def end_reroute(self, provider: str, pool: str) -> Row:
        """Forget a reroute. Raises LocalError when there is none, QueueUnavailable."""
        stored = read_stored(self._queue.store).reroutes
        batch, row = _end_reroute(stored, provider, pool, clock.now_ms())
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


def _smarthost_zones(config: Config) -> list[str]:
    return sorted(
        name for name, zone in config.zones.items() if any(part.smarthost for _, part in zone.parts())
    )


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
            each.go_on(now_ms)
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


def _end(controller: Controller, provider: str, address: str, now_ms: int) -> ShapingChange:
    change = controller.end((provider, address), now_ms, OPERATOR)
    if change is None:
        raise LocalError(
            f"there is no pace of {address} at {provider}; `zonemta shaping status` lists them"
        )
    return change


def _ended(change: ShapingChange) -> Row:
    return {"provider": change.provider, "address": change.address, "ended": change.before}


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
