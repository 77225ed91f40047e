"""Reports in storms: one per message and minute, one digest per receiver and hour; all of it survives a crash."""

import base64
import csv
from collections.abc import AsyncIterator
from dataclasses import replace
from email import message_from_bytes
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.deadlines import until
from tests.kit.queue import accept, events, lease, opened, problems
from zonemta_py.config.load import parse_config
from zonemta_py.config.zones import BounceSettings, Zone
from zonemta_py.core import clock
from zonemta_py.core.model import Attempt, OutcomeKind
from zonemta_py.delivery import report_composer
from zonemta_py.delivery.report_composer import (
    HOUR_S,
    MINUTE_S,
    DeliveryContext,
    PendingReports,
    group_of,
)
from zonemta_py.delivery.reports import BounceReporter, ReportSender, settle_effects
from zonemta_py.queue.format import keys
from zonemta_py.queue.outcome import Outcome
from zonemta_py.queue.queue import Queue
from zonemta_py.routing import make_router

NO = Attempt("rcpt", 550, "5.1.1", "no such user", mx="mx.a.example")
OK = Attempt("dot", 250, "2.0.0", "ok", mx="mx.a.example")
CONFIG = parse_config("hostname: relay.example\n", Path("z.yaml"))


class Life:
    """The reports of one life of a queue."""

    def __init__(self, queue: Queue, **bounce: Any) -> None:
        self.queue = queue
        self.zone = replace(Zone(), bounce=replace(BounceSettings(), **bounce))
        router = make_router(CONFIG)
        self.pending = PendingReports()
        self.context = DeliveryContext(queue, CONFIG, "relay.example", router, pending=self.pending)
        self.sender = ReportSender(self.context)

    async def fail(self, *addresses: str, delivered: int = 0) -> None:
        """Settle the oldest message at a.example: the first recipients are delivered, the next fail."""
        held = lease(self.queue, "a.example")
        self.queue.narrow(held, delivered + len(addresses))
        kinds = [(OutcomeKind.DELIVERED, OK)] * delivered + [(OutcomeKind.BOUNCED, NO)] * len(addresses)
        outcomes = [
            Outcome(recipient, kind, attempt)
            for recipient, (kind, attempt) in zip(held.recipients, kinds, strict=True)
        ]
        effects = await settle_effects(self.context, self.zone, held.active, outcomes)
        await self.queue.settle(held, outcomes, effects)

    def reports(self) -> list[dict[str, object]]:
        return [e for e in events(self.queue.store) if e["event"] == "accepted" and e["sender"] == ""]

    def count(self, space: bytes) -> int:
        return len(list(self.queue.store.keys(space, keys.end_of(space))))


@pytest.fixture
async def queue(directory: Path) -> AsyncIterator[Queue]:
    reports = BounceReporter(CONFIG, "relay.example", make_router(CONFIG))
    async with opened(directory, clock.now_ms, store="memory", reports=reports) as queue:
        yield queue


# ---- one report for a message and a minute


async def test_the_failures_of_a_minute(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several transactions, one report, while other recipients wait; the end of the message makes no second one."""
    monkeypatch.setattr(report_composer, "MINUTE_S", 0.0)
    life = Life(queue)
    await accept(queue, "1@a.example", "2@a.example", "3@a.example")
    await life.fail("1@a.example")
    await life.fail("2@a.example")
    assert (life.reports(), life.count(keys.BOUNCE)) == ([], 2)
    await life.sender.start()
    await until(lambda: life.count(keys.BOUNCE) == 0, "the report")
    assert len(life.reports()) == 1
    await life.fail(delivered=1)
    assert len(life.reports()) == 1
    await life.sender.close()
    assert problems(queue.store) == []


async def test_the_end_of_a_message_does_not_wait(queue: Queue) -> None:
    life = Life(queue)
    await accept(queue, "1@a.example", "2@a.example")
    await life.fail("1@a.example")
    await life.fail("2@a.example")
    assert (len(life.reports()), life.count(keys.BOUNCE)) == (1, 0)


@pytest.mark.parametrize("aggregate", ["minute", "message"])
async def test_a_life_finds_what_another_left(
    queue: Queue, aggregate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failures of a zone that reports at the end of a message stay."""
    await accept(queue, "1@a.example", "2@a.example")
    await Life(queue).fail("1@a.example")
    monkeypatch.setattr(report_composer, "MINUTE_S", 0.0)
    life = Life(queue)
    bounce = replace(life.zone.bounce, aggregate=aggregate)
    life.context.config = replace(CONFIG, zones={"default": replace(life.zone, bounce=bounce)})
    await life.sender._find()
    due = life.pending.take_due(clock.monotonic_s())
    assert [kind for kind, _ in due] == (["message"] if aggregate == "minute" else [])
    for _, message in due:
        await life.sender._report_now(message)
        assert len(life.reports()) == 1


# ---- digests


async def storm(life: Life, messages: int) -> None:
    for number in range(messages):
        await accept(life.queue, f"{number}@a.example")
        await life.fail(f"{number}@a.example")


async def test_more_reports_than_a_sender_reads(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_composer, "HOUR_S", 0.0)
    life = Life(queue, reports_per_hour=0)
    await storm(life, 30)
    assert (life.reports(), life.count(keys.DIGEST)) == ([], 30)
    await life.sender.start()
    await until(lambda: life.count(keys.DIGEST) == 0, "the digest")
    await life.sender.close()
    [accepted] = life.reports()
    assert "s@sender.example" in str(accepted["recipients"])
    message = whole(queue, str(accepted["message"]))
    assert message["Subject"] == "30 delivery reports"
    assert message["Auto-Submitted"] == "auto-replied"
    text, table = message.get_payload()
    assert "30 of them, about 30 recipients" in decoded(text)
    assert "      30  5.1.1" in decoded(text)
    rows = list(csv.DictReader(StringIO(decoded(table))))
    assert {row["recipient"] for row in rows} == {f"{n}@a.example" for n in range(30)}
    assert {(row["action"], row["reply"]) for row in rows} == {("failed", "550 5.1.1 no such user")}
    assert problems(queue.store) == []


async def test_the_first_ones_are_sent_one_by_one(queue: Queue) -> None:
    life = Life(queue, reports_per_hour=4)
    await storm(life, 10)
    assert (len(life.reports()), life.count(keys.DIGEST)) == (4, 6)
    unlimited = Life(queue, reports_per_hour=None)
    await storm(unlimited, 10)
    assert len(unlimited.reports()) == 14


async def test_a_digest_that_an_earlier_life_left(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    await storm(Life(queue, reports_per_hour=0), 3)
    monkeypatch.setattr(report_composer, "HOUR_S", 0.0)
    life = Life(queue)
    await life.sender.start()
    await until(lambda: life.count(keys.DIGEST) == 0, "the digest")
    await life.sender.close()
    assert len(life.reports()) == 1


async def test_an_entry_that_cannot_be_read(queue: Queue) -> None:
    """It is named in the log and removed; the others are sent."""
    life = Life(queue, reports_per_hour=0)
    await storm(life, 2)
    [first, _] = queue.store.keys(keys.DIGEST, keys.end_of(keys.DIGEST))
    queue.store.write(queue.store.batch([(first, b"damaged")], sync=True))
    await life.sender._send_digest(group_of("s@sender.example", ""))
    assert (len(life.reports()), life.count(keys.DIGEST)) == (1, 0)


def whole(queue: Queue, message: str) -> Any:
    active = queue.acquire_message(message)
    body = b"".join(queue.bodies.read(active))
    return message_from_bytes(active.meta.header + b"\r\n" + body)


def decoded(part: Any) -> str:
    return base64.b64decode(part.get_payload()).decode()


# ---- when


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.floats(0, 100)), max_size=60))
def test_what_waits_is_due_once(steps: list[tuple[int, bool, float]]) -> None:
    """A minute after the first failure, and at the end of a receiver's hour; never earlier."""
    pending, now_s = PendingReports(), 0.0
    since: dict[tuple[str, str], float] = {}
    for number, is_note, step_s in steps:
        now_s += step_s
        for what in pending.take_due(now_s):
            assert now_s >= since.pop(what) + (MINUTE_S if what[0] == "message" else 0)
        if is_note:
            pending.add_notes(str(number), now_s)
            since.setdefault(("message", str(number)), now_s)
        else:
            pending.count(str(number), now_s)
            pending.add_digest(str(number), now_s)
            since.setdefault(("digest", str(number)), now_s)
    assert set(pending.take_due(now_s + HOUR_S)) == set(since)
    assert pending.wait_s(now_s) is None


def test_reports_are_counted_by_the_hour() -> None:
    pending = PendingReports()
    assert [pending.count("a", 10.0) for _ in range(3)] == [1, 2, 3]
    assert pending.count("b", 10.0) == 1
    assert pending.count("a", 10.0 + HOUR_S) == 1
