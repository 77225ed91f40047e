"""13. A clock that was wrong for a minute: later mail has its true age, and nothing waits for a year."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kit.deadlines import until
from tests.kit.queue import Clock, accept, begin, lease, make_store, opened, settle
from zonemta_py.config.load import parse_config
from zonemta_py.config.schema import Config
from zonemta_py.config.sending import PoolAddress
from zonemta_py.config.tenants import ClientLimits, IntakeLimits, LimitRules
from zonemta_py.config.values import HOUR, Rate
from zonemta_py.config.warmup import WarmupSchedule
from zonemta_py.core import clock as core_clock
from zonemta_py.core.model import OutcomeKind
from zonemta_py.delivery.egress import Egress
from zonemta_py.delivery.egress_operator import warmup_rows
from zonemta_py.delivery.shaper import read_stored
from zonemta_py.egress.limits import Permit
from zonemta_py.egress.paths import Limit, Refusal
from zonemta_py.egress.rules import ProviderReply
from zonemta_py.egress.waiting import WaitKey, ZoneWaits
from zonemta_py.egress.warmup import EPOCH, Warming, WarmupState
from zonemta_py.open_queue import open_queue
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import born
from zonemta_py.queue.queue import Queue, QueueOptions
from zonemta_py.queue.submitters.domains import VerificationResult
from zonemta_py.queue.submitters.limits import LimitedClient, Use
from zonemta_py.queue.upkeep.operator import Operator
from zonemta_py.queue.upkeep.startup import begin_boot
from zonemta_py.relay.domain_verifier import DomainVerifier

DAY_MS = 86_400_000
A, B = "192.0.2.1", "192.0.2.2"
MOVE = {
    "name": "move",
    "class": "mailbox_full",
    "provider": "big",
    "action": "pool",
    "pool": "other",
    "for": "1h",
}
STORES = pytest.mark.parametrize("store", ["leveldb", "filesystem"])


def queue_of(directory: Path, clock: Clock, store: str) -> Queue:
    opened = make_store(directory, store)
    return Queue(
        opened,
        begin_boot(opened),
        QueueOptions(longest_delay_ms=3 * DAY_MS),
        lambda zone, domain: domain,
        now=clock,
    )


@STORES
async def test_the_age_of_mail_after_the_clock_was_ahead(directory: Path, store: str) -> None:
    """Its id is a year ahead, because ids do not go back; its age is not, also after a restart."""
    clock = Clock()
    right_ms = clock.ms
    async with opened(directory, clock, store=store) as queue:
        clock.ms += 365 * DAY_MS
        await accept(queue, "a@x.example")
        clock.ms = right_ms + 60_000
        message = await accept(queue, "b@y.example")
        assert keys.created_ms(message) > right_ms + 300 * DAY_MS
    async with opened(directory, clock, store=store) as queue:
        active = lease(queue, "y.example").active
        assert born(active.meta, active.id) == right_ms + 60_000


async def test_usual_mail_stores_no_second_time(directory: Path) -> None:
    async with opened(directory) as queue:
        await accept(queue, "a@x.example")
        assert lease(queue, "x.example").active.meta.born_ms == 0


@STORES
async def test_what_is_due_in_a_year_is_tried_at_the_next_start(
    directory: Path, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Mail that was deferred while the clock was wrong; held mail and usual deferrals stay."""
    clock = Clock()
    queue = queue_of(directory, clock, store)
    await begin(queue)
    for number, due_ms in enumerate((clock.ms + 365 * DAY_MS, clock.ms + 2 * DAY_MS)):
        await accept(queue, f"a@d{number}.example")
        await settle(queue, lease(queue, f"d{number}.example"), OutcomeKind.DEFERRED, due_ms=due_ms)
    await Operator(queue).hold(await accept(queue, "a@held.example"))
    await queue.close()
    queue = queue_of(directory, clock, store)
    await begin(queue)
    await until(lambda: queue.lease("default", "d0.example", 1), "the stranded recipient")
    assert "1 recipients were due after any possible delay" in caplog.text
    assert queue.lease("default", "d1.example", 1) is None
    assert queue.lease("default", "held.example", 1) is None
    await queue.close()


@pytest.mark.parametrize(("retry", "days"), [("{}", 3), ("{give_up_after: 10d}", 11), ("{policy: function, function: m.f}", 400)])  # fmt: skip
def test_the_longest_delay(directory: Path, retry: str, days: int) -> None:
    """That of the zone with the greatest age; a function may ask for any."""
    text = f"queue: {{directory: {directory}}}\nzones: {{default: {{}}, slow: {{retry: {retry}}}}}\n"
    queue = open_queue(parse_config(text, directory / "z.yaml"))
    assert queue.deferral._longest_delay_ms == days * DAY_MS
    queue.store.close()


@pytest.mark.parametrize("restarted", [False, True])
async def test_what_was_submitted_while_the_clock_was_ahead(directory: Path, restarted: bool) -> None:
    """It counts for no longer than the window of the limit."""
    clock = Clock()
    limits = IntakeLimits(messages=(Rate(1, HOUR),))
    rules = LimitRules({"acme": limits}, ClientLimits())
    client, use = LimitedClient("acme", "ann", "192.0.2.1"), Use(0, 1, 1, 100)
    right_ms = clock.ms
    async with opened(directory, clock) as queue:
        queue.limits.configure(rules)
        clock.ms += 365 * DAY_MS
        assert not queue.limits.charge(client, use).refusal
        clock.ms = right_ms
        if not restarted:
            assert queue.limits.charge(client, use).refusal
            clock.ms += 3_700_000
            assert not queue.limits.charge(client, use).refusal
    async with opened(directory, clock) as queue:
        queue.limits.configure(rules)
        clock.ms += 3_700_000
        assert not queue.limits.charge(client, use).refusal


def sending(directory: Path) -> Config:
    """A provider with a limit and a rule, and an address that is new."""
    files: dict[str, Any] = {
        "providers": {"providers": {"big": {"domains": ["big.example"], "limits": {"rate": ["1/h"]}}}},
        "shaping": {
            "rules": [{"name": "stop", "class": "blocked", "action": "suspend", "for": "2h"}, MOVE]
        },
        "warmup": [{"address": B, "begins": "2027-01-15", "daily": [10, 20]}],
    }
    for name, content in files.items():
        (directory / f"{name}.yaml").write_text(yaml.safe_dump(content))
    whole = {
        "providers": {"file": "providers.yaml", "shipped": False},
        "shaping": {"file": "shaping.yaml", "shipped": False},
        "warmup": {"file": "warmup.yaml"},
        "pools": {"default": [{"address": A}, {"address": B}], "other": [{"address": A}]},
    }
    return parse_config(yaml.safe_dump(whole), directory / "z.yaml")


@asynccontextmanager
async def egress_of(directory: Path, clock: Clock, store: str) -> AsyncIterator[Egress]:
    async with opened(directory, clock, store=store) as queue:
        egress = Egress(queue, sending(directory))
        try:
            yield egress
        finally:
            egress.close()


@STORES
async def test_what_was_sent_while_the_clock_was_ahead(
    directory: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the next start no limit is used up, no address paused and no mail moved to another pool until next year."""
    clock = Clock()
    monkeypatch.setattr(core_clock, "now_ms", clock)
    clock.ms += 365 * DAY_MS
    async with egress_of(directory, clock, store) as egress:
        permit = egress.permits.take("big", A, egress.now_ms())
        assert isinstance(permit, Permit)
        egress.permits.begin(permit, egress.now_ms(), 1)
        puts = egress.end(permit, 1, 1)
        assert puts
        egress.permits.release(permit)
        for name, reply_class in ("mailbox_full", "mailbox_full"), ("blocked", "blocked"):
            about = ProviderReply("big", A, "default", "big.example", reply_class, 451, "4.7.1", name)
            puts += egress.shaper.replies([about], name, clock.ms)[1]
        egress.shaper.write([], puts)
        assert egress.rerouted_pool("big", "default") == "other"
    clock.ms -= 365 * DAY_MS
    async with egress_of(directory, clock, store) as egress:
        assert egress.rerouted_pool("big", "default") == "default"
        assert egress.refusal("big", PoolAddress(A), egress.now_ms()) is None
        await egress.forget_old()
        assert read_stored(egress.queue.store).reroutes == {}
        prefix = keys.META_SENDING
        assert list(egress.queue.store.keys(prefix, keys.end_of(prefix))) == []
    clock.ms += 60_000
    async with egress_of(directory, clock, store) as egress:
        assert egress.refusal("big", PoolAddress(A), egress.now_ms()) is None


async def test_a_pause_while_the_clock_is_set(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The relay notices it within minutes: no pause, and no other pool, is for longer than the rule says."""
    clock = Clock()
    monkeypatch.setattr(core_clock, "now_ms", clock)
    clock.ms -= 365 * DAY_MS

    def reply(egress: Egress, reply_class: str) -> None:
        about = ProviderReply("big", A, "default", "big.example", reply_class, 451, "4.7.1", "later")
        egress.shaper.replies([about], "m", egress.steady_ms(clock.ms))

    async with egress_of(directory, clock, "memory") as egress:
        clock.ms += 365 * DAY_MS
        for reply_class in ("blocked", "mailbox_full"):
            reply(egress, reply_class)
        assert egress.rerouted_pool("big", "default") == "other"
        await egress.forget_old()
        assert egress.rerouted_pool("big", "default") == "default"
        assert egress.shaper.controller.paces["big", A].paused_ms <= egress.now_ms()
        reply(egress, "blocked")
        wait_ms = egress.shaper.controller.paces["big", A].paused_ms - egress.now_ms()
        assert 7_100_000 < wait_ms <= 7_201_000


def test_a_warm_up_while_the_clock_was_ahead() -> None:
    """A pause, and a day that was slowed, are those of today; what was sent counts for today."""
    schedule = WarmupSchedule(B, date(2026, 11, 26), (10, 20, 40, 80))
    today_ms = (date(2026, 11, 26).toordinal() - EPOCH) * DAY_MS
    paused, slowed = (Warming(schedule, WarmupState()) for _ in range(2))
    paused.pause(today_ms + 2 * DAY_MS)
    paused.count(7, today_ms + 2 * DAY_MS)
    assert slowed.slow(today_ms + 2 * DAY_MS)
    for each in (paused, slowed):
        each.not_after(today_ms // DAY_MS)
    assert paused.room(today_ms) == 10 - 7
    assert paused.allowed(today_ms // DAY_MS + 3) == 20, "it stays where it is"
    assert slowed.slow(today_ms + DAY_MS)
    before = slowed.state
    slowed.not_after(today_ms // DAY_MS + 1)
    assert slowed.state == before


async def test_the_day_of_a_warm_up_after_the_clock_was_set(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is that of the clock as it is now; what waits for the first day tries again."""
    clock = Clock()  # 2027-01-15 08:00 UTC
    monkeypatch.setattr(core_clock, "now_ms", clock)
    right_ms = clock.ms
    clock.ms -= 400 * DAY_MS
    async with egress_of(directory, clock, "memory") as egress:
        now_ms = egress.now_ms()
        found = egress.take("big", [PoolAddress(B)], now_ms)
        assert isinstance(found, Refusal)
        assert (found.limit, found.until_ms - now_ms) == (Limit.WARMUP, 400 * DAY_MS - now_ms % DAY_MS)
        tried = list[str]()
        zone_waits = ZoneWaits(egress.wait_lists, lambda name: not tried.append(name))
        zone_waits.wait("d.example", WaitKey("z:default", "big"), found, 0)
        await egress.forget_old()
        assert tried == []
        clock.ms = right_ms
        await egress.forget_old()
        assert tried == ["d.example"]
        assert isinstance(egress.take("big", [PoolAddress(B)], egress.now_ms()), Permit)
        [row] = warmup_rows(egress)
        assert (row["step"], row["allowed"]) == (1, 10)
        clock.ms += DAY_MS
        await egress.forget_old()
        [row] = warmup_rows(egress)
        assert (row["step"], row["left"]) == (2, 20 - 1), "one is under way"


async def test_a_domain_that_was_verified_while_the_clock_was_ahead(directory: Path) -> None:
    """It is looked up at the next start, and not when that time has come."""
    tenant = {"users": ["ann"], "domains": ["d.example"], "verify": "dns"}
    config = parse_config(yaml.safe_dump({"tenants": {"acme": tenant}}), directory / "z.yaml")
    clock = Clock()
    async with opened(directory, clock) as queue:
        verifier = DomainVerifier(queue, config)
        right_ms = clock.ms
        for ahead_ms, is_due in (-1000, False), (-2 * DAY_MS, True), (365 * DAY_MS, True):
            clock.ms = right_ms + ahead_ms
            await queue.verified.note([VerificationResult("acme", "d.example", True)])
            clock.ms = right_ms
            assert verifier._is_due("acme", "d.example") is is_due
