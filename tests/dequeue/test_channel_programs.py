"""The contract of the MTA SDK's channel programs: messages, recipients, dispositions, threads, limits.

The number at the end of a name is that of the requirement which the test checks.
"""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit.deadlines import scaled, until
from tests.kit.dequeue import (
    BODY,
    ZONE,
    meta_of,
    opened,
    per_recipient,
    reports,
    rows,
    run,
    settings,
    stored,
)
from zonemta_py import Queue
from zonemta_py.config.tenants import TenantSettings
from zonemta_py.core.errors import NotAccepted
from zonemta_py.dequeue import (
    ABORT,
    AsyncMessage,
    BadArgument,
    Disposition,
    Message,
    NotInMessage,
    WrongOrder,
    WrongThread,
    dequeue,
)
from zonemta_py.queue.format import keys
from zonemta_py.queue.upkeep.move import flush
from zonemta_py.smtp.reports.dsn import DELAY, FAILURE, NEVER, SUCCESS

TENANTS = {
    "acme": TenantSettings(users=("ann",), domains=("acme.example",)),
    "globex": TenantSettings(users=("bob",), domains=("globex.example",)),
}
FAST: dict[str, Any] = {"retry_interval_s": 0.01, "max_attempts": 1}


async def put(
    queue: Queue, *to: str, notify: int = 0, envid: str = "", sender: str = "s@a.example"
) -> str:
    """A message in the zone; with what its sender asks about reports."""
    new = queue.start(sender, zone=ZONE)
    new._envid = envid  # what a client would say at MAIL
    for address in to or ("u@b.example",):
        new.to(address)
    new._recipients = [type(r)(r.address, notify, f"rfc822;{r.address}") for r in new._recipients]
    await new.write(BODY)
    return await new.finish()


async def settled(queue: Queue, disposition: int, reason: str = "") -> None:
    """Finish every message so."""

    async def routine(message: AsyncMessage) -> None:
        await message.finish(disposition, reason)

    await run(queue, routine)


async def test_unfinished_messages_are_deferred_01(directory: Path) -> None:
    """A routine that returns without finish: the message stays, one attempt more, due after the first delay; no report."""
    async with opened(directory) as queue:
        for _ in range(3):
            await put(queue)
        assert await run(queue, lambda message: asyncio.sleep(0), backoff=[120.0, 300.0]) == 3
        left = rows(queue)
        assert [(row["attempts"], row["state"]) for row in left] == [(1, "deferred")] * 3
        now_ms = queue.channels.context.queue.now()
        assert all(110_000 < row["due_ms"] - now_ms <= 120_000 for row in left)
        assert await reports(queue) == []


async def test_messages_of_a_routine_that_raises_are_deferred_02(directory: Path) -> None:
    """An exception defers its message; the same thread processes the others."""
    seen: list[SimpleNamespace] = []

    async def routine(message: AsyncMessage) -> None:
        seen.append(message.thread)
        if len(seen) == 2:
            raise ValueError("a defect of the program's")
        await message.finish(Disposition.DELIVERED)

    async with opened(directory) as queue:
        for _ in range(4):
            await put(queue)
        assert await run(queue, routine, max_threads=1) == 4
        assert [row["attempts"] for row in rows(queue)] == [1]
        assert len({id(each) for each in seen}) == 1


async def test_calls_out_of_order_raise_03(directory: Path) -> None:
    """Lines and rewind before the last recipient raise WrongOrder, and so does every call after finish."""
    errors: list[str] = []

    async def routine(message: AsyncMessage) -> None:
        for call in (message.next_line, message.rewind):
            with pytest.raises(WrongOrder) as caught:
                call()
            errors.append(str(caught.value))
        list(message.recipients())
        await message.finish(Disposition.DELIVERED)
        finished: list[Callable[[], object]]
        finished = [message.next_recipient, message.next_line, message.rewind, lambda: message.info]
        for call_finished in finished:
            with pytest.raises(WrongOrder, match="is finished"):
                call_finished()
        with pytest.raises(WrongOrder):
            message.dispose("u@b.example", Disposition.FAILED)
        with pytest.raises(WrongOrder):
            await message.finish()
        with pytest.raises(WrongOrder):
            message.start()

    async with opened(directory) as queue:
        await put(queue)
        await run(queue, routine)
        assert rows(queue) == []
    assert errors == ["read all recipients before the lines (MTA_ORDER)"] * 2


async def test_each_recipient_is_returned_once_04(directory: Path) -> None:
    """Each recipient is returned once, then None, however often it is called."""

    async def routine(message: AsyncMessage) -> None:
        with pytest.raises(NotInMessage, match="no recipient was read yet"):
            _ = message.recipient
        first = message.next_recipient()
        assert first == message.recipient
        assert first is not None
        others = [recipient.address for recipient in message.recipients()]
        assert [first.address, *others] == ["a@x.example", "b@x.example", "c@y.example"]
        assert message.next_recipient() is None
        assert message.next_recipient() is None
        await message.finish(Disposition.DELIVERED)

    async with opened(directory) as queue:
        await put(queue, "a@x.example", "b@x.example", "c@y.example")
        await run(queue, routine)
        assert rows(queue) == []


async def test_lines_are_those_of_the_body_05(directory: Path) -> None:
    """Lines of a 1 MiB body that cross the edges of chunks; the same again after rewind; a header without body ends after it."""
    lines = [(b"%07d " % n) * (n % 9 + 1) for n in range(30_000)]
    body = b"\r\n".join([*lines, b"the end without an end"])
    found: dict[str, list[bytes]] = {}

    async def routine(message: AsyncMessage) -> None:
        list(message.recipients())
        first = list(message.lines())
        assert message.next_line() is None
        message.rewind()
        assert list(message.lines()) == first
        found[message.info.id] = first
        await message.finish(Disposition.DELIVERED)

    async with opened(directory) as queue:
        large = await queue.enqueue(
            "s@a.example", ["u@b.example"], b"Subject: x\r\n\r\n" + body, zone=ZONE
        )
        alone = await queue.enqueue("s@a.example", ["u@b.example"], b"Subject: y\r\n\r\n", zone=ZONE)
        await run(queue, routine)
    header, text = found[large][: found[large].index(b"")], found[large][found[large].index(b"") + 1 :]
    assert len(body) > 1 << 20
    assert text == body.split(b"\r\n")
    assert header[-1] == b"Subject: x"
    assert found[alone][-1] == b"Subject: y"


async def test_delivered_removes_the_message_06(directory: Path) -> None:
    """The queue is empty, without a report; with NOTIFY=SUCCESS there is one, from the null sender."""
    async with opened(directory) as queue:
        await put(queue, "a@x.example")
        await settled(queue, Disposition.DELIVERED)
        assert rows(queue) == []
        await put(queue, "a@x.example", notify=SUCCESS)
        await settled(queue, Disposition.DELIVERED)
        (report,) = await reports(queue)
        (about,) = per_recipient(report)
        assert (about["Action"], about["Final-Recipient"]) == ("delivered", "rfc822; a@x.example")
        assert rows(queue) == []


async def test_failed_makes_a_report_07(directory: Path) -> None:
    """A report with the reason to the sender; none when NOTIFY leaves out FAILURE, none to the null sender."""
    async with opened(directory) as queue:
        await put(queue, "a@x.example")
        await settled(queue, Disposition.FAILED, "550 5.1.1 x is not here")
        (report,) = await reports(queue)
        (about,) = per_recipient(report)
        assert (report["To"], about["Action"], about["Status"]) == ("<s@a.example>", "failed", "5.1.1")
        assert "x is not here" in about["Diagnostic-Code"]
        await put(queue, notify=NEVER)
        await put(queue, notify=DELAY)
        await put(queue, sender="")
        await settled(queue, Disposition.FAILED, "x")
        assert await reports(queue) == []
        assert rows(queue) == []


@pytest.mark.parametrize(
    ("disposition", "action"),
    [
        (Disposition.RELAYED, None),
        (Disposition.RELAYED_FOREIGN, "relayed"),
        (Disposition.RETURN, "failed"),
        (Disposition.TIMEDOUT, "failed"),
    ],
)
async def test_reports_of_the_other_dispositions_08(
    directory: Path, disposition: Disposition, action: str | None
) -> None:
    """RELAYED makes no report, RELAYED_FOREIGN one with action relayed, RETURN and TIMEDOUT one with action failed."""
    async with opened(directory) as queue:
        await put(queue, notify=SUCCESS | FAILURE)
        await settled(queue, disposition)
        found = [about["Action"] for report in await reports(queue) for about in per_recipient(report)]
        assert found == ([action] if action else [])
        assert rows(queue) == []


@pytest.mark.parametrize("size", [10, 200_000])
async def test_mixed_dispositions_make_a_new_message_09(directory: Path, size: int) -> None:
    """The old message is gone; a new one has the deferred recipient, the same bytes, flags and age."""
    found: list[bytes] = []

    async def routine(message: AsyncMessage) -> None:
        for recipient in message.recipients():
            kind = Disposition.DEFERRED if recipient.address == "b@x.example" else Disposition.DELIVERED
            message.dispose(recipient.address, kind, "421 4.3.2 not now")
        found.append(b"\n".join(message.lines()))
        await message.finish()

    async with opened(directory) as queue:
        new = queue.start("s@a.example", zone=ZONE)
        new._envid = "E+3D1"
        for address in ("a@x.example", "b@x.example", "c@x.example"):
            new.to(address)
        new._recipients = [type(r)(r.address, FAILURE, "rfc822;o@x") for r in new._recipients]
        await new.write(BODY + b"y" * 98 + b"\r\n" * (size // 2))
        old = await new.finish()
        before = meta_of(queue, old)
        await run(queue, routine)
        (row,) = rows(queue)
        after = meta_of(queue, row["message"])
        assert row["message"] != old
        assert (row["recipient"], row["attempts"], row["reply"]) == ("b@x.example", 1, "not now")
        assert (after.envid, after.sender, after.header) == ("E+3D1", before.sender, before.header)
        assert after.born_ms == keys.created_ms(old)
        assert queue.channels.context.queue.store.get(keys.mark_key(old)) is None
        await flush(queue.channels.context.queue)

        async def again(message: AsyncMessage) -> None:
            (recipient,) = message.recipients()
            assert (recipient.orcpt, recipient.notify) == ("rfc822;o@x", FAILURE)
            assert message.info.accepted_ms == keys.created_ms(old)
            found.append(b"\n".join(message.lines()))
            await message.finish(Disposition.DELIVERED)

        await run(queue, again)
        assert rows(queue) == []
        await until(lambda: not stored(queue))
    assert found[0] == found[1]


@pytest.mark.parametrize("point", ["requeue.unwritten", "requeue.written"])
async def test_killed_in_a_mixed_finish_09(directory: Path, point: str) -> None:
    """After a kill exactly one of the old and the new message is stored, complete."""
    async with opened(directory) as queue:
        old = await put(queue, "a@x.example", "b@x.example", "c@x.example")
    program = Path(__file__).parent / "mixed_program.py"
    done = subprocess.run(
        [sys.executable, program, directory, point],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        check=False,
        capture_output=True,
        timeout=scaled(60),
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    async with opened(directory) as queue:
        left = rows(queue)
        if point == "requeue.unwritten":
            assert [(row["message"], row["recipient"]) for row in left] == [
                (old, "a@x.example"), (old, "b@x.example"), (old, "c@x.example"),
            ]  # fmt: skip
        else:
            assert [row["recipient"] for row in left] == ["b@x.example"]
            assert left[0]["message"] != old
        assert stored(queue) == {left[0]["message"]}


async def test_abort_defers_all_recipients_10(directory: Path) -> None:
    """An abort after FAILED was set: no report, all recipients deferred in their message."""

    async def routine(message: AsyncMessage) -> None:
        for recipient in message.recipients():
            message.dispose(recipient.address, Disposition.FAILED, "no")
        await message.abort("the disk is full")

    async with opened(directory) as queue:
        message = await put(queue, "a@x.example", "b@x.example")
        await run(queue, routine)
        assert [(row["message"], row["reply"]) for row in rows(queue)] == [
            (message, "the disk is full")
        ] * 2
        assert await reports(queue) == []


async def test_the_disposition_of_finish_overrides_11(directory: Path) -> None:
    """The disposition given to finish replaces those of single recipients."""

    async def routine(message: AsyncMessage) -> None:
        for recipient in message.recipients():
            message.dispose(recipient.address, Disposition.DELIVERED)
        await message.finish(Disposition.DEFERRED)

    async with opened(directory) as queue:
        await put(queue, "a@x.example", "b@x.example")
        await run(queue, routine)
        assert [row["attempts"] for row in rows(queue)] == [1, 1]


async def test_bad_arguments_raise_12(directory: Path) -> None:
    """A disposition out of range and an address that is not in the message raise."""

    async def routine(message: AsyncMessage) -> None:
        with pytest.raises(BadArgument, match=r"7 is not a disposition.*\(MTA_BADARGS\)"):
            message.dispose("u@b.example", 7)
        with pytest.raises(NotInMessage, match=r"'U@b.example' is not a recipient.*\(MTA_NO\)"):
            message.dispose("U@b.example", Disposition.FAILED)
        with pytest.raises(BadArgument):
            await message.finish(-1)
        await message.finish(Disposition.DELIVERED)

    async with opened(directory) as queue:
        await put(queue)
        await run(queue, routine)
        assert rows(queue) == []
        with pytest.raises(BadArgument, match="max_threads"):
            await run(queue, routine, max_threads=0)


@pytest.mark.parametrize(("threads", "per_thread"), [(1, 20), (5, 4)])
async def test_limits_of_threads_13(directory: Path, threads: int, per_thread: int) -> None:
    """No more routines at once than allowed; each thread keeps its state, calls thread_done once and respects its message limit."""
    lock = threading.Lock()
    running = most = 0
    full = threading.Event()
    handled: Counter[int] = Counter()
    ended: list[int] = []
    kept: list[object] = []

    def routine(message: Message) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == threads:
                full.set()
        assert full.wait(scaled(30)), "the limit was never reached"
        message.thread.owner = getattr(message.thread, "owner", threading.get_ident())
        assert message.thread.owner == threading.get_ident()
        with lock:
            handled[id(message.thread)] += 1
            message.thread.count = handled[id(message.thread)]
            kept.append(message.thread)  # so that its id is its own
            running -= 1
        message.finish(Disposition.DELIVERED)

    async with opened(directory) as queue:
        for _ in range(50):
            await put(queue)
        count = await asyncio.to_thread(
            dequeue, queue, ZONE, routine, lambda thread: ended.append(thread.count), threads, per_thread, **FAST
        )  # fmt: skip
        assert count == 50
        assert rows(queue) == []
    assert most == threads
    assert sorted(ended) == sorted(handled.values())
    assert sum(ended) == 50
    assert max(ended) <= per_thread


async def test_abort_from_every_routine_ends_the_run_14(directory: Path) -> None:
    """Every routine returns ABORT: the run ends, and messages not handed out are unchanged."""
    ended: list[object] = []

    async def routine(message: AsyncMessage) -> object:
        await message.finish(Disposition.DELIVERED)
        return ABORT

    async with opened(directory) as queue:
        for _ in range(10):
            await put(queue)
        assert await run(queue, routine, done=ended.append, max_threads=2) <= 2
        left = rows(queue)
        assert 8 <= len(left) <= 9
        assert {(row["attempts"], row["state"]) for row in left} == {(0, "waiting")}
        assert 1 <= len(ended) <= 2


async def test_the_run_ends_when_idle_15(directory: Path) -> None:
    """The run ends after max_attempts empty polls; a message that arrives meanwhile is handed out and resets the count."""
    seen: list[str] = []

    async def routine(message: AsyncMessage) -> None:
        seen.append(message.info.id)
        await message.finish(Disposition.DELIVERED)

    async with opened(directory) as queue:
        task = asyncio.create_task(run(queue, routine, retry_interval_s=0.2, max_attempts=2))
        for number in range(3):
            await put(queue)
            await until(lambda number=number: len(seen) > number, "the message")
            assert not task.done()
        assert await task == 3


async def test_a_message_belongs_to_one_thread_16(directory: Path) -> None:
    """A call from another thread raises WrongThread."""
    caught: list[Exception] = []

    def routine(message: Message) -> None:
        message.next_recipient()

        def elsewhere() -> None:
            for call in (message.next_recipient, message.finish):
                try:
                    call()
                except WrongThread as exc:
                    caught.append(exc)

        other = threading.Thread(target=elsewhere)
        other.start()
        other.join()
        message.finish(Disposition.DELIVERED)

    async with opened(directory) as queue:
        await put(queue)
        await asyncio.to_thread(dequeue, queue, ZONE, routine, **FAST)
        assert rows(queue) == []
        with pytest.raises(WrongThread, match="adequeue"):
            dequeue(queue, ZONE, routine)
    assert len(caught) == 2
    assert "(MTA_THREAD)" in str(caught[0])


async def test_an_intermediate_channel_keeps_the_envelope_17(directory: Path) -> None:
    """A message that replaces another keeps its envelope; an aborted one leaves no chunk."""
    seen: list[str] = []

    async def routine(message: AsyncMessage) -> None:
        seen.append(message.info.id)
        new = message.start(zone="default")
        for recipient in message.recipients():
            new.to(recipient)
        await new.copy(message)
        for _ in range(4):
            await new.write_line(b"z" * 50_000)
        if len(seen) == 1:
            await new.abort()
            return
        await new.finish()
        await message.finish(Disposition.RELAYED)

    async def last(message: AsyncMessage) -> object:
        (recipient,) = message.recipients()
        assert (recipient.notify, recipient.orcpt) == (SUCCESS, "rfc822;u@b.example")
        assert (message.info.envid, message.sender) == ("E1", "s@a.example")
        assert list(message.lines())[-5:] == [b"hello", *[b"z" * 50_000] * 4]
        await message.finish(Disposition.DELIVERED)
        seen.append("last")
        return ABORT  # the report about it comes into the same zone

    async with opened(directory) as queue:
        old = await put(queue, notify=SUCCESS, envid="E1")
        inner = queue.channels.context.queue
        await run(queue, routine)
        await until(lambda: stored(queue) == {old}, "the chunks of the aborted one to go")
        await flush(inner)
        await run(queue, routine)
        assert stored(queue) == {row["message"] for row in rows(queue, "default")}
        await run(queue, last, "default", max_threads=1)
        assert seen == [old, old, "last"]
        (report,) = await reports(queue)
        assert per_recipient(report)[0]["Action"] == "delivered"
        await until(lambda: not stored(queue))


async def test_retry_times_warning_and_end_18(directory: Path) -> None:
    """Attempts at +2, +7, +17, +47, +77 minutes; a delay report when NOTIFY asks for it; returned after a day."""
    async with opened(directory, give_up_after=86_400.0, warn_after=7_200.0) as queue:
        inner = queue.channels.context.queue
        began_ms = inner.now()
        at_ms = began_ms
        inner.now = lambda: at_ms
        inner.deferral._now = lambda: at_ms
        await put(queue, notify=DELAY | FAILURE)
        await put(queue, notify=FAILURE)
        made: list[int] = []

        async def routine(message: AsyncMessage) -> None:
            made.append((at_ms - began_ms) // 60_000)

        while True:
            await run(queue, routine, backoff=[120.0, 300.0, 600.0, 1800.0])
            left = rows(queue, ZONE)
            if not left:
                break
            at_ms = min(row["due_ms"] for row in left)
            while await inner.deferral.wake_due(at_ms):
                pass
        offsets = made[::2]
        assert offsets[:6] == [0, 2, 7, 17, 47, 77]
        assert offsets[-1] == 24 * 60
        kinds = [
            (about["Action"], about["Status"])
            for report in await reports(queue)
            for about in per_recipient(report)
        ]
        assert Counter(kinds) == {("failed", "4.4.7"): 2}


async def test_deferred_messages_come_when_due_19(directory: Path) -> None:
    """A deferred message is not handed out again in the same run before it is due."""
    seen: list[str] = []

    async def routine(message: AsyncMessage) -> None:
        seen.append(message.info.id)
        if len(seen) == 3:
            await flush(queue.channels.context.queue)

    async with opened(directory) as queue:
        for _ in range(3):
            await put(queue)
        await run(queue, routine, max_threads=1)
        assert len(set(seen[:3])) == 3
        assert len(seen) == 5, "the two that were deferred before the flush"
        assert "(MTA_" in str(WrongOrder("x"))


async def test_new_mail_is_of_the_tenant_of_the_message(directory: Path) -> None:
    """It may send as that tenant only; new mail of the program itself is of none."""
    made: dict[str, str] = {}

    async def routine(message: AsyncMessage) -> Disposition:
        assert message.info.tenant == "acme"
        recipients = list(message.recipients())
        for author in ("n@acme.example", "ceo@globex.example"):
            new = message.start(zone="default")
            new.to(recipients[0])
            try:
                await new.write(f"From: {author}\r\n\r\nhello\r\n".encode())
                made[author] = await new.finish()
            except NotAccepted as exc:
                made[author] = str(exc)
        return Disposition.RELAYED

    config = replace(settings(directory), tenants=TENANTS)
    async with Queue(config) as queue:
        data = b"From: n@acme.example\r\n\r\nhello\r\n"
        await queue.enqueue("s@acme.example", ["u@b.example"], data, user="ann", zone=ZONE)
        with pytest.raises(NotAccepted, match=r"^553 5\.7\.1 bob may not send as s@acme\.example$"):
            await queue.enqueue("s@acme.example", ["u@b.example"], data, user="bob", zone=ZONE)
        await run(queue, routine)
        assert meta_of(queue, made["n@acme.example"]).origin.tenant == "acme"
        assert made["ceo@globex.example"].startswith("553 5.7.1 127.0.0.1 may not send as")
        own = queue.start("s@globex.example", zone=ZONE)
        own.to("u@b.example")
        await own.write(b"From: ceo@globex.example\r\n\r\nhello\r\n")
        assert meta_of(queue, await own.finish()).origin.tenant == ""
