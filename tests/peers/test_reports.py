"""9. A list with many dead recipients: its sender gets some reports, and then digests."""

from email import message_from_bytes
from pathlib import Path

import pytest

from tests.kit.deadlines import until
from tests.kit.queue import problems
from tests.kit.relay import empty, received, relaying, send, staged
from tests.peers.scripts import SENDERS
from zonemta_py.delivery import report_composer
from zonemta_py.events.accounting import read_history
from zonemta_py.queue.format.keys import DIGEST, end_of
from zonemta_py.relay.relay import Relay
from zonemta_py.sink.script import Rule, Step

MESSAGES = 40
REFUSING = Rule(Step.RCPT, reply="550 5.1.1 no such user")


def subjects(messages: list[bytes]) -> list[str]:
    return [str(message_from_bytes(message)["Subject"]) for message in messages]


def put_off(relay: Relay) -> int:
    """How many reports wait for a digest."""
    return len(list(relay.queue.store.keys(DIGEST, end_of(DIGEST))))


@SENDERS
async def test_a_storm(directory: Path, monkeypatch: pytest.MonkeyPatch, senders: int) -> None:
    """Five reports; the others wait, over a restart too, and are one message. The account of the event log is even."""
    async with staged(directory) as stage:
        await stage.receiver("a.example", REFUSING)
        home = await stage.receiver("sender.example")
        config = stage.config(
            zones={"default": {"bounce": {"reports_per_hour": 5}}},
            processes={"receivers": 0, "senders": senders},
        )
        async with relaying(config) as relay:
            for number in range(MESSAGES):
                await send(relay, [f"a{number}@a.example"])
            await until(lambda: put_off(relay) == MESSAGES - 5, "the others put off")
            await received(home, 5)
            assert problems(relay.queue.store) == []
        monkeypatch.setattr(report_composer, "HOUR_S", 0.1)
        async with relaying(config) as relay:
            await received(home, 6)
            await empty(relay)
            assert put_off(relay) == 0
        assert sorted(subjects([message.data for message in home.messages])) == [
            f"{MESSAGES - 5} delivery reports", *["Undelivered mail returned to sender"] * 5
        ]  # fmt: skip
    history = read_history(directory / "events")
    assert history.total("bounced") == MESSAGES
    assert history.queued("default") == 0
