"""Reports in the batch of a settle: which are composed, their recipients, and how much of the message they contain."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from tests.kit.deadlines import scaled
from tests.kit.queue import LATER, NO, OK, accept, lease, opened
from zonemta_py.config.hooks import Hooks
from zonemta_py.config.load import parse_config
from zonemta_py.config.values import Size
from zonemta_py.config.zones import BounceSettings, Zone
from zonemta_py.core import clock
from zonemta_py.core.model import Attempt, OutcomeKind
from zonemta_py.delivery.report_composer import (
    SLICE,
    Bounce,
    DeliveryContext,
    PendingReports,
    ReportComposer,
    prepare_report,
)
from zonemta_py.delivery.reports import BounceReporter, settle_effects
from zonemta_py.events.schema import Discarded
from zonemta_py.queue.format.keys import WAITING, end_of
from zonemta_py.queue.format.records import FORMAT, Note
from zonemta_py.queue.messages import Lease
from zonemta_py.queue.outcome import AcceptedMessage, Outcome, SettleEffects
from zonemta_py.queue.queue import Queue
from zonemta_py.routing import Router, make_router
from zonemta_py.smtp.reports.dsn import STRIPPED


class Reporting:
    """A queue with one message to ``no1@``, ``no2@`` and ``yes@a.example``, and its lease."""

    def __init__(self, queue: Queue, directory: Path) -> None:
        self.queue = queue
        self.config = parse_config("hostname: relay.example\n", directory / "z.yaml")
        self.router = make_router(self.config)
        self.zone = Zone()
        self.hooks = Hooks()

    def with_bounce(self, settings: BounceSettings) -> None:
        self.zone = replace(self.zone, bounce=settings)

    async def lease(
        self, *addresses: str, sender: str = "s@sender.example", body: bytes = b"body\r\n"
    ) -> Lease:
        await accept(self.queue, *addresses, sender=sender, body=body)
        return lease(self.queue, "a.example")

    async def effects(self, held: Lease, *attempts: tuple[OutcomeKind, Attempt]) -> SettleEffects:
        """Of settling the first recipients of ``held``."""
        context = DeliveryContext(self.queue, self.config, "relay.example", self.router, self.hooks)
        outcomes = [
            Outcome(recipient, kind, attempt)
            for recipient, (kind, attempt) in zip(held.recipients, attempts, strict=False)
        ]
        return await settle_effects(context, self.zone, held.active, outcomes)


BOUNCED = (OutcomeKind.BOUNCED, NO)
DELIVERED = (OutcomeKind.DELIVERED, OK)
DEFERRED = (OutcomeKind.DEFERRED, LATER)


@pytest.fixture
async def reporting(directory: Path) -> AsyncIterator[Reporting]:
    async with opened(directory, store="memory") as queue:
        yield Reporting(queue, directory)


def text(report: AcceptedMessage) -> bytes:
    return report.meta.header + b"\r\n" + b"".join(report.tail)


def only(reports: Sequence[AcceptedMessage]) -> AcceptedMessage:
    [report] = reports
    return report


async def test_a_success_causes_nothing(reporting: Reporting) -> None:
    held = await reporting.lease("yes@a.example")
    assert await reporting.effects(held, DELIVERED) == SettleEffects()


async def test_a_report_from_the_null_sender(reporting: Reporting) -> None:
    """One for all failures of the attempt, to the sender, in the zone that its domain is routed to."""
    held = await reporting.lease("no1@a.example", "no2@a.example", "yes@a.example")
    effects = await reporting.effects(held, BOUNCED, BOUNCED, DELIVERED)
    report = only(effects.reports)
    assert effects.failure_report == report.message
    assert report.meta.sender == ""
    assert report.meta.report_for == held.active.id
    [recipient] = report.recipients
    assert (recipient.address, recipient.zone) == ("s@sender.example", "default")
    for expected in (
        b"no1@a.example",
        b"no2@a.example",
        b"550 5.1.1 no such user",
        b"Subject: test",
        b"body",
    ):
        assert expected in text(report)
    assert b"yes@a.example" not in text(report)
    assert (list(effects.notes), list(effects.events), effects.warned) == ([], [], False)


async def test_notes_until_the_message_ends(reporting: Reporting) -> None:
    """``aggregate: message``: the failures of earlier leases are in the report at the end."""
    reporting.with_bounce(BounceSettings(aggregate="message"))
    held = await reporting.lease("no1@a.example", "no2@a.example", "yes@a.example")
    effects = await reporting.effects(held, BOUNCED)
    assert not effects.reports
    [note] = effects.notes
    assert (note.recipient, note.action) == ("no1@a.example", "failed")
    held.active.notes += effects.notes
    held.active.remaining -= 1
    held.recipients = held.recipients[1:]
    report = only((await reporting.effects(held, BOUNCED, DELIVERED)).reports)
    assert b"no1@a.example" in text(report)
    assert b"no2@a.example" in text(report)


async def test_the_last_success_reports_the_noted_failures(reporting: Reporting) -> None:
    reporting.with_bounce(BounceSettings(aggregate="message"))
    held = await reporting.lease("no1@a.example", "yes@a.example")
    held.active.notes += (await reporting.effects(held, BOUNCED)).notes
    held.active.remaining -= 1
    held.recipients = held.recipients[1:]
    effects = await reporting.effects(held, DELIVERED)
    assert b"no1@a.example" in text(only(effects.reports))
    assert effects.failure_report


async def test_a_message_that_ends_without_a_settle(reporting: Reporting) -> None:
    """What the queue calls when an operator deletes the last recipient."""
    reporting.with_bounce(BounceSettings(aggregate="message"))
    held = await reporting.lease("no1@a.example", "yes@a.example")
    notes = (await reporting.effects(held, BOUNCED)).notes
    reporter = BounceReporter(reporting.config, "relay.example", reporting.router)
    effects = reporter.report(reporting.queue, held.active, notes)
    assert b"no1@a.example" in text(only(effects.reports))
    reporter.configure(reporting.config, "other.example", reporting.router)
    again = reporter.report(reporting.queue, held.active, notes)
    assert b"other.example" in text(only(again.reports))


# ---- the recipient of a report


async def test_a_failed_report_is_a_double_bounce(reporting: Reporting) -> None:
    reporting.with_bounce(BounceSettings(double_bounce_to="postmaster@relay.example"))
    held = await reporting.lease("no1@a.example", sender="")
    report = only((await reporting.effects(held, BOUNCED)).reports)
    assert report.meta.sender == "#@[]"
    assert [r.address for r in report.recipients] == ["postmaster@relay.example"]


@pytest.mark.parametrize(
    ("sender", "to", "reason"),
    [
        ("", None, "double bounce"),
        ("#@[]", None, "triple bounce"),
        ("#@[]", "postmaster@relay.example", "triple bounce"),
    ],
)
async def test_a_report_is_discarded_by_an_event(
    reporting: Reporting, sender: str, to: str | None, reason: str
) -> None:
    reporting.with_bounce(BounceSettings(double_bounce_to=to))
    held = await reporting.lease("no1@a.example", sender=sender)
    effects = await reporting.effects(held, BOUNCED)
    assert not effects.reports
    assert effects.failure_report == ""
    [event] = effects.events
    assert isinstance(event, Discarded)
    assert (event.message, event.recipients, event.reason) == (held.active.id, (0,), reason)


async def test_the_sender_of_verp_mail_is_the_owner(reporting: Reporting) -> None:
    held = await reporting.lease("no1@a.example", sender="list-@sender.example-@[]")
    report = only((await reporting.effects(held, BOUNCED)).reports)
    assert [r.address for r in report.recipients] == ["list-@sender.example"]


async def test_the_zone_of_reports(reporting: Reporting) -> None:
    reporting.with_bounce(BounceSettings(zone="bounces"))
    held = await reporting.lease("no1@a.example")
    report = only((await reporting.effects(held, BOUNCED)).reports)
    assert [r.zone for r in report.recipients] == ["bounces"]


# ---- warnings


def age(held: Lease, hours: int) -> None:
    """Make the message of ``held`` older than the zone's ``warn_after``."""
    born_ms = int(held.active.id[:12], 16) - hours * 3_600_000
    held.active.meta = held.active.meta._replace(born_ms=born_ms)


async def test_one_warning_of_delay(directory: Path) -> None:
    async with opened(directory, clock.now_ms, store="memory") as queue:
        reporting = Reporting(queue, directory)
        held = await reporting.lease("later@a.example", "later2@a.example")
        assert await reporting.effects(held, DEFERRED, DEFERRED) == SettleEffects()
        age(held, 5)
        effects = await reporting.effects(held, DEFERRED, DEFERRED)
        assert effects.warned
        assert effects.failure_report == ""
        assert b"later2@a.example" in text(only(effects.reports))
        assert b"delayed" in text(only(effects.reports))
        held.active.meta = held.active.meta._replace(warned=True)
        assert await reporting.effects(held, DEFERRED, DEFERRED) == SettleEffects()


async def test_no_warning_about_a_report(directory: Path) -> None:
    async with opened(directory, clock.now_ms, store="memory") as queue:
        reporting = Reporting(queue, directory)
        held = await reporting.lease("later@a.example", sender="")
        age(held, 5)
        effects = await reporting.effects(held, DEFERRED)
        assert (list(effects.reports), list(effects.events), effects.warned) == ([], [], False)


# ---- how much of the message


@pytest.mark.parametrize(
    ("settings", "ret", "whole"),
    [
        (BounceSettings(), "", True),
        (BounceSettings(), "HDRS", False),
        (BounceSettings(return_="headers"), "", False),
        (BounceSettings(return_="headers"), "FULL", True),
    ],
)
async def test_the_body_is_returned_by_ret_or_setting(
    reporting: Reporting, settings: BounceSettings, ret: str, whole: bool
) -> None:
    reporting.with_bounce(settings)
    held = await reporting.lease("no1@a.example", body=b"the whole body\r\n")
    held.active.meta = held.active.meta._replace(ret=ret)
    report = text(only((await reporting.effects(held, BOUNCED)).reports))
    assert (b"the whole body" in report) == whole
    assert b"Subject: test" in report


@pytest.mark.parametrize("form", ["rfc3464", "qsbmf"])
async def test_a_large_message_is_cut(reporting: Reporting, form: str) -> None:
    reporting.with_bounce(BounceSettings(format=form, max_bytes=Size(2000)))
    body = b"".join(b"line %05d\r\n" % number for number in range(20_000))
    held = await reporting.lease("no1@a.example", body=body)
    report = text(only((await reporting.effects(held, BOUNCED)).reports))
    assert b"Subject: test" in report
    assert b"line 00999" not in report
    assert len(report) < 6000


@pytest.mark.parametrize("max_bytes", range(1024, 1030))
async def test_a_message_is_cut_behind_a_line(reporting: Reporting, max_bytes: int) -> None:
    """Not between CR and LF: a report with a bare CR is refused."""
    reporting.with_bounce(BounceSettings(format="qsbmf", max_bytes=Size(max_bytes)))
    held = await reporting.lease("no1@a.example", body=b"line\r\n" * 1000)
    report = text(only((await reporting.effects(held, BOUNCED)).reports))
    assert b"line\r\n" + STRIPPED in report
    assert b"\r" not in report.replace(b"\r\n", b"")


async def test_a_damaged_body_is_left_out(reporting: Reporting) -> None:
    """The report matters more than what it returns."""
    held = await reporting.lease("no1@a.example", body=b"x" * 100_000)
    held.active.body = None
    held.active.mark = held.active.mark._replace(crc=held.active.mark.crc ^ 1)
    reporting.with_bounce(BounceSettings(max_bytes=Size(1 << 20)))
    report = text(only((await reporting.effects(held, BOUNCED)).reports))
    assert b"no1@a.example" in report
    assert b"xxxx" not in report


# ---- functions and defects


async def test_qsbmf_reports_failures_and_delays_apart(reporting: Reporting) -> None:
    reporting.with_bounce(BounceSettings(format="qsbmf"))
    held = await reporting.lease("no1@a.example")
    report = text(only((await reporting.effects(held, BOUNCED)).reports))
    assert b"Hi. This is the" in report
    assert b"<no1@a.example>:" in report


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda bounce: bounce._replace(header=b"Subject: changed\r\n"), b"Subject: changed"),
        (lambda bounce: bounce._replace(body=b"short\r\n"), b"short"),
        (lambda bounce: 1 / 0, b"no such user"),
    ],
)
async def test_a_bounce_function(
    reporting: Reporting, function: Callable[[Bounce], Bounce], expected: bytes
) -> None:
    reporting.hooks = Hooks(bounce=function)
    held = await reporting.lease("no1@a.example")
    assert expected in text(only((await reporting.effects(held, BOUNCED)).reports))


async def test_a_bounce_function_that_discards(reporting: Reporting) -> None:
    reporting.hooks = Hooks(bounce=lambda bounce: None)
    held = await reporting.lease("no1@a.example")
    effects = await reporting.effects(held, BOUNCED)
    assert not effects.reports
    assert [event.reason for event in effects.events if isinstance(event, Discarded)] == [
        "bounce function"
    ]


async def test_a_defect_does_not_stop_a_settle(
    reporting: Reporting, caplog: pytest.LogCaptureFixture
) -> None:
    """The outcome counts; the defect is in the log, and the report that is missing in the event log."""
    reporting.with_bounce(BounceSettings(format=cast(str, None)))
    reporting.router = cast(Router, None)
    held = await reporting.lease("no1@a.example")
    effects = await reporting.effects(held, BOUNCED)
    assert effects.reports == ()
    [discarded] = effects.events
    assert isinstance(discarded, Discarded)
    assert discarded.recipients == (0,)
    assert discarded.reason.startswith("not composed: AttributeError")
    assert "could be composed" in caplog.text


async def test_the_report_is_in_the_batch_of_the_settle(reporting: Reporting) -> None:
    held = await reporting.lease("no1@a.example")
    effects = await reporting.effects(held, BOUNCED)
    outcome = Outcome(held.recipients[0], *BOUNCED)
    await reporting.queue.settle(held, [outcome], effects)
    [key] = list(reporting.queue.store.keys(WAITING, end_of(WAITING)))
    assert effects.failure_report.encode() in key
    assert key.endswith(b"s@sender.example")


def noted(count: int) -> list[Note]:
    """As many refusals, with texts as long as they can be."""
    return [
        Note(
            FORMAT, "default", number, f"u{number}@a.example", "", "failed", False, 1, 1_790_000_000_000 + number * 1000,
            "rcpt", 550, "5.7.1", "\u4f60 refused " * 100, "mx.a.example",
        )
        for number in range(1, count + 1)
    ]  # fmt: skip


async def test_many_refusals_in_one_report(reporting: Reporting) -> None:
    """The texts are made in slices: others do not wait for the whole report, which is the same."""
    held = await reporting.lease("no1@a.example")
    held.active.notes = noted(10_000)
    gaps_s, done = [], asyncio.Event()

    async def watch() -> None:
        while not done.is_set():
            began_s = time.thread_time()
            await asyncio.sleep(0)
            gaps_s.append(time.thread_time() - began_s)

    watching = asyncio.create_task(watch())
    effects = await reporting.effects(held, BOUNCED)
    done.set()
    await watching
    report = text(only(effects.reports))
    assert report.count(b"Final-Recipient: rfc822; u") == 10_000
    assert max(gaps_s) < scaled(0.25)


async def test_a_report_prepared_in_slices_is_the_same(reporting: Reporting) -> None:
    held = await reporting.lease("no1@a.example")
    context = DeliveryContext(reporting.queue, reporting.config, "relay.example", reporting.router)
    held.active.notes = noted(3)
    made = []
    for is_prepared in (False, True):
        if is_prepared:
            await prepare_report(context, reporting.zone, held.active)
            assert len(context.pending.prepared) == 1
        composer = ReportComposer(context, reporting.zone, held.active)
        composer.add(held.active.notes)
        made.append(
            text(only(composer.composed))
            .partition(b"\r\n\r\n")[2]
            .replace(only(composer.composed).message.encode(), b"")
        )
    assert made[0] == made[1]
    assert made[0].count(b"Diagnostic-Code") == 3


async def test_a_report_of_an_operator_is_prepared(reporting: Reporting) -> None:
    """Step by step, each note once; nothing of it is kept."""
    held = await reporting.lease("no1@a.example")
    pending = PendingReports()
    reporter = BounceReporter(reporting.config, "relay.example", reporting.router, pending=pending)
    for count in (SLICE, 3 * SLICE, 4 * SLICE):
        held.active.notes = noted(count)
        await reporter.prepare(reporting.queue, held.active)
        found = pending.prepared.get(held.active.id, {})
        assert len(found) == (count if count > SLICE else 0)
    report = text(only(reporter.report(reporting.queue, held.active, held.active.notes).reports))
    assert report.count(b"Final-Recipient") == 4 * SLICE
    reporter.forget(held.active)
    assert pending.prepared == {}
