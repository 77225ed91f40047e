"""Which destinations of a zone may send: with the real queue, limits, wait lists and scheduler, and no sessions."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kit.deadlines import until
from tests.kit.queue import accept, opened, settle
from zonemta_py.config.load import parse_config
from zonemta_py.config.schema import Config
from zonemta_py.core import clock
from zonemta_py.core.model import USUAL_KEY, Attempt, OutcomeKind, PoolKey
from zonemta_py.delivery.egress import Egress, read_egress
from zonemta_py.delivery.request import DeliveryResult
from zonemta_py.egress.admission import WorkerSlot
from zonemta_py.egress.limits import FREE, Permit
from zonemta_py.egress.message import LeasedMail, MessageEgress
from zonemta_py.egress.paths import EgressOrder, Limit
from zonemta_py.egress.providers import NOT_FOUND_S, Providers
from zonemta_py.egress.rules import ProviderReply
from zonemta_py.egress.warmup import DAY_MS
from zonemta_py.egress.zone import ZoneEgress
from zonemta_py.open_queue import mail_pools
from zonemta_py.queue.messages import Lease
from zonemta_py.queue.outcome import Outcome
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.upkeep.move import flush
from zonemta_py.schedule.scheduler import Scheduler
from zonemta_py.smtp.mx_order import NO_MX_ANSWER, MxAnswer

A, B = "192.0.2.1", "192.0.2.2"
POOLS = {"default": [{"address": A}], "other": [{"address": B}]}
FALLBACK = {"fallback_pool": "other", "fallback_after": 1}


class Zone:
    """A zone of ``queue`` whose workers do nothing by themselves."""

    def __init__(self, queue: Queue, config: Config) -> None:
        self.queue = queue
        queue.windows.set_pools(mail_pools(config))
        self.egress = Egress(queue, config)
        zone = config.zones["default"]
        self.admission = ZoneEgress("default", zone, self.egress, self._resolve, self.ready)
        self.scheduler = Scheduler(zone, 0.0, lambda _: None, admission=self.admission)

    async def _resolve(self, domain: str) -> MxAnswer:
        raise AssertionError(f"{domain} is known")

    def ready(self, destination: str) -> bool:
        has_mail = self.queue.windows.zone("default").has_mail(destination)
        if has_mail:
            answers = self.admission.provider_answers(destination)
            self.scheduler.ready(destination, clock.monotonic_s(), answers=answers)
        return has_mail

    def learn(self, domain: str, *, has_ipv6: bool = True) -> None:
        """The MX hosts of ``domain`` are found."""
        self.egress.learn(domain, MxAnswer(("mx.big.example",), True, has_ipv6))

    async def mail(self, domain: str, *users: str, has_ipv6: bool = True) -> None:
        """A message of each user, at a domain of the provider."""
        self.learn(domain, has_ipv6=has_ipv6)
        for user in users:
            await accept(self.queue, f"{user}@{domain}", user=user)
        self.ready(domain)

    def start(self) -> list[WorkerSlot]:
        """All workers that may start now, each with a lease and a session."""
        found = []
        while (slot := self.scheduler.next(clock.monotonic_s())) is not None:
            found.append(slot)
            name, window = slot.destination.name, self.queue.windows.zone("default")
            assert self.scheduler.next_lease(slot, clock.monotonic_s())
            assert self.queue.lease("default", name, 1, slot.pool_key) is not None
            self.scheduler.leased(slot, clock.monotonic_s(), more=window.has_mail(name))
            self.scheduler.session_opened(slot, clock.monotonic_s())
        return found

    def names(self) -> list[tuple[str, PoolKey | None]]:
        """The destinations and pools of the workers that may start now."""
        return [(slot.destination.name, slot.pool_key) for slot in self.start()]

    def fail(self) -> None:
        """The worker that may start next opens no session; its destination may be tried again at once."""
        slot = self.scheduler.next(clock.monotonic_s())
        assert slot is not None
        name = slot.destination.name
        assert self.scheduler.next_lease(slot, clock.monotonic_s())
        lease = self.queue.lease("default", name, 1, slot.pool_key)
        assert lease is not None
        self.scheduler.leased(slot, clock.monotonic_s(), more=False)
        self.scheduler.failed(slot.destination, 0.0, clock.monotonic_s(), "no session")
        self.queue.release(lease)
        self.egress.release(slot)
        self.scheduler.ended(slot, clock.monotonic_s(), has_mail=True)
        self.scheduler.empty(name)

    def end(self, slot: WorkerSlot, *, has_mail: bool) -> None:
        self.scheduler.session_ended(slot)
        if not has_mail:
            self.scheduler.empty(slot.destination.name)
        self.scheduler.ended(slot, clock.monotonic_s(), has_mail=has_mail)

    def configure(self, config: Config) -> None:
        """As a reload does."""
        self.queue.windows.set_pools(mail_pools(config))
        self.egress.configure(config, read_egress(config))
        self.admission.configure(config.zones["default"])
        self.scheduler.configure(config.zones["default"], clock.monotonic_s())


def configured(directory: Path, limits: dict[str, Any], **changes: Any) -> Config:
    table = {"providers": {"big": {"mx": ["*.big.example"], "limits": limits}}}
    (directory / "providers.yaml").write_text(yaml.safe_dump(table))
    whole = {
        "providers": {"file": str(directory / "providers.yaml"), "shipped": False},
        "shaping": {"shipped": False}, "pools": POOLS, "zones": {"default": {}}, **changes,
    }  # fmt: skip
    return parse_config(yaml.safe_dump(whole), directory / "z.yaml")


@asynccontextmanager
async def zone_of(directory: Path, limits: dict[str, Any], **changes: Any) -> AsyncIterator[Zone]:
    async with opened(directory, store="memory") as queue:
        zone = Zone(queue, configured(directory, limits, **changes))
        try:
            yield zone
        finally:
            zone.egress.close()


async def test_a_suspended_destination_gives_up_its_turn_at_a_limit(directory: Path) -> None:
    """An operator suspends the first of those that wait for a session: the others are served."""
    async with zone_of(directory, {"sessions": 1}) as zone:
        for domain in ("a.example", "b.example", "c.example"):
            await zone.mail(domain, "u")
        [slot] = zone.start()
        first, second = (name for name, _, _ in zone.admission.waiting())
        await zone.queue.suspended.suspend(f"domain:{first}", "wrong list")
        zone.egress.changed()
        assert zone.start() == []
        zone.end(slot, has_mail=False)
        assert zone.names() == [(second, USUAL_KEY)]
        assert [reason for _, _, reason in zone.admission.waiting()] == [
            f"domain {first} is suspended: wrong list"
        ]


async def test_what_waits_for_one_pool_keeps_its_place_while_another_is_served(directory: Path) -> None:
    """At the connections of the domain, too: `why` names its own limit, and old mail of it is given up."""
    zones = {"default": {"connections_per_domain": 1}}
    tenants = {"acme": {"users": ["ann"], "domains": ["x.example"], "pool": "other"}}
    async with zone_of(directory, {"sessions": 5}, zones=zones, tenants=tenants) as zone:
        await zone.queue.suspended.suspend(f"address:{B}", "test")
        await zone.mail("d.example", "bob", "bob")
        await accept(zone.queue, "r@d.example", user="ann", tenant="acme")
        zone.ready("d.example")
        [slot] = zone.start()
        assert slot.pool_key == USUAL_KEY
        zone.end(slot, has_mail=True)
        [slot] = zone.start()  # the other pool has the first turn now
        assert slot.pool_key == USUAL_KEY
        zone.ready("d.example")
        assert zone.start() == [], "the domain has one connection"
        waiting = [("d.example", PoolKey("other"), f"address {B} is suspended: test")]
        assert zone.admission.waiting() == waiting
        binding = zone.scheduler.binding("d.example", clock.monotonic_s(), PoolKey("other"))
        assert binding is not None
        assert binding.limit == "operator_suspension"
        assert not zone.admission.has_waiters(slot), "it would gain nothing"


async def test_old_mail_is_found_for_each_pool(directory: Path) -> None:
    """Also while all mail of the destination is suspended."""
    async with zone_of(directory, {}, zones={"default": FALLBACK}) as zone:
        await zone.mail("d.example", "a")
        held = zone.queue.lease("default", "d.example", 1)
        assert held is not None
        await settle(zone.queue, held, OutcomeKind.DEFERRED, due_ms=zone.queue.now() + 3_600_000)
        await flush(zone.queue)
        await zone.mail("d.example", "b")
        await zone.queue.suspended.suspend("domain:d.example", "test")
        zone.egress.changed()
        assert zone.start() == []
        assert {pool for _, pool, _ in zone.admission.waiting()} == {USUAL_KEY, PoolKey("other")}


async def deferred_from(zone: Zone, source: str, reply_class: str) -> None:
    """A message that was deferred once, from the address ``source``, and waits again."""
    await zone.mail("d.example", "a")
    held = zone.queue.lease("default", "d.example", 1)
    assert held is not None
    attempt = Attempt("rcpt", 451, "4.7.1", "later", source_ip=source, reply_class=reply_class)
    outcome = Outcome(held.recipients[0], OutcomeKind.DEFERRED, attempt, zone.queue.now() + 3_600_000)
    await zone.queue.settle(held, [outcome])
    await flush(zone.queue)
    zone.ready("d.example")


@pytest.mark.parametrize(("reply_class", "wanted", "other"), [("greylisted", A, B), ("blocked", B, A)])
async def test_mail_that_wants_one_address_waits_for_that(
    directory: Path, reply_class: str, wanted: str, other: str
) -> None:
    """While it has no room, at a wait list that names it; while it may not be used for long, mail leaves from the other one."""
    pools = {"default": [{"address": A}, {"address": B}]}
    async with zone_of(directory, {"sessions_per_address": 1}, pools=pools) as zone:
        part = PoolKey("", A, wanted == B)
        await deferred_from(zone, A, reply_class)
        taken = zone.egress.permits.take("big", wanted, zone.egress.now_ms())
        assert isinstance(taken, Permit)
        assert zone.start() == []
        [(name, pool, reason)] = zone.admission.waiting()
        assert (name, pool) == ("d.example", part)
        assert reason == f"1 of 1 sessions with big from {wanted} are in use"
        await zone.queue.suspended.suspend(f"address:{wanted}", "test")
        zone.egress.changed()
        [slot] = zone.start()
        assert (slot.pool_key, slot.permit.address) == (part, other)
        zone.end(slot, has_mail=False)
        await zone.queue.suspended.resume(f"address:{wanted}")
        await deferred_from(zone, A, reply_class)
        assert zone.start() == []
        zone.egress.end(taken, 0, 0)
        zone.egress.permits.release(taken)
        [slot] = zone.start()
        assert (slot.pool_key, slot.permit.address) == (part, wanted)


async def test_blocked_mail_waits_while_one_of_the_others_may_be_free_soon(directory: Path) -> None:
    """It goes back to the address that blocked it only when none of the others has room for long."""
    third = "192.0.2.3"
    pools = {"default": [{"address": A}, {"address": B}, {"address": third}]}
    async with zone_of(directory, {"sessions_per_address": 1}, pools=pools) as zone:
        await deferred_from(zone, A, "blocked")
        taken = zone.egress.permits.take("big", B, zone.egress.now_ms())
        assert isinstance(taken, Permit)
        zone.egress.permits.path("big", third).ceiling.paused_ms = zone.egress.now_ms() + 7_200_000
        assert zone.start() == []
        assert [pool for _, pool, _ in zone.admission.waiting()] == [PoolKey("", A, True)]
        zone.egress.permits.path("big", B).ceiling.paused_ms = zone.egress.now_ms() + 7_200_000
        zone.egress.changed()
        [slot] = zone.start()
        assert slot.permit.address == A


async def test_a_worker_whose_pool_is_removed_ends(directory: Path) -> None:
    async with zone_of(directory, {"sessions": 5}, zones={"default": FALLBACK}) as zone:
        await zone.queue.suspended.suspend(f"address:{A}", "test")
        await zone.mail("d.example", "a", "b")
        while held := zone.queue.lease("default", "d.example", 1):
            await settle(zone.queue, held, OutcomeKind.DEFERRED, due_ms=zone.queue.now() + 3_600_000)
        await flush(zone.queue)
        zone.ready("d.example")
        slots = zone.start()
        assert {slot.pool_key for slot in slots} == {PoolKey("other")}
        await accept(zone.queue, "new@d.example")
        zone.configure(configured(directory, {"sessions": 5}, pools={"default": POOLS["default"]}))
        zone.learn("d.example")
        for slot in slots:
            zone.egress.release(slot)
            assert not zone.scheduler.next_lease(slot, clock.monotonic_s())
            zone.end(slot, has_mail=True)
        assert zone.start() == []
        assert [pool for _, pool, _ in zone.admission.waiting()] == [USUAL_KEY]


async def test_what_can_only_be_reached_over_one_family_holds_up_no_other_mail(directory: Path) -> None:
    """The address of that family may not be used now; hosts of the same provider that have both wait for nothing."""
    pools = {"default": [{"address": A}, {"address": "2001:db8::1"}]}
    async with zone_of(directory, {"sessions_per_address": 2}, pools=pools) as zone:
        await zone.queue.suspended.suspend(f"address:{A}", "test")
        await zone.mail("old.example", "u", "v", has_ipv6=False)
        assert zone.start() == []
        await zone.mail("new.example", "u")
        assert zone.names() == [("new.example", USUAL_KEY)]
        assert [name for name, _, _ in zone.admission.waiting()] == ["old.example"]


async def test_a_warm_up_for_all_providers_has_room_again_for_each(directory: Path) -> None:
    """The number of the day is under way to a provider that cannot be reached: mail for another one may leave then."""
    warmup = [{"address": A, "begins": "2026-01-01", "daily": [1] * 3000}]
    (directory / "warmup.yaml").write_text(yaml.safe_dump(warmup))
    async with zone_of(directory, {}, warmup={"file": str(directory / "warmup.yaml")}) as zone:
        zone.egress.learn("far.example", MxAnswer(("mx.far.example",), True, True))
        await accept(zone.queue, "u@far.example")
        zone.ready("far.example")
        [slot] = zone.start()
        await zone.mail("d.example", "u")
        assert zone.start() == []
        zone.end(slot, has_mail=False)  # nothing was sent
        assert zone.names() == [("d.example", USUAL_KEY)]


async def test_the_end_of_a_session_comes_before_the_next_day(directory: Path) -> None:
    """One address of a pool is new and has sent its number of the day; the others are in use: that is why mail waits."""
    warmup = [{"address": B, "provider": "big", "begins": "2026-01-01", "daily": [1] * 3000}]
    (directory / "warmup.yaml").write_text(yaml.safe_dump(warmup))
    changes = {
        "warmup": {"file": str(directory / "warmup.yaml")},
        "zones": {"default": {"pool": "both"}},
    }
    changes["pools"] = {"both": [{"address": A}, {"address": B}]}
    async with zone_of(directory, {"sessions_per_address": 1}, **changes) as zone:
        domains = [f"d{n}.example" for n in range(9)]
        egress = (
            zone.egress
        )  # at noon: just before midnight, the next day comes before the end of a session
        egress._ahead_ms = (DAY_MS // 2 - egress.calendar_ms(egress.now_ms())) % DAY_MS
        for domain in domains:
            await zone.mail(domain, "u")
        served = [slot.destination.name for slot in zone.start()]
        assert len(served) == 2
        found = [zone.admission.binding(each, clock.monotonic_s(), USUAL_KEY) for each in domains]
        waiting = [each for each, name in zip(found, domains, strict=True) if name not in served]
        assert {each and (each.limit, each.until_s) for each in waiting} == {
            (Limit.PROVIDER_SESSIONS, 0.0)
        }


async def test_the_day_that_is_slowed_is_that_of_the_calendar(directory: Path) -> None:
    """The clock was set two days forward after the start."""
    warmup = [{"address": A, "begins": "2026-01-01", "daily": [9] * 3000}]
    (directory / "warmup.yaml").write_text(yaml.safe_dump(warmup))
    async with zone_of(directory, {}, warmup={"file": str(directory / "warmup.yaml")}) as zone:
        egress, ahead_ms = zone.egress, 2 * DAY_MS
        egress._ahead_ms = ahead_ms
        reply = ProviderReply("big", A, "default", "d.example", "blocked", 550, "5.7.1", "blocked")
        egress.shaper.replies([reply] * 9, "m", egress.now_ms())
        [warming] = egress.warmup.all()
        assert warming.state.slowed_day == (egress.now_ms() + ahead_ms) // DAY_MS


async def test_another_pool_does_not_slow_a_warm_up(directory: Path) -> None:
    warmup = [{"address": A, "begins": "2026-01-01", "daily": [9] * 3000}]
    (directory / "warmup.yaml").write_text(yaml.safe_dump(warmup))
    rule = {"name": "p", "class": "greylisted", "action": "pool", "pool": "other", "for": "1h"}
    (directory / "shaping.yaml").write_text(yaml.safe_dump({"rules": [rule]}))
    shaping = {"file": str(directory / "shaping.yaml"), "shipped": False}
    warm = {"file": str(directory / "warmup.yaml")}
    async with zone_of(directory, {}, warmup=warm, shaping=shaping) as zone:
        egress = zone.egress
        reply = ProviderReply("big", A, "default", "d.example", "greylisted", 451, "4.7.1", "later")
        events, _ = egress.shaper.replies([reply], "m", egress.now_ms())
        [reroute] = egress.shaper.engine.reroutes.values()
        assert len(events) == 1
        [warming] = egress.warmup.all()
        assert not warming.state.slowed_day
        assert egress.step_due_ms == reroute.until_ms
        egress.shaper.run_due(reroute.until_ms)
        assert not egress.shaper.engine.reroutes


async def test_no_new_session_from_an_address_is_waited_for(directory: Path) -> None:
    """An idle session with another host of the provider does not help: the limit of the address says until when."""
    pools = {"default": [{"address": A, "limits": {"connect_rate": "1/h"}}]}
    async with zone_of(directory, {"sessions": 5, "connect_rate": "100/h"}, pools=pools) as zone:
        egress = zone.egress
        await zone.mail("g.example", "u")
        [slot] = zone.start()
        egress.permits.begin(slot.permit, egress.now_ms(), 1)
        egress.end(slot.permit, 1, 0)
        zone.end(slot, has_mail=False)
        egress.permits.set_idle("big", A, 1)
        await zone.mail("d.example", "u")
        [slot] = zone.start()
        assert slot.permit.connects == 0
        egress.end(slot.permit, 0, 0)
        zone.admission.not_permitted(slot)
        zone.end(slot, has_mail=True)
        assert zone.start() == []
        assert egress.wait_lists.due_ms is not None
        assert egress.wait_lists.due_ms > egress.now_ms() + 3_000_000


async def test_a_destination_that_failed_holds_up_none_of_a_provider_that_answers(
    directory: Path,
) -> None:
    """It has the turn at the wait list while all places for destinations that fail are taken."""
    async with zone_of(directory, {"sessions": 1}, zones={"default": {"connections": 9}}) as zone:
        scheduler, dead = zone.scheduler, [f"dead{number}.example" for number in range(4)]
        zone.learn("x.example")
        for name in dead:
            zone.egress.learn(name, MxAnswer((f"mx.{name}",), True, True))
        for name in ("x.example", *dead):
            await accept(zone.queue, f"u@{name}", user="u")
            zone.ready(name)
            zone.fail()
        await zone.mail("g0.example", "u")
        [first] = zone.start()
        zone.egress.permits.begin(first.permit, zone.egress.now_ms(), 1)
        zone.ready("x.example")
        assert scheduler.next(clock.monotonic_s()) is None, "it waits"
        for name in dead:
            zone.ready(name)
        slot = scheduler.next(clock.monotonic_s())
        assert slot is not None
        assert slot.destination.name in dead
        assert scheduler.next(clock.monotonic_s()) is None, "the others have no place"
        await zone.mail("g1.example", "u")
        assert zone.start() == []
        zone.end(first, has_mail=False)
        zone.egress.release(first)
        assert zone.names() == [("x.example", USUAL_KEY)]


async def test_one_that_may_open_no_session_passes_its_turn_to_one_that_has_an_idle_one(
    directory: Path,
) -> None:
    limits = {"sessions_per_address": 2, "rate": "1/200ms", "connect_rate": "1/h"}
    async with zone_of(directory, limits) as zone:
        egress = zone.egress

        def sent(slot: WorkerSlot, opened: int) -> None:
            egress.permits.begin(slot.permit, egress.now_ms(), opened)
            egress.end(slot.permit, 1, 0)
            zone.end(slot, has_mail=False)

        await zone.mail("g0.example", "u")
        [slot] = zone.start()
        sent(slot, 1)
        egress.permits.set_idle("big", A, 1)
        found: list[WorkerSlot] = []

        def starts() -> bool:
            found.extend(zone.start())
            return bool(found)

        await zone.mail("d.example", "u")
        await until(starts, "the rate allows a message")
        slot = found.pop()
        for name in ("g1.example", "g2.example"):
            await zone.mail(name, "u")
        egress.end(slot.permit, 0, 0)
        zone.admission.not_permitted(slot)
        slot.established = False
        zone.scheduler.ended(slot, clock.monotonic_s(), has_mail=True)
        await zone.mail("d.example", "v")
        for name in ("g1.example", "g2.example"):
            await until(starts, name)
            slot = found.pop()
            assert slot.destination.name == name
            sent(slot, 0)
        assert zone.start() == []
        [(name, _, reason)] = zone.admission.waiting()
        assert (name, reason) == ("d.example", "no new session is allowed")
        binding = zone.scheduler.binding("d.example", clock.monotonic_s())
        assert binding is not None
        assert binding.until_s > clock.monotonic_s() + 3000


@pytest.mark.parametrize("what", ["zone:default", "provider:big"])
async def test_what_is_resumed_does_not_wait_behind_dead_destinations(
    directory: Path, what: str
) -> None:
    """They have places for destinations that have not answered only; what is known leaves with the others."""
    zones = {"default": {"connections": 30}}
    async with zone_of(directory, {}, zones=zones) as zone:
        await zone.mail("known.example", "u")
        [slot] = zone.start()
        zone.end(slot, has_mail=False)
        await zone.queue.suspended.suspend(what, "test")
        zone.egress.changed()
        for name in [f"dead{number}.example" for number in range(20)]:
            await zone.mail(name, "u")
        await zone.mail("known.example", "u")
        assert zone.scheduler.next(clock.monotonic_s()) is None
        await zone.queue.suspended.resume(what, None)
        zone.egress.changed()
        started = []
        while (found := zone.scheduler.next(clock.monotonic_s())) is not None:
            started.append(found.destination.name)
        assert "known.example" in started
        assert len(started) == 10 + 1, "a third of the connections, and that one"
        assert zone.admission.waiting() == []
        assert zone.scheduler.binding("dead0.example", clock.monotonic_s()) is not None


async def test_a_reload_keeps_what_is_known_of_domains(directory: Path) -> None:
    """A reply that comes after it is still one of the provider, and mail leaves with its limits without a look-up."""
    async with zone_of(directory, {"sessions": 1}) as zone:
        await zone.mail("d.example", "u")
        zone.configure(configured(directory, {"sessions": 2}))
        way = zone.admission.routes.of("d.example")
        assert way is not None
        assert way.provider == "big"


async def test_a_domain_that_was_not_found_is_looked_up_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its mail leaves: the name server may be back, and the domain one of a provider with limits."""
    async with zone_of(directory, {"sessions": 1}) as zone:
        await zone.mail("d.example", "u")
        zone.egress.providers = Providers(zone.egress.providers.table)
        zone.egress.learn("d.example", NO_MX_ANSWER)
        assert not zone.egress.must_look_up("d.example")
        later_s = clock.monotonic_s() + NOT_FOUND_S + 1
        monkeypatch.setattr(clock, "monotonic_s", lambda: later_s)
        assert zone.scheduler.next(later_s) is None
        assert "d.example" in zone.egress.look_ups
        binding = zone.admission.binding("d.example", later_s, USUAL_KEY)
        assert binding is not None
        assert binding.limit == "provider_look_up"


async def test_a_domain_without_hosts_has_its_turn_in_a_busy_zone(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One look-up for each turn, however late that comes: otherwise its mail would be looked up again and again."""
    zones = {"default": {"connections": 1}}
    async with zone_of(directory, {}, zones=zones) as zone:
        now_s = clock.monotonic_s()
        monkeypatch.setattr(clock, "monotonic_s", lambda: now_s)

        async def not_found(domain: str) -> MxAnswer:
            return NO_MX_ANSWER

        zone.admission._resolve = not_found
        await accept(zone.queue, "u@none.example")
        zone.ready("none.example")
        served: list[str] = []
        for _ in range(3):
            assert zone.scheduler.next(now_s) is None
            await until(lambda: "none.example" not in zone.egress.look_ups)
            now_s += 10 * NOT_FOUND_S  # others had the connection
            slot = zone.scheduler.next(now_s)
            assert slot is not None
            served.append(slot.destination.name)
            zone.end(slot, has_mail=True)
            now_s += 10 * NOT_FOUND_S
            zone.ready("none.example")
        assert served == ["none.example"] * 3


async def test_an_address_of_two_pools_has_the_limits_that_one_of_them_gives(directory: Path) -> None:
    limited, plain = {"address": A, "limits": {"sessions": 1}}, {"address": A}
    for pools in ({"default": [limited], "x": [plain]}, {"default": [plain], "x": [limited]}):
        async with zone_of(directory, {}, pools=pools) as zone:
            await zone.mail("d.example", "u", "v")
            assert len(zone.start()) == 1


async def test_a_connection_that_opened_no_session_counts_for_the_rate_of_new_ones(
    directory: Path,
) -> None:
    async with zone_of(directory, {"connect_rate": "1/h"}) as zone:
        await zone.mail("d.example", "u")
        slot = zone.scheduler.next(clock.monotonic_s())
        assert slot is not None
        assert slot.permit.connects == 1
        lease = zone.queue.lease("default", "d.example", 1, slot.pool_key)
        assert lease is not None
        messages = MessageEgress(zone.egress, zone.admission.routes, zone.admission.closed)
        decision = messages.undecided(mail_of(zone, lease))
        assert messages.report(slot, decision, DeliveryResult([], not_permitted=True, tried=True)).puts
        zone.queue.release(lease)
        zone.admission.not_permitted(slot)
        zone.scheduler.ended(slot, clock.monotonic_s(), has_mail=True)
        refused = zone.egress.permits.refusal("big", A, zone.egress.now_ms())
        assert refused is not None
        assert refused.limit is Limit.PROVIDER_CONNECT_RATE


def mail_of(zone: Zone, lease: Lease) -> LeasedMail:
    """The mail of a lease, as a worker names it."""
    record = lease.recipients[0].record
    pool_key = zone.queue.windows.pool_key(lease.zone, lease.destination, record)
    return LeasedMail(
        lease.active.id, lease.destination, record.domain, [0] * len(lease.recipients), pool_key,
        last_source=record.source, last_class=record.reply_class,
    )  # fmt: skip


def sent_in_a_new_session(zone: Zone, slot: WorkerSlot) -> None:
    """The message of the worker is sent, and its session is idle then."""
    permits, address = zone.egress.permits, slot.permit.address
    permits.begin(slot.permit, zone.egress.now_ms(), 1)
    zone.egress.end(slot.permit, 1, 0)
    zone.end(slot, has_mail=False)
    permits.set_idle("big", address, 1)


async def refused_alone(zone: Zone) -> None:
    """A destination that may open no session, while another host of its provider has an idle one."""
    await zone.mail("g.example", "u")
    [slot] = zone.start()
    sent_in_a_new_session(zone, slot)
    await zone.mail("d.example", "u", "v")
    slot = next(iter(zone.start()))
    assert slot.permit.connects == 0
    zone.egress.end(slot.permit, 0, 0)
    zone.admission.not_permitted(slot)
    slot.established = False
    zone.scheduler.ended(slot, clock.monotonic_s(), has_mail=True)


async def test_what_waits_alone_is_served_when_its_mail_leaves_another_way(directory: Path) -> None:
    """A rule sends the mail of the provider from another pool."""
    rule = {"name": "p", "class": "greylisted", "action": "pool", "pool": "other", "for": "1h"}
    (directory / "shaping.yaml").write_text(yaml.safe_dump({"rules": [rule]}))
    shaping = {"file": str(directory / "shaping.yaml"), "shipped": False}
    async with zone_of(directory, {"connect_rate": "1/h"}, shaping=shaping) as zone:
        await refused_alone(zone)
        assert zone.start() == []
        reply = ProviderReply("big", A, "default", "g.example", "greylisted", 451, "4.7.1", "later")
        zone.egress.shaper.replies([reply], "m", zone.egress.now_ms())
        assert [slot.permit.address for slot in zone.start()] == [B]


async def test_another_address_of_the_pool_opens_the_session(directory: Path) -> None:
    pools = {**POOLS, "default": [{"address": A}, {"address": B}]}
    async with zone_of(directory, {"connect_rate": "1/h"}, pools=pools) as zone:
        await zone.mail("g.example", "u")
        [slot] = zone.start()
        first = slot.permit.address
        sent_in_a_new_session(zone, slot)
        messages = MessageEgress(zone.egress, zone.admission.routes, zone.admission.closed)
        refused = 0
        for number in range(40):  # which address is taken first is drawn
            await zone.mail(f"d{number}.example", "u")
            [slot] = zone.start()
            zone.egress.end(slot.permit, 0, 0)
            if slot.permit.connects == 0:
                assert slot.permit.address == first
                refused += 1
                zone.admission.not_permitted(slot)
                await zone.mail(f"d{number}.example", "v")
                zone.end(slot, has_mail=True)
                window = zone.queue.windows.zone("default")
                found = zone.scheduler.next(clock.monotonic_s())
                assert found is not None
                slot = found
                zone.scheduler.next_lease(slot, clock.monotonic_s())
                lease = zone.queue.lease("default", f"d{number}.example", 1, slot.pool_key)
                assert lease is not None
                zone.scheduler.leased(
                    slot, clock.monotonic_s(), more=window.has_mail(slot.destination.name)
                )
                zone.scheduler.session_opened(slot, clock.monotonic_s())
                record = lease.recipients[0].record  # its last attempt was from the other address
                lease.recipients[0].record = record._replace(source=first, code=451, text="later")
                order = messages.decide(slot, mail_of(zone, lease)).order
                assert isinstance(order, EgressOrder)
                assert order.source == slot.permit.address
                zone.egress.end(slot.permit, 0, 0)
            assert slot.permit.address != first
            assert slot.permit.connects == 1
            zone.end(slot, has_mail=False)
        assert refused


async def test_a_session_of_its_own_ends_the_wait(directory: Path) -> None:
    """Another worker of the destination has one, and leaves it."""
    async with zone_of(directory, {"connect_rate": "2/h"}) as zone:
        egress, scheduler = zone.egress, zone.scheduler
        await zone.mail("g.example", "u")
        [slot] = zone.start()
        sent_in_a_new_session(zone, slot)
        await zone.mail("d.example", *"abcdef")
        one = scheduler.next(clock.monotonic_s())
        assert one is not None
        assert one.permit.connects == 1
        scheduler.next_lease(one, clock.monotonic_s())
        zone.queue.lease("default", "d.example", 1, one.pool_key)
        scheduler.leased(one, clock.monotonic_s(), more=True)
        egress.permits.begin(one.permit, egress.now_ms(), 1)
        scheduler.session_opened(one, clock.monotonic_s())
        egress.permits.path("big", A).open = 2  # that of the other host is open as well
        two = scheduler.next(clock.monotonic_s())
        assert two is not None
        egress.end(two.permit, 0, 0)
        zone.admission.not_permitted(two)
        scheduler.ended(two, clock.monotonic_s(), has_mail=True)
        assert scheduler.next(clock.monotonic_s()) is None
        egress.end(one.permit, 1, 0)
        zone.end(one, has_mail=True)
        egress.permits.set_idle("big", A, 2)
        assert "d.example" in [slot.destination.name for slot in zone.start()]


async def test_mail_that_comes_just_before_a_suspension_is_noticed_to_be_over(directory: Path) -> None:
    """It leaves the wait list by itself; all others leave when the time comes."""
    zones = {"default": {"connections": 900}}
    async with opened(directory, clock.now_ms, store="memory") as queue:
        zone = Zone(queue, configured(directory, {}, zones=zones))
        names = {f"d{number}.example" for number in range(12)}
        await zone.queue.suspended.suspend("provider:big", "test", zone.queue.now() + 100)
        zone.egress.changed()
        for name in sorted(names):
            await zone.mail(name, "u")
        assert zone.start() == []
        await until(lambda: "provider:big" not in zone.queue.suspended, "the end of the suspension")
        zone.ready("d5.example")
        started = {slot.destination.name for slot in zone.start()}

        def all_started() -> bool:
            started.update(slot.destination.name for slot in zone.start())
            return started == names

        await until(all_started, "the others")
        assert zone.egress.wait_lists.all() == []
        zone.egress.close()


async def test_a_zone_without_sessions_looks_no_host_up(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor delays the look-up of another zone, also while something is suspended: its agent knows of no MX hosts."""
    zones = {"default": {}, "box": {"transport": "blackhole"}}
    async with zone_of(directory, {}, zones=zones) as zone:
        config = configured(directory, {}, zones=zones)
        box = ZoneEgress("box", config.zones["box"], zone.egress, zone._resolve, lambda name: True)
        zone.egress.learn("new.example", NO_MX_ANSWER)
        later_s = clock.monotonic_s() + NOT_FOUND_S + 1
        monkeypatch.setattr(clock, "monotonic_s", lambda: later_s)
        await zone.queue.suspended.suspend(f"address:{B}", "test")
        assert zone.egress.must_look_up("new.example")
        assert box.admit("new.example") is not None
        assert zone.egress.must_look_up("new.example")


async def test_hosts_that_were_not_found_when_its_turn_came(directory: Path) -> None:
    """What the agent finds now is a provider whose limits were not asked: it sends nothing, and they are asked then."""
    async with zone_of(directory, {"rate": ["1/h"]}) as zone:
        message = MessageEgress(zone.egress, zone.admission.routes, zone.admission.closed)
        zone.egress.learn("d.example", NO_MX_ANSWER)
        await accept(zone.queue, "u@d.example", user="u")
        zone.ready("d.example")
        slot = zone.scheduler.next(clock.monotonic_s())
        assert slot is not None and slot.permit is FREE
        assert not zone.egress.asks_hosts(
            "d.example"
        )  # a reload may have emptied the resolver's cache since
        decision = message.decide(slot, LeasedMail("m", "d.example", "d.example", (0,)))
        assert decision.order is None and decision.asks_hosts and decision.lacks_hosts
        found = MxAnswer(("mx.big.example",), True, False)
        message.report(slot, decision, DeliveryResult([], not_permitted=True, hosts=found))
        zone.admission.not_permitted(slot)
        zone.scheduler.ended(slot, clock.monotonic_s(), has_mail=True)
        again = zone.scheduler.next(clock.monotonic_s())
        assert again is not None and again.permit.provider == "big"
        decision = message.decide(again, LeasedMail("m", "d.example", "d.example", (0,)))
        assert decision.order is not None and not decision.lacks_hosts
        zone.egress.release(again)
