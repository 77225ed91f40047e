"""Hold, release, delete and return of all mail that matches, and of one message; on a real queue."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.queue import accept, events, lease, opened, problems, settle
from zonemta_py.admin import mail
from zonemta_py.admin.messages import is_quarantined
from zonemta_py.admin.operation import Operations
from zonemta_py.admin.registry import restrict, run_operation
from zonemta_py.admin.requests import (
    BounceRequest,
    DeleteRequest,
    FlushRequest,
    HoldRequest,
    ListRequest,
    MailRequest,
    ReleaseRequest,
    Request,
    WhyRequest,
)
from zonemta_py.config.load import parse_config
from zonemta_py.core.codec import replace
from zonemta_py.core.errors import LocalError, QueueCorrupt
from zonemta_py.core.model import OutcomeKind
from zonemta_py.delivery.reports import BounceReporter
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.upkeep.operator import Operator, Selected
from zonemta_py.routing import make_router

PAGE = 7


@pytest.fixture
async def queue(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Queue]:
    """A queue with mail of two campaigns, of which pages are short."""
    monkeypatch.setattr(mail, "PAGE", PAGE)
    config = parse_config("zones: {default: {}, bulk: {}}", Path("z.yaml"))
    reports = BounceReporter(config, "relay.example", make_router(config))
    async with opened(directory, reports=reports) as queue:
        for number in range(10):
            to = [f"{name}{number}@{name}.example" for name in "ab"]
            await accept(queue, *to, campaign="sale", tenant="acme" if number % 2 else "other")
        await accept(queue, "c@a.example", "d@c.example|bulk", campaign="news", tenant="acme")
        deferred = lease(queue, "a.example")
        await queue.start(deferred)
        await settle(queue, deferred, OutcomeKind.DEFERRED, queue.now() + 3_600_000)
        yield queue
        assert problems(queue.store) == []


async def rows(queue: Queue, request: Request) -> list[dict[str, Any]]:
    return [row async for row in run_operation(Operations(queue), request)]


async def sums(queue: Queue, request: MailRequest) -> Counter[str]:
    """What ``request`` did; a run that only counts must have said the same."""
    counted = await rows(queue, replace(request, dry_run=True))
    found: Counter[str] = Counter()
    for row in await rows(queue, request):
        found.update(row)
    if not isinstance(request, HoldRequest):
        assert sum(row["matched"] for row in counted) == found.total()
    return found


async def left(queue: Queue, **wanted: Any) -> int:
    return len(await rows(queue, ListRequest(**wanted)))


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        ({"campaign": "sale"}, 20),
        ({"campaign": "sale", "domain": "a.example"}, 10),
        ({"domain": "A.Example"}, 11),
        ({"tenant": "acme"}, 12),
        ({"tenant": "acme", "campaign": "news", "zone": "bulk"}, 1),
        ({"state": "deferred"}, 1),
        ({"state": "waiting", "zone": "default"}, 20),
        ({"tag": "none"}, 0),
    ],
)
async def test_what_matches_is_deleted(queue: Queue, wanted: dict[str, Any], count: int) -> None:
    assert await left(queue) == 22
    assert await sums(queue, DeleteRequest(**wanted)) == Counter(deleted=count)
    assert await left(queue) == 22 - count
    assert await rows(queue, DeleteRequest(**wanted)) == [{"deleted": 0, "in_flight": 0}]


async def test_held_and_released(queue: Queue) -> None:
    held = await sums(queue, HoldRequest(campaign="sale"))
    assert held == Counter(held=20)
    assert await sums(queue, HoldRequest(campaign="sale")) == Counter(), "they are held"
    assert await sums(queue, ReleaseRequest(domain="b.example")) == Counter(released=10)
    assert await left(queue, state="held") == 10
    assert await sums(queue, ReleaseRequest(campaign="sale")) == Counter(released=10)
    assert await left(queue, state="held") == 0


async def test_returned_to_the_senders(queue: Queue) -> None:
    """One report for each message."""
    found = await sums(queue, BounceRequest(campaign="sale", reason="the wrong list"))
    assert found == Counter(bounced=20)
    bounced = [event for event in events(queue.store) if event["event"] == "bounced"]
    assert len(bounced) == 20
    assert {event["reply"] for event in bounced} == {"the wrong list"}
    assert await left(queue, campaign="news") == 2
    assert len({row["message"] for row in await rows(queue, ListRequest())}) == 11


async def test_mail_in_a_transaction_is_left_alone(queue: Queue) -> None:
    leased = lease(queue, "b.example")
    await queue.start(leased)
    busy = len(leased.recipients)
    found = await sums(queue, DeleteRequest(campaign="sale"))
    assert found == Counter(deleted=20 - busy, in_flight=busy)
    await settle(queue, leased, OutcomeKind.DELIVERED)
    assert await left(queue, campaign="sale") == 0


async def test_a_scanner_had_it_held(queue: Queue) -> None:
    """A release of whole messages ends that, as the release of one message does."""
    message = await accept(queue, "q@q.example", hold="spam", campaign="quarantined")
    await sums(queue, ReleaseRequest(domain="q.example"))
    assert is_quarantined(queue, message), "other recipients may be held"
    await Operator(queue).hold(message)
    await sums(queue, ReleaseRequest(campaign="quarantined"))
    assert not is_quarantined(queue, message)


async def test_a_damaged_message_is_no_obstacle(
    queue: Queue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its envelope cannot be read; it is counted, and named in the log."""
    row = (await rows(queue, ListRequest(campaign="sale")))[0]
    delete = Operator.delete

    async def damaged(self: Operator, message: str, selected: Selected = None) -> tuple[int, int]:
        if message == row["message"]:
            raise QueueCorrupt("its envelope")
        return await delete(self, message, selected)

    monkeypatch.setattr(Operator, "delete", damaged)
    found: Counter[str] = Counter()
    for each in await rows(queue, DeleteRequest(campaign="sale", domain="b.example")):
        found.update(each)
    assert found == Counter(deleted=9, damaged=1)
    assert f"message {row['message']} is not changed" in caplog.text


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (DeleteRequest(), "name a message, or what to select"),
        (DeleteRequest(dry_run=True), "name a message, or what to select"),
        (HoldRequest(recipient="a@a.example"), "recipient: name its message too"),
        (HoldRequest(recipient="a@a.example", campaign="sale"), "recipient: name its message too"),
        (HoldRequest("0" * 24, campaign="sale"), "a filter or dry_run does not go with it"),
        (HoldRequest("0" * 24), "no message 0"),
        (DeleteRequest(domain="a..example"), "domain: "),
    ],
)
async def test_requests_that_are_refused(queue: Queue, request_: MailRequest, problem: str) -> None:
    with pytest.raises(LocalError, match=problem):
        await rows(queue, request_)
    assert await left(queue) == 22


@pytest.mark.parametrize("kind", [DeleteRequest, BounceRequest, HoldRequest, ReleaseRequest])
async def test_a_recipient_is_found_as_it_is_written(queue: Queue, kind: type[MailRequest]) -> None:
    """The domain in any case; a recipient that is not there is an error, not a success with 0."""
    message = await accept(queue, "R@d.example", "s@d.example")
    with pytest.raises(LocalError, match=f"no message {message} to r@d.example"):
        await rows(queue, kind(message, "r@D.example"))
    await Operator(queue).hold(message)
    (row,) = await rows(queue, kind(message, "R@D.Example"))
    assert row.get("in_flight", 0) == 0
    assert await rows(queue, WhyRequest(message, "s@D.example"))
    assert await rows(queue, FlushRequest(domain="D.example"))


async def test_a_token_of_a_tenant_selects_its_mail_only(queue: Queue) -> None:
    operations = Operations(queue)
    asked = restrict(operations, DeleteRequest(campaign="sale"), "acme")
    assert asked == DeleteRequest(campaign="sale", tenant="acme")
    assert restrict(operations, HoldRequest(tenant="other"), "acme") == HoldRequest(
        tenant="acme", by="acme"
    )
    with pytest.raises(PermissionError, match="name the message"):
        restrict(operations, ReleaseRequest(campaign="sale"), "acme")
    with pytest.raises(PermissionError):
        restrict(operations, DeleteRequest(), "acme")
