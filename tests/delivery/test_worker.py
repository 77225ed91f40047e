"""One lease on a real queue: the request that is made of it, and the settle that follows a result."""

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.delivery.agents import (
    DEFERRED,
    DELIVERED,
    LOST,
    NO_DOMAIN,
    NO_SESSION,
    REFUSED,
    ScriptedAgent,
    no_session,
)
from tests.kit.queue import HEADER, ORIGIN, accept, events, everything, lease, opened, write
from zonemta_py.config.load import parse_config
from zonemta_py.config.values import Percent, Seconds
from zonemta_py.config.zones import BounceSettings, Retry, Zone
from zonemta_py.core import clock
from zonemta_py.core.errors import AgentLost, QueueCorrupt
from zonemta_py.core.model import Attempt
from zonemta_py.delivery.egress import Egress
from zonemta_py.delivery.report_composer import DeliveryContext
from zonemta_py.delivery.request import DeliveryRequest, DeliveryResult
from zonemta_py.delivery.shaper import read_stored
from zonemta_py.delivery.worker import SUSPEND_S, LeaseContext, LeaseResult, Worker
from zonemta_py.egress.admission import WorkerSlot
from zonemta_py.egress.limits import Permit
from zonemta_py.egress.message import MessageEgress
from zonemta_py.egress.zone import ClosedAddresses, EgressRoutes
from zonemta_py.queue.accept import NewMessage, NewRecipient
from zonemta_py.queue.commit import WriteBatch
from zonemta_py.queue.format.keys import DEFERRED as DEFERRED_KEYS
from zonemta_py.queue.format.keys import WAITING, end_of, parse_recipient
from zonemta_py.queue.format.records import read_recipient_record
from zonemta_py.queue.messages import Lease
from zonemta_py.queue.queue import Queue
from zonemta_py.routing import make_router
from zonemta_py.schedule.scheduler import Scheduler
from zonemta_py.smtp.reports.dsn import FAILURE, SUCCESS
from zonemta_py.transports.session import DsnOptions

AT_ONCE = BounceSettings(aggregate="attempt")
ZONE = Zone(retry=Retry(delays=(Seconds(600),), jitter=Percent(0)))


@pytest.fixture
async def queue(directory: Path) -> AsyncIterator[Queue]:
    async with opened(directory, clock.now_ms, store="memory") as queue:
        yield queue


def scheduled(zone: Zone = ZONE, working: int = 0) -> tuple[Scheduler, WorkerSlot]:
    """A worker for a.example, and ``working`` sessions of other workers."""
    scheduler = Scheduler(zone, 0.0, lambda destination: None)
    scheduler.ready("a.example", 0.0)
    slot = scheduler.next(0.0)
    assert slot is not None
    slot.destination.working = working
    return scheduler, slot


def egress_of(queue: Queue, zone: Zone = ZONE, egress: Egress | None = None) -> MessageEgress:
    egress = egress or Egress(queue, parse_config("hostname: relay.example\n", Path("z.yaml")))
    return MessageEgress(egress, EgressRoutes(zone, egress), ClosedAddresses())


def worker_of(
    queue: Queue, zone: Zone = ZONE, scheduler: Scheduler | None = None, egress: Egress | None = None
) -> Worker:
    config = parse_config("hostname: relay.example\n", Path("z.yaml"))
    context = DeliveryContext(queue, config, "relay.example", make_router(config))
    return Worker(context, zone, scheduler or scheduled(zone)[0], egress_of(queue, zone, egress))


async def deliver(
    queue: Queue, held: Lease, agent: ScriptedAgent, zone: Zone = ZONE, working: int = 0
) -> LeaseResult:
    scheduler, slot = scheduled(zone, working)
    result = await worker_of(queue, zone, scheduler).deliver(held, (3, 2), slot, agent)
    await result.settled
    assert slot.destination.working == working, "the session is not counted any more"
    return result


def addresses(queue: Queue, space: bytes) -> list[str]:
    return [parse_recipient(key)[2] for key in queue.store.keys(space, end_of(space))]


def names(queue: Queue) -> list[object]:
    return [event["event"] for event in events(queue.store)]


# ---- the request


async def test_the_request_of_a_lease(queue: Queue) -> None:
    message = await accept(queue, "x@a.example", "y@a.example", body=b"hello\r\n")
    agent = ScriptedAgent()
    await deliver(queue, lease(queue, "a.example"), agent)
    [request] = agent.requests
    assert request == DeliveryRequest(
        "a.example", message, "a.example", "s@sender.example", ["x@a.example", "y@a.example"],
        HEADER, len(HEADER) + 2 + 7, False, False, None, (3, 2), asks_hosts=True,
    )  # fmt: skip
    assert agent.bodies == [b"hello\r\n"]


def from_address(held: Lease, *sources: str) -> Lease:
    """The lease, as if the last attempts of its recipients had left from ``sources``."""
    for recipient, source in zip(held.recipients, sources, strict=True):
        recipient.record = recipient.record._replace(source=source)
    return held


def sent_from(request: DeliveryRequest) -> DeliveryResult:
    attempt = Attempt("dot", 250, "2.0.0", "ok", source_ip=request.prefers or "192.0.2.1")
    return DeliveryResult([attempt] * len(request.recipients))


async def test_retries_leave_from_their_address_and_new_mail_does_not_follow(queue: Queue) -> None:
    scheduler, slot = scheduled(ZONE)
    worker, agent = worker_of(queue, ZONE, scheduler), ScriptedAgent(sent_from)
    for number, source in enumerate(["", "192.0.2.2", "", "192.0.2.2", "192.0.2.3", ""]):
        await accept(queue, f"u{number}@a.example")
        held = from_address(lease(queue, "a.example"), source)
        await (await worker.deliver(held, (3, 2), slot, agent)).settled
    assert [request.prefers for request in agent.requests] == [
        "", "192.0.2.2", "192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.1",
    ]  # fmt: skip
    assert (slot.source, slot.source_run) == ("192.0.2.1", 3)


async def test_recipients_of_different_addresses_are_different_requests(queue: Queue) -> None:
    """Of one message: what was greylisted from one address must not be sent from the other."""
    await accept(queue, "x@a.example", "y@a.example", "z@a.example")
    scheduler, slot = scheduled(ZONE)
    worker, agent = worker_of(queue, ZONE, scheduler), ScriptedAgent(sent_from)
    held = from_address(lease(queue, "a.example"), "192.0.2.2", "192.0.2.2", "192.0.2.3")
    await (await worker.deliver(held, (3, 2), slot, agent)).settled
    assert [request.recipients for request in agent.requests] == [["x@a.example", "y@a.example"]]
    assert addresses(queue, WAITING) == ["z@a.example"]


async def test_a_failure_without_a_session_keeps_the_address(queue: Queue) -> None:
    """A greylisted recipient returns from its address, also after a time-out in between."""
    await accept(queue, "x@a.example")
    late = Attempt("connect", 0, "4.4.1", "timed out")
    agent = ScriptedAgent(lambda request: DeliveryResult([late]))
    await deliver(queue, from_address(lease(queue, "a.example"), "192.0.2.2"), agent)
    [(_, value)] = queue.store.scan(DEFERRED_KEYS, end_of(DEFERRED_KEYS))
    assert read_recipient_record(value).source == "192.0.2.2"


async def test_verp_is_one_recipient_at_a_time(queue: Queue) -> None:
    await accept(queue, "x@a.example", "y@a.example", sender="list-@sender.example-@[]")
    agent = ScriptedAgent()
    await deliver(queue, lease(queue, "a.example"), agent)
    assert addresses(queue, WAITING) == ["y@a.example"]
    await deliver(queue, lease(queue, "a.example"), agent)
    assert [(request.sender, request.recipients) for request in agent.requests] == [
        ("list-x=a.example@sender.example", ["x@a.example"]),
        ("list-y=a.example@sender.example", ["y@a.example"]),
    ]
    await accept(queue, "x@a.example")
    await deliver(queue, lease(queue, "a.example"), agent, replace(ZONE, sender_verp=True))
    assert agent.requests[2].sender == "s+x=a.example@sender.example"


async def test_dsn_parameters_are_passed_on(queue: Queue) -> None:
    recipients = [
        NewRecipient("x@a.example", "a.example", "default", SUCCESS | FAILURE, "rfc822;x@old.example"),
        NewRecipient("y@a.example", "a.example", "default"),
    ]
    writer = queue.open_message()
    await write(writer, b"body\r\n")
    new = NewMessage(
        "s@sender.example", HEADER, recipients, ORIGIN, "<id@here>", ret="HDRS", envid="abc"
    )
    await queue.accept(writer, new)
    agent = ScriptedAgent()
    await deliver(queue, lease(queue, "a.example"), agent)
    assert agent.requests[0].dsn == DsnOptions(
        " RET=HDRS ENVID=abc", [" NOTIFY=SUCCESS,FAILURE ORCPT=rfc822;x@old.example", ""]
    )


# ---- the settle


async def test_delivered(queue: Queue) -> None:
    await accept(queue, "x@a.example")
    result = await deliver(queue, lease(queue, "a.example"), ScriptedAgent())
    assert (result.failure, result.at_connection_limit) == (None, False)
    assert everything(queue.store) == []
    assert names(queue) == ["accepted", "delivered"]


async def test_every_recipient_has_its_own_outcome(queue: Queue) -> None:
    """Delivered, deferred, bounced with a report, and one without an attempt, which goes back."""
    held = [f"{name}@a.example" for name in ("delivered", "deferred", "refused", "untried")]
    await accept(queue, *held)
    agent = ScriptedAgent(lambda request: DeliveryResult([DELIVERED, DEFERRED, REFUSED, None]))
    await deliver(queue, lease(queue, "a.example"), agent, replace(ZONE, bounce=AT_ONCE))
    assert sorted(addresses(queue, WAITING)) == ["s@sender.example", "untried@a.example"]
    assert addresses(queue, DEFERRED_KEYS) == ["deferred@a.example"]
    assert names(queue)[-1] == "accepted", "the report"
    [again] = lease(queue, "a.example").recipients
    assert (again.address, again.record.attempts) == ("untried@a.example", 0)


async def test_no_session(queue: Queue) -> None:
    """The recipients are deferred, and the failure is returned so that the destination is suspended."""
    await accept(queue, "x@a.example")
    result = await deliver(queue, lease(queue, "a.example"), ScriptedAgent(no_session))
    assert result.failure == NO_SESSION
    assert addresses(queue, DEFERRED_KEYS) == ["x@a.example"]


async def test_no_session_ever(queue: Queue) -> None:
    """A domain that does not exist bounces, and is not suspended."""
    await accept(queue, "x@a.example")
    agent = ScriptedAgent(lambda request: DeliveryResult([NO_DOMAIN], NO_DOMAIN, permanent=True))
    result = await deliver(queue, lease(queue, "a.example"), agent)
    assert result.failure is None
    assert "bounced" in names(queue)


@pytest.mark.parametrize(("working", "has_idle"), [(1, False), (0, True)])
async def test_at_the_connection_limit(queue: Queue, working: int, has_idle: bool) -> None:
    """Other sessions show that the destination is reachable: the lease is released without an attempt."""
    await accept(queue, "x@a.example")
    agent = ScriptedAgent(lambda request: DeliveryResult([NO_SESSION], NO_SESSION, has_idle=has_idle))
    result = await deliver(queue, lease(queue, "a.example"), agent, working=working)
    assert result.at_connection_limit
    assert result.failure is None
    [again] = lease(queue, "a.example").recipients
    assert again.record.attempts == 0
    assert names(queue) == ["accepted"]


@pytest.mark.parametrize("refuses", [False, True])
async def test_a_session_that_served_no_recipient_while_others_work(queue: Queue, refuses: bool) -> None:
    """The peer limits its sessions. Without a word of it, it may have been the message: that is an attempt."""
    await accept(queue, "x@a.example")
    closed = DeliveryResult([LOST], LOST, refuses_sessions=refuses)
    agent = ScriptedAgent(lambda request: closed)
    result = await deliver(queue, lease(queue, "a.example"), agent, working=1)
    assert result.at_connection_limit
    assert result.failure is None
    await result.settled
    assert ("deferred" in names(queue)) is not refuses


async def test_a_session_that_served_no_recipient(queue: Queue) -> None:
    """The only one: the destination is suspended as if it could not be reached."""
    await accept(queue, "x@a.example")
    agent = ScriptedAgent(lambda request: DeliveryResult([LOST], LOST, refuses_sessions=True))
    result = await deliver(queue, lease(queue, "a.example"), agent)
    assert result.failure == LOST


@pytest.mark.parametrize("uncertain", [False, True])
async def test_a_lost_agent(queue: Queue, uncertain: bool) -> None:
    """The recipients are ready again; those that may have been delivered are recorded."""
    await accept(queue, "x@a.example")
    agent = ScriptedAgent(lambda request: AgentLost("sender 0 ended", uncertain=uncertain))
    result = await deliver(queue, lease(queue, "a.example"), agent)
    assert result.failure is None
    [again] = lease(queue, "a.example").recipients
    assert again.record.uncertain == int(uncertain)
    assert names(queue) == ["accepted", "uncertain"] if uncertain else ["accepted"]


@pytest.mark.parametrize("failure", [AgentLost("it ended", uncertain=True), RuntimeError("a defect")])
async def test_a_request_without_a_result_counts_as_sent(queue: Queue, failure: Exception) -> None:
    """For the limits: two messages that an agent took are two of the rate, and their use is stored."""
    pool = "pools: {default: [{address: 192.0.2.1, limits: {rate: [5/h]}}]}"
    config = parse_config(f"hostname: relay.example\n{pool}\n", Path("z.yaml"))
    egress = Egress(queue, config)
    scheduler, slot = scheduled()
    worker = worker_of(queue, scheduler=scheduler, egress=egress)
    permit = egress.take("a.example", config.pools["default"], egress.now_ms())
    assert isinstance(permit, Permit)
    slot.permit = permit
    for number in range(2):
        await accept(queue, f"u{number}@a.example")
        with suppress(RuntimeError):
            await worker.deliver(
                lease(queue, "a.example", 1), (3, 2), slot, ScriptedAgent(lambda request: failure)
            )
        assert egress.renew(permit, egress.now_ms()) is None
    [windows] = [path.messages for path in permit.paths if path.messages is not None]
    assert [used for _, used in windows.used(egress.now_ms())] == [3], "two that were sent, one granted"
    await queue.commits.submit(WriteBatch())
    stored = read_stored(queue.store).uses
    assert [(address, used) for _, _, address, _, _, used in stored] == [("192.0.2.1", 2)]


async def test_after_a_defect(queue: Queue) -> None:
    await accept(queue, "x@a.example")
    await (await worker_of(queue).defer_after_defect(lease(queue, "a.example")))
    assert addresses(queue, DEFERRED_KEYS) == ["x@a.example"]
    assert events(queue.store)[-1]["status"] == "4.3.0"


async def test_how_long_a_failing_destination_is_suspended(queue: Queue) -> None:
    """As long as a message waits after its first failure."""
    assert worker_of(queue).first_delay_s("a.example") == 600
    never = replace(ZONE.retry, give_up_after=Seconds(0))
    assert worker_of(queue, replace(ZONE, retry=never)).first_delay_s("a.example") == SUSPEND_S


# ---- the body


async def test_bodies(directory: Path) -> None:
    """Small ones whole, large ones in chunks, whether the entry is in memory or read again."""
    for cache in (1 << 20, 0):
        async with opened(directory / str(cache), clock.now_ms, store="memory", cache=cache) as queue:
            for body in (b"", b"small\r\n", b"x" * 300_000):
                await accept(queue, "x@a.example", body=body)
                held = lease(queue, "a.example")
                context = LeaseContext(queue, egress_of(queue), held, *scheduled())
                found = context.body()
                assert isinstance(found, bytes) == (len(body) < 65_536)
                agent = ScriptedAgent()
                await deliver(queue, held, agent)
                assert agent.bodies == [body]


async def test_a_damaged_body(queue: Queue) -> None:
    await accept(queue, "x@a.example", body=b"x" * 100_000)
    held = lease(queue, "a.example")
    held.active.body = None
    held.active.mark = held.active.mark._replace(crc=held.active.mark.crc ^ 1)
    with pytest.raises(QueueCorrupt):
        await deliver(queue, held, ScriptedAgent())
