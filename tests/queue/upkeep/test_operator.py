"""An operator's hold, release and delete in every order, beside windows that are closed and values that are damaged."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.kit.deadlines import until
from tests.kit.queue import accept, everything, lease, opened, problems, settle
from zonemta_py.core.model import OutcomeKind
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import FORMAT, Note, RecipientRecord
from zonemta_py.queue.messages import ActiveMessage
from zonemta_py.queue.outcome import NO_EFFECTS, Outcome, SettleEffects
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.upkeep import operator
from zonemta_py.queue.upkeep.operator import Operator, Return, Withdrawal

pytestmark = pytest.mark.usefixtures("each_store")


def addresses(queue: Queue, most: int = 10) -> list[str]:
    held = queue.lease("default", "x.example", most)
    return [recipient.address for recipient in held.recipients] if held else []


async def test_hold_release_delete(directory: Path) -> None:
    """One that was held and released in the window can be deleted, and is then not sent."""
    async with opened(directory) as queue:
        message = await accept(queue, "a@x.example", "z@y.example")
        assert await Operator(queue).hold(message, "a@x.example") == (1, 0)
        assert await Operator(queue).release(message) == 1
        assert await Operator(queue).delete(message, "a@x.example") == (1, 0)
        assert addresses(queue) == []
        await settle(queue, lease(queue, "y.example"), OutcomeKind.DELIVERED)
        assert everything(queue.store) == []


async def test_hold_release_hold(directory: Path) -> None:
    async with opened(directory) as queue:
        message = await accept(queue, "a@x.example")
        for _ in range(3):
            assert await Operator(queue).hold(message) == (1, 0)
            assert addresses(queue) == []
            assert await Operator(queue).release(message) == 1
        held = lease(queue, "x.example")
        assert await Operator(queue).hold(message) == (0, 1)
        await settle(queue, held, OutcomeKind.DELIVERED)
        assert everything(queue.store) == []


async def test_released_while_its_destination_rests(directory: Path) -> None:
    """A closed window puts its mail back on disk; a recipient released meanwhile is found there."""
    async with opened(directory) as queue:
        message = await accept(queue, "a@x.example")
        other = await accept(queue, "b@x.example")
        await Operator(queue).hold(message)
        queue.windows.set_unreachable("default", "x.example")
        await Operator(queue).release(message)
        queue.windows.zone("default").set_reachable("x.example")
        found: list[str] = []

        def all_found() -> bool:
            while held := queue.lease("default", "x.example", 10):
                found.extend(r.message for r in held.recipients)
            return sorted(found) == [message, other]

        await until(all_found, "both")


async def test_a_damaged_recipient_does_not_stop_the_operator(directory: Path, each_store: str) -> None:
    """The readable ones are deleted, the damaged one stays, nothing is left withdrawn or pinned."""
    if each_store == "filesystem":
        return  # its records cannot be damaged by key
    async with opened(directory) as queue:
        message = await accept(queue, "a@x.example", "b@x.example", "c@y.example")
        key = keys.waiting_key("default", message, "b@x.example")
        queue.store.write(queue.store.batch([(key, b"\xc1")], sync=True))
        assert await Operator(queue).delete(message, "a@x.example") == (1, 0)
        assert await Operator(queue).delete(message) == (1, 0)
        assert problems(queue.store) != []


async def test_leased_the_moment_it_is_on_disk(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that finds a spilled message before its accept has returned counts with the same entry."""
    async with opened(directory, window=100) as queue:
        for n in range(20):
            await accept(queue, f"{n}@x.example")
        done: list[str] = []
        write = queue.store.write

        def watched(batch: object) -> None:
            write(batch)
            done.append("written")

        monkeypatch.setattr(queue.store, "write", watched)
        accepting = asyncio.ensure_future(accept(queue, "last@x.example", "last@y.example"))
        while not accepting.done():
            while held := queue.lease("default", "x.example", 1):
                await settle(queue, held, OutcomeKind.DELIVERED)
            await asyncio.sleep(0)
        while held := queue.lease("default", "x.example", 1):
            await settle(queue, held, OutcomeKind.DELIVERED)
        await settle(queue, lease(queue, "y.example"), OutcomeKind.DELIVERED)
        monkeypatch.undo()
        await until(lambda: everything(queue.store) == [], "the last key to go")


class CountedReports:
    """Reports that are only counted."""

    def __init__(self) -> None:
        self.reported: list[list[str]] = []

    def notes(self, active: ActiveMessage, outcomes: Sequence[Outcome]) -> Sequence[Note]:
        return [
            Note(
                FORMAT, o.recipient.zone, o.recipient.record.recipient_index, o.recipient.address, "", "failed",
                False, 1, 0, "operator", 0, "5.0.0", "x", "",
            )
            for o in outcomes
        ]  # fmt: skip

    async def prepare(self, queue: Queue, active: ActiveMessage) -> None:
        await asyncio.sleep(0)

    def forget(self, active: ActiveMessage) -> None:
        pass

    def report(self, queue: Queue, active: ActiveMessage, notes: Sequence[Note]) -> SettleEffects:
        self.reported.append([note.recipient for note in notes])
        return NO_EFFECTS


async def test_a_return_beside_the_end_of_the_message(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delivery ends the message between two steps: the report on what was returned is that of its settle."""
    monkeypatch.setattr(operator, "STEP", 1)
    async with opened(directory) as queue:
        reports = CountedReports()
        monkeypatch.setattr(queue.reporting, "_reports", reports)
        message = await accept(queue, "a@x.example", "b@y.example")
        held = lease(queue, "y.example")
        (count, busy), _ = await asyncio.gather(
            Operator(queue).bounce(message), settle(queue, held, OutcomeKind.DELIVERED)
        )
        assert (count, busy) in ((1, 0), (1, 1))
        assert reports.reported == []
        assert everything(queue.store) == []


async def test_a_return_in_steps(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One report at the end of the command, on all that it returned; what stays is not in it."""
    monkeypatch.setattr(operator, "STEP", 1)
    async with opened(directory) as queue:
        reports = CountedReports()
        monkeypatch.setattr(queue.reporting, "_reports", reports)
        message = await accept(queue, "a@x.example", "b@y.example", "c@x.example")
        held = lease(queue, "y.example")
        assert await Operator(queue).bounce(message) == (2, 1)
        assert reports.reported == [["a@x.example", "c@x.example"]]
        assert held.active.notes == []
        await settle(queue, held, OutcomeKind.DELIVERED)
        assert len(reports.reported) == 1
        assert everything(queue.store) == []


async def test_a_return_of_which_a_part_is_reported_before(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report on earlier failures of the message comes between two steps: each failure is reported once."""
    monkeypatch.setattr(operator, "STEP", 1)
    async with opened(directory) as queue:
        reports = CountedReports()
        monkeypatch.setattr(queue.reporting, "_reports", reports)
        write = Return.write

        def reported_between(
            change: Return, withdrawal: Withdrawal, key: bytes, record: RecipientRecord
        ) -> None:
            write(change, withdrawal, key, record)
            if len(change._notes) == 2:
                withdrawal.active.notes = []  # as the report of a minute leaves it

        monkeypatch.setattr(Return, "write", reported_between)
        message = await accept(queue, "a@x.example", "b@x.example", "c@x.example", "d@y.example")
        held = lease(queue, "y.example")
        assert await Operator(queue).bounce(message) == (3, 1)
        assert reports.reported == [["c@x.example"]]
        await settle(queue, held, OutcomeKind.DELIVERED)
