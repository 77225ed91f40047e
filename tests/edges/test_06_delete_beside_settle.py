"""6. An operator's delete beside the end of a transaction: one of the two ends the message, with one report."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.kit.deadlines import until
from tests.kit.queue import NO, accept, events, everything, lease, opened, outcomes, problems
from tests.kit.relay import empty, logged_events, relaying, send, staged
from zonemta_py.core.model import OutcomeKind
from zonemta_py.queue.format import keys
from zonemta_py.queue.outcome import SettleEffects
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.upkeep.operator import Operator
from zonemta_py.sink.script import Rule, Step

BODY = b"Subject: x\r\n\r\nhello\r\n"


async def both(queue: Queue, *, delete_first: bool) -> str:
    """Bounce one recipient and delete the other, in one turn of the loop; returns the message."""
    message = await accept(queue, "a@x.example", "b@y.example")
    held = lease(queue, "x.example")
    await queue.start(held)

    async def settle() -> None:
        await queue.settle(held, outcomes(held, OutcomeKind.BOUNCED, NO), SettleEffects())

    async def delete() -> None:
        assert await Operator(queue).delete(message, "b@y.example") == (1, 0)

    steps = [delete, settle] if delete_first else [settle, delete]
    await asyncio.gather(*(step() for step in steps))
    return message


@pytest.mark.parametrize("store", ["leveldb", "filesystem"])
@pytest.mark.parametrize("delete_first", [True, False])
async def test_the_message_ends_once(
    directory: Path, store: str, delete_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly one of the two batches removes the envelope, and it is the later one."""
    ends: list[str] = []
    async with opened(directory, store=store) as queue:
        from zonemta_py.queue import transitions

        last = transitions.last

        def noted(batch: Any, message: str, *more: Any) -> None:
            ends.append(message)
            last(batch, message, *more)

        monkeypatch.setattr(transitions, "last", noted)
        message = await both(queue, delete_first=delete_first)
        await until(lambda: everything(queue.store) == [], "the end of the message")
        assert ends == [message]
        assert problems(queue.store) == []
        assert sorted(str(event["event"]) for event in events(queue.store)) == [
            "accepted", "bounced", "deleted",
        ]  # fmt: skip


async def test_one_report_for_a_failure(directory: Path) -> None:
    """``aggregate: message`` on a real relay: 60 deletes at the moment of the other recipient's reply."""
    async with staged(directory) as stage:
        home = await stage.receiver("a.example")
        await stage.receiver("no.example", Rule(Step.RCPT, reply="550 5.1.1 no"))
        await stage.receiver("later.example", Rule(Step.RCPT, reply="451 4.7.1 later"))
        config = stage.config(
            zones={"default": {"bounce": {"aggregate": "message"}, "retry": {"delays": ["1h"]}}}
        )
        async with relaying(config) as relay:
            for number in range(60):
                await send(
                    relay, [f"u{number}@no.example", f"v{number}@later.example"], BODY, "s@a.example"
                )
            removed: set[str] = set()
            while len(removed) < 60:
                await until(lambda: deferred(relay.queue) - removed, "a deferral")
                for message in deferred(relay.queue) - removed:
                    if (await Operator(relay.queue).delete(message))[0]:
                        removed.add(message)
            await empty(relay)
            await until(lambda: home.tally.messages >= len(bounced(directory)), "the reports")
    failed = bounced(directory)
    reports = [
        event["report_for"] for event in logged_events(directory, "accepted") if event["report_for"]
    ]
    assert sorted(reports) == sorted(set(failed))


def deferred(queue: Queue) -> set[str]:
    """The messages with a deferred recipient."""
    found = queue.store.keys(keys.DEFERRED, keys.end_of(keys.DEFERRED))
    return {keys.parse_recipient(key)[1] for key in found}


def bounced(directory: Path) -> list[str]:
    return [event["message"] for event in logged_events(directory, "bounced")]
