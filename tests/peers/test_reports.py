"""9. A list with many dead recipients: its sender gets some reports, and then digests."""

from email import message_from_bytes
from pathlib import Path

import pytest

from tests.kit.deadlines import until
from tests.kit.queue import problems
from tests.kit.relay import RecipientHistory, logged_events, read_history, relaying, send, staged
from zonemta_py.delivery import pending_reports
from zonemta_py.queue.format.keys import DIGEST, end_of
from zonemta_py.sink.script import Rule, Step

MESSAGES = 40
REFUSING = Rule(Step.RCPT, reply="550 5.1.1 no such user")


def subjects(messages: list[bytes]) -> list[str]:
    return [str(message_from_bytes(message)["Subject"]) for message in messages]


async def test_a_storm(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five reports, the others in one digest; the account of the event log is even."""
    monkeypatch.setattr(pending_reports, "HOUR_S", 2.0)
    async with staged(directory) as stage:
        await stage.receiver("a.example", REFUSING)
        home = await stage.receiver("sender.example")
        zones = {"default": {"bounce": {"reports_per_hour": 5}}}
        async with relaying(stage.config(zones=zones)) as relay:
            store = relay.queue.store
            for number in range(MESSAGES):
                await send(relay, [f"a{number}@a.example"])
            reported = "recipients reported"
            await until(lambda: b"".join(m.data for m in home.messages).count(b"reports.csv"), reported)
            await until(lambda: not list(store.keys(DIGEST, end_of(DIGEST))), "no report waiting")
            assert problems(store) == []
        found = subjects([message.data for message in home.messages])
        assert found.count("Undelivered mail returned to sender") >= 5
        assert len(found) < MESSAGES / 2
    history: RecipientHistory = read_history(directory / "events")
    assert history.total("bounced") == MESSAGES
    assert history.queued("default") == 0


async def test_a_restart_sends_what_waits(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with staged(directory) as stage:
        await stage.receiver("a.example", REFUSING)
        home = await stage.receiver("sender.example")
        config = stage.config(zones={"default": {"bounce": {"reports_per_hour": 1}}})
        async with relaying(config) as relay:
            for number in range(5):
                await send(relay, [f"a{number}@a.example"])
            store = relay.queue.store
            await until(lambda: len(list(store.keys(DIGEST, end_of(DIGEST)))) == 4, "four put off")
        monkeypatch.setattr(pending_reports, "HOUR_S", 0.1)
        async with relaying(config):
            await until(lambda: "4 delivery reports" in subjects([m.data for m in home.messages]), "it")
    assert len(logged_events(directory, "bounced")) == 5
