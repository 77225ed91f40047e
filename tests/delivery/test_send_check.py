"""May this be sent at all: one answer for workers and for programs that dequeue."""

from pathlib import Path

from tests.kit.queue import Clock, accept, events, lease, opened
from zonemta_py.config.load import parse_config
from zonemta_py.delivery.report_composer import DeliveryContext
from zonemta_py.delivery.send_check import SendCheck
from zonemta_py.queue.format.records import NO_OPTIONS, DeliveryOptions
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.suspensions import MailPart
from zonemta_py.queue.upkeep.inspect import recipient_rows
from zonemta_py.routing import make_router

CONFIG = parse_config("hostname: relay.example\n", Path("z.yaml"))


def check_of(queue: Queue, provider: str = "") -> SendCheck:
    context = DeliveryContext(queue, CONFIG, "relay.example", make_router(CONFIG))
    zone = CONFIG.zones["default"]
    return SendCheck(context, lambda destination: zone, lambda destination: provider)


async def end_next(queue: Queue, check: SendCheck) -> bool:
    """Ask about the next lease; returns True if it was ended."""
    found = lease(queue, "x.example", 10)
    refusal = check.refusal(found)
    if refusal is None:
        queue.release(found)
        return False
    await refusal
    return True


def states(queue: Queue) -> dict[str, str]:
    return {row["recipient"]: row["state"] for row in recipient_rows(queue.store)}


async def test_nothing_forbids_it(directory: Path) -> None:
    async with opened(directory) as queue:
        await accept(queue, "a@x.example", tenant="acme")
        await queue.suspended.suspend("other", "")
        assert not await end_next(queue, check_of(queue))
        assert states(queue) == {"a@x.example": "waiting"}


async def test_its_tenant_is_suspended(directory: Path) -> None:
    async with opened(directory) as queue:
        await accept(queue, "a@x.example", tenant="acme")
        await queue.suspended.suspend("acme", "")
        assert await end_next(queue, check_of(queue))
        assert states(queue) == {"a@x.example": "held"}


async def test_a_part_of_the_mail_is_suspended(directory: Path) -> None:
    """By its provider, where that is known."""
    async with opened(directory) as queue:
        await accept(queue, "a@x.example", campaign="june")
        await queue.suspended.suspend(MailPart(campaign="june", provider="big").key, "")
        assert not await end_next(queue, check_of(queue))
        assert await end_next(queue, check_of(queue, "big"))
        assert states(queue) == {"a@x.example": "held"}


async def test_resumed_a_moment_ago(directory: Path) -> None:
    """The lease that was to be held goes back to the front."""
    async with opened(directory) as queue:
        await accept(queue, "a@x.example", tenant="acme")
        await queue.suspended.suspend("acme", "")
        refusal = check_of(queue).refusal(lease(queue, "x.example", 10))
        assert refusal is not None
        await queue.suspended.resume("acme")
        await refusal
        assert not await end_next(queue, check_of(queue))


async def test_the_time_that_its_sender_allowed_is_over(directory: Path) -> None:
    clock = Clock()
    async with opened(directory, clock) as queue:
        options: DeliveryOptions = NO_OPTIONS._replace(expires_ms=clock.ms + 1000)
        await accept(queue, "a@x.example", options=options)
        assert not await end_next(queue, check_of(queue))
        clock.ms += 1000
        assert await end_next(queue, check_of(queue))
        assert "a@x.example" not in states(queue)
        assert "lapsed" in [event["event"] for event in events(queue.store)]
