"""The workers of a zone on a real queue: the decision after a delivery, and what each one leads to."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.delivery.agents import (
    DELIVERED,
    NO_SESSION,
    Answer,
    ScriptedAgent,
    all_delivered,
    no_session,
)
from tests.kit.deadlines import scaled, until
from tests.kit.queue import accept, events, everything, opened
from zonemta_py.config.load import parse_config
from zonemta_py.config.values import Percent, Rate, Seconds
from zonemta_py.config.zones import Retry, Zone
from zonemta_py.core import clock
from zonemta_py.core.model import USUAL_KEY, Attempt
from zonemta_py.delivery import zone_workers
from zonemta_py.delivery.report_composer import DeliveryContext
from zonemta_py.delivery.request import DeliveryRequest, DeliveryResult, RequestContext
from zonemta_py.delivery.worker import LeaseResult, Next, decide_next
from zonemta_py.delivery.zone_workers import ZoneWorkers
from zonemta_py.queue.commit import CommitFuture
from zonemta_py.queue.format.keys import (
    DEFERRED,
    SPILL,
    WAITING,
    chunk_key,
    end_of,
    mark_key,
    waiting_key,
)
from zonemta_py.queue.queue import Queue
from zonemta_py.routing import make_router
from zonemta_py.smtp.mx_order import NO_MX_ANSWER, MxAnswer
from zonemta_py.storage.interface import Store

ZONE = Zone(retry=Retry(delays=(Seconds(600),), jitter=Percent(0)))


# ---- the decision


@pytest.mark.parametrize(
    ("result", "suspended", "expected"),
    [
        (LeaseResult(CommitFuture()), False, Next.CONTINUE),
        (LeaseResult(CommitFuture()), True, Next.RESUME),
        (LeaseResult(CommitFuture(), NO_SESSION), False, Next.SUSPEND),
        (LeaseResult(CommitFuture(), NO_SESSION), True, Next.SUSPEND),
        (LeaseResult(CommitFuture(), at_connection_limit=True), False, Next.LEARN_LIMIT),
        (LeaseResult(CommitFuture(), at_connection_limit=True), True, Next.LEARN_LIMIT),
    ],
)
def test_what_follows_a_delivery(result: LeaseResult, suspended: bool, expected: Next) -> None:
    assert decide_next(result, suspended=suspended) is expected


# ---- the workers


class Stage:
    """A queue, the workers of its zone, and the agents that they made."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = answers
        self.agents: list[ScriptedAgent] = []
        self.listening = True
        self.queue: Queue
        self.workers: ZoneWorkers

    def make_agent(self, name: str, zone: Zone) -> ScriptedAgent:
        self.agents.append(ScriptedAgent(*self.answers))
        return self.agents[-1]

    def on_ready(self, zone: str, destination: str, low_volume: bool) -> None:
        if self.listening:
            self.workers.ready(destination, low_volume=low_volume)

    @contextmanager
    def before_the_workers(self) -> Iterator[None]:
        """The workers learn of the mail that is accepted here at the end."""
        self.listening = False
        yield
        self.listening = True
        self.workers.ready_all()

    @property
    def delivered(self) -> list[str]:
        return [address for request in self.agents[-1].requests for address in request.recipients]

    def count(self, space: bytes) -> int:
        return len(list(self.queue.store.keys(space, end_of(space))))

    async def idle(self) -> None:
        def is_idle() -> bool:
            return self.workers.scheduler.active == 0 and self.workers.look_ups == 0

        await until(is_idle, "the end of every worker")


@asynccontextmanager
async def staged(
    directory: Path, *answers: Answer, zone: Zone = ZONE, make_agent: Any = None, **options: Any
) -> AsyncIterator[Stage]:
    stage = Stage(*answers)
    config = parse_config("hostname: relay.example\n", directory / "z.yaml")
    async with opened(
        directory, clock.now_ms, store="memory", on_ready=stage.on_ready, **options
    ) as queue:
        stage.queue = queue
        context = DeliveryContext(queue, config, "relay.example", make_router(config))
        stage.workers = ZoneWorkers("default", zone, context, make_agent or stage.make_agent)
        try:
            yield stage
        finally:
            await stage.workers.close(1)


async def test_all_mail_is_delivered_and_the_workers_end(directory: Path) -> None:
    async with staged(directory) as stage:
        for number in range(50):
            await accept(stage.queue, f"{number}@a.example", f"{number}@b.example")
        await until(lambda: everything(stage.queue.store) == [], "an empty queue")
        await stage.idle()
        assert len(stage.delivered) == len(set(stage.delivered)) == 100


async def test_idle_limits_leave_room_for_the_workers(directory: Path) -> None:
    """Open sessions, in use or idle, stay within the connections of zone and destination."""
    zone = replace(ZONE, connections=5, connections_per_domain=2)
    async with staged(directory, zone=zone) as stage:
        await accept(stage.queue, "x@a.example")
        await until(lambda: stage.delivered, "the delivery")
        assert stage.agents[0].requests[0].idle_limits == (4, 1)


async def test_a_destination_without_sessions_is_unreachable(directory: Path) -> None:
    """One attempt; other mail for it waits on disk, unattempted, until an operator or the time resumes it."""
    zone = replace(ZONE, connections_per_domain=1)
    async with staged(directory, no_session, no_session, all_delivered, zone=zone) as stage:
        with stage.before_the_workers():
            for number in range(5):
                await accept(stage.queue, f"{number}@a.example")
        await until(lambda: stage.count(DEFERRED) == 1, "the first failure")
        await stage.idle()
        assert stage.count(WAITING) == 4
        assert stage.workers.describe("a.example").endswith("connection timed out")
        assert stage.workers.describe("b.example") == ""
        assert len(stage.agents[0].requests) == 1
        stage.workers.probe("b.example")
        assert len(stage.agents[0].requests) == 1
        stage.workers.probe(None)
        await until(lambda: stage.count(DEFERRED) == 2, "the failure of the probe")
        await stage.idle()
        assert len(stage.agents[0].requests) == 2, "one probe, by one worker"
        stage.workers.probe("a.example")
        await until(lambda: stage.count(WAITING) == 0, "the delivery after the third probe")
        assert stage.workers.describe("a.example") == ""


async def test_a_probe_before_the_spilled_mail_is_on_disk(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds no mail to try; what is written then is tried without another probe."""
    zone = replace(ZONE, connections_per_domain=1)
    async with staged(directory, no_session, all_delivered, zone=zone) as stage:
        with stage.before_the_workers():
            for number in range(5):
                await accept(stage.queue, f"{number}@a.example")
        set_unreachable = stage.queue.windows.set_unreachable

        def set_and_probe(zone: str, destination: str) -> None:
            set_unreachable(zone, destination)
            asyncio.get_running_loop().call_soon(stage.workers.probe, None)

        monkeypatch.setattr(stage.queue.windows, "set_unreachable", set_and_probe)
        await until(lambda: stage.count(WAITING) == 0, "the delivery of the others")


async def test_the_end_of_a_suspension(directory: Path) -> None:
    """By itself, after the first delay of the retry policy."""
    zone = replace(ZONE, retry=replace(ZONE.retry, delays=(Seconds(0.2),)))
    async with staged(directory, no_session, all_delivered, zone=zone) as stage:
        with stage.before_the_workers():
            await accept(stage.queue, "x@a.example")
            await accept(stage.queue, "y@a.example")
        await until(lambda: everything(stage.queue.store) == [], "the delivery of both")
        assert stage.workers.describe("a.example") == ""


async def test_old_mail_of_a_suspended_destination_expires(directory: Path) -> None:
    """A probe that fails expires the old mail on disk with its failure, without an attempt for each."""
    retry = replace(ZONE.retry, give_up_after=Seconds(0))
    zone = replace(ZONE, retry=retry, connections_per_domain=1)
    async with staged(directory, no_session, zone=zone) as stage:
        with stage.before_the_workers():
            for number in range(6):
                await accept(stage.queue, f"{number}@a.example", sender="")
        await stage.idle()
        assert stage.count(WAITING) == 5, "those in the window are spilled first"
        await until(lambda: stage.count(SPILL) == 5, "the spill of the others")
        stage.workers.probe("a.example")
        await until(lambda: everything(stage.queue.store) == [], "the end of all")
        names = [event["event"] for event in events(stage.queue.store)]
        assert names.count("expired") == 6
        assert len(stage.agents[0].requests) == 2


async def test_every_sender_behind_a_suspended_destination_is_warned(directory: Path) -> None:
    """Once ``warn_after`` is over: one attempt was made, the others are deferred with its failure."""
    retry = replace(ZONE.retry, warn_after=Seconds(0))
    zone = replace(ZONE, retry=retry, connections_per_domain=1)

    def dead(request: DeliveryRequest) -> DeliveryResult:
        return no_session(request) if request.domain == "a.example" else all_delivered(request)

    async with staged(directory, dead, zone=zone) as stage:
        with stage.before_the_workers():
            for number in range(6):
                await accept(stage.queue, f"{number}@a.example", sender=f"s{number}@sender.example")
        await stage.idle()
        await until(lambda: stage.count(SPILL) == 5, "the spill of the others")
        why = stage.workers.why("a.example")
        assert why is not None
        assert (why.name, why.key) == ("unreachable", "zones.default.retry")
        assert why.until_ms > clock.now_ms() + 200_000
        assert stage.workers.why("b.example") is None
        stage.workers.probe("a.example")
        await until(lambda: stage.count(DEFERRED) == 6, "the deferral of all")
        warned = [f"s{number}@sender.example" for number in range(6)]
        await until(lambda: sorted(set(stage.delivered) & set(warned)) == warned, "six reports")
        assert [r.domain for r in stage.agents[0].requests].count("a.example") == 2
        found = [e for e in events(stage.queue.store) if e["event"] == "deferred"]
        assert [e["attempt"] for e in found] == [1] * 6


async def test_a_connection_limit_is_learned(directory: Path) -> None:
    """The mail stays, and the destination gets as many sessions as it accepted."""

    def full(request: DeliveryRequest) -> DeliveryResult:
        return DeliveryResult([NO_SESSION], NO_SESSION, has_idle=True)

    async with staged(directory, full, all_delivered) as stage:
        await accept(stage.queue, "x@a.example")
        await until(lambda: everything(stage.queue.store) == [], "the delivery")
        assert [event["event"] for event in events(stage.queue.store)] == ["accepted", "delivered"]
        assert len(stage.agents[0].requests) == 2


async def test_a_defect_in_an_agent_defers(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with staged(directory, lambda request: ValueError("a defect"), all_delivered) as stage:
        await accept(stage.queue, "x@a.example")
        await until(lambda: stage.count(DEFERRED) == 1, "the deferral")
        await accept(stage.queue, "y@a.example")
        await until(lambda: stage.delivered[-1] == "y@a.example", "the next message")
        assert "an internal error in the delivery of" in caplog.text


def delete(store: Store, key: bytes) -> None:
    store.write(store.batch([(key, None)], sync=False))


async def test_an_unreadable_message_does_not_stop_the_others(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with staged(directory, cache=0) as stage:
        with stage.before_the_workers():
            damaged = await accept(stage.queue, "x@a.example")
            await accept(stage.queue, "y@a.example")
            delete(stage.queue.store, mark_key(damaged))
        await until(lambda: stage.delivered == ["y@a.example"], "the other message")
        await stage.idle()
        assert f"not delivered: {damaged}" in caplog.text
        await until(lambda: stage.count(WAITING) == 1, "the settle of the other")


async def test_a_damaged_body_is_deferred(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with staged(directory, cache=0) as stage:
        with stage.before_the_workers():
            damaged = await accept(stage.queue, "x@a.example", body=b"x" * 200_000)
            delete(stage.queue.store, chunk_key(damaged, 2))
        await until(lambda: stage.count(DEFERRED) == 1, "the deferral")


async def test_a_reload_replaces_the_agent(directory: Path) -> None:
    async with staged(directory) as stage:
        await accept(stage.queue, "x@a.example")
        await until(lambda: stage.delivered, "the first delivery")
        await stage.idle()
        stage.workers.configure(replace(ZONE, connections=7))
        assert [agent.closed for agent in stage.agents] == [True, False]
        await accept(stage.queue, "y@a.example")
        await until(lambda: stage.delivered == ["y@a.example"], "the delivery by the new agent")
        assert stage.agents[1].requests[0].idle_limits[0] == 6


async def test_the_rate_of_a_zone(directory: Path) -> None:
    """The burst at once, the other messages later, by a timer."""
    zone = replace(ZONE, rate=Rate(20, 1.0))
    async with staged(directory, zone=zone) as stage:
        began_s = clock.monotonic_s()
        for number in range(8):
            await accept(stage.queue, f"{number}@a.example")
        await until(lambda: len(stage.delivered) == 8, "all messages")
        assert clock.monotonic_s() - began_s > 0.2


class HangingAgent:
    """Waits until it is cancelled."""

    def __init__(self, name: str, zone: Zone) -> None:
        self.started = asyncio.Event()
        self.closed = False

    async def deliver(self, request: DeliveryRequest, context: RequestContext) -> DeliveryResult:
        context.session_opened(1)
        self.started.set()
        await asyncio.Event().wait()
        return DeliveryResult([DELIVERED])

    async def resolve(self, domain: str) -> MxAnswer:
        return NO_MX_ANSWER

    def close(self) -> None:
        self.closed = True


async def test_closing_cancels_what_exceeds_the_grace(directory: Path) -> None:
    async with staged(directory, make_agent=HangingAgent) as stage:
        await accept(stage.queue, "x@a.example")
        agent = stage.workers._agent
        assert isinstance(agent, HangingAgent)
        async with asyncio.timeout(scaled(30)):
            await agent.started.wait()
            await stage.workers.close(0.05)
        assert agent.closed
        assert stage.count(WAITING) == 1


async def test_an_unwritable_queue_stops_the_workers(directory: Path) -> None:
    """Nothing can be settled, so nothing may be sent."""
    async with staged(directory) as stage:
        with stage.before_the_workers():
            await accept(stage.queue, "x@a.example")
            await stage.queue.commits.close()
        await stage.idle()
        stage.workers.ready_all()
        assert len(stage.agents[0].requests) == 1
        assert stage.workers.scheduler.active == 0


async def test_a_defect_in_a_worker_starts_another(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(zone_workers, "DEFECT_PAUSE_S", 0.01)
    failures = 2

    def failing(*args: Any, **options: Any) -> bool:
        nonlocal failures
        if failures:
            failures -= 1
            raise ValueError("a defect")
        return False

    async with staged(directory) as stage:
        monkeypatch.setattr(stage.workers.scheduler, "should_yield", failing)
        for number in range(4):
            await accept(stage.queue, f"{number}@a.example")
        await until(lambda: everything(stage.queue.store) == [], "the delivery of all")
        assert caplog.text.count("failed; another follows") == 2


async def test_a_destination_that_failed_is_tried_although_the_window_is_full(directory: Path) -> None:
    """Of mail that waits for an operator; when that is over, all mail of both is delivered."""
    zone = replace(ZONE, retry=Retry(delays=(Seconds(0.3),) * 50, jitter=Percent(0)))
    fails = True

    def answer(request: DeliveryRequest) -> DeliveryResult:
        is_dead = fails and request.destination == "dead.example"
        return no_session(request) if is_dead else all_delivered(request)

    async with staged(directory, answer, zone=zone, window=16) as stage:
        queue, egress = stage.queue, stage.workers._context.egress
        for number in range(4):
            await accept(queue, f"r{number}@dead.example", user=f"u{number}")
        window = queue.windows.zone("default")
        await until(lambda: window.is_unreachable("dead.example"), "the failure")
        await queue.suspended.suspend("domain:full.example", "test")
        egress.changed()
        for number in range(40):
            await accept(queue, f"r{number}@full.example", user=f"v{number}")
        fails = False
        await until(lambda: not window.is_unreachable("dead.example"), "a probe")
        await queue.suspended.resume("domain:full.example")
        egress.changed()
        await stage.idle()
        await until(lambda: not everything(queue.store), "all mail")


async def test_a_reload_forgets_no_destination_that_failed(directory: Path) -> None:
    """All its mail is on disk, and it waits for a limit: it does so after the reload, too, and is tried when that is over."""
    zone = replace(ZONE, retry=Retry(delays=(Seconds(0.1),) * 50, jitter=Percent(0)))
    fails = True

    def answer(request: DeliveryRequest) -> DeliveryResult:
        return no_session(request) if fails else all_delivered(request)

    async with staged(directory, answer, zone=zone) as stage:
        queue, egress = stage.queue, stage.workers._context.egress
        await accept(queue, "r@dead.example")
        window = queue.windows.zone("default")
        await until(lambda: window.is_unreachable("dead.example"), "the failure")
        await queue.suspended.suspend("domain:dead.example", "test")
        egress.changed()
        await until(lambda: egress.wait_lists.all(), "the probe to wait")
        fails = False
        stage.workers.configure(zone)
        await stage.idle()
        await queue.suspended.resume("domain:dead.example")
        egress.changed()
        await until(lambda: not everything(queue.store), "all mail")


async def test_suspended_mail_that_is_damaged_on_disk_does_not_hold_up_the_sweep(
    directory: Path,
) -> None:
    """It cannot be held: what gives up old mail looks at it once, and ends."""
    async with staged(directory) as stage:
        queue, workers = stage.queue, stage.workers
        with stage.before_the_workers():
            message = await accept(queue, "x@a.example", tenant="acme")
            await queue.suspended.suspend("acme", "test")
            key = waiting_key("default", message, "x@a.example")
            queue.store.write(queue.store.batch([(key, b"\x08damaged")], sync=False))
            failure = Attempt("connect", 0, "4.4.1", "no route")
            place = "default", "a.example"
            async with asyncio.timeout(scaled(10)):
                assert await zone_workers.fail_old(queue, workers._worker, place, ZONE, failure)
                await zone_workers.expire_waiting(
                    queue, workers._worker, (*place, USUAL_KEY), ZONE, "limit"
                )
        assert stage.agents[-1].requests == []
