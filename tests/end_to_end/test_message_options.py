"""Mail for later, mail that expires, and urgent mail, through a whole relay."""

from pathlib import Path

import pytest

from tests.kit.deadlines import until
from tests.kit.relay import empty, logged_events, relaying, send, staged
from tests.kit.smtp_client import RawClient
from zonemta_py.core import clock
from zonemta_py.sink.script import Rule, Step

PROCESSES = pytest.mark.parametrize(
    "processes",
    [{"receivers": 0, "senders": 0}, {"receivers": 1, "senders": 1}],
    ids=["one process", "several"],
)


@PROCESSES
async def test_a_message_is_sent_at_its_time(directory: Path, processes: dict[str, int]) -> None:
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        async with relaying(stage.config(processes=processes)) as relay:
            began_ms = clock.now_ms()
            await send(relay, ["u@a.example"], b"X-Not-Before: 700ms\r\nSubject: later\r\n\r\nx\r\n")
            await send(relay, ["u@a.example"], b"Subject: now\r\n\r\nx\r\n")
            await empty(relay)
        first, second = sink.messages
        assert b"Subject: now" in first.data
        assert b"Subject: later" in second.data and b"X-Not-Before" not in second.data
    accepted = {e["message"]: e for e in logged_events(directory, "accepted")}
    [held] = [m for m, e in accepted.items() if e["not_before_ms"]]
    [delivered] = [e for e in logged_events(directory, "delivered") if e["message"] == held]
    assert delivered["time_ms"] >= delivered["created_ms"] == accepted[held]["not_before_ms"]
    assert delivered["created_ms"] >= began_ms + 700


@PROCESSES
async def test_a_message_that_expires(directory: Path, processes: dict[str, int]) -> None:
    """The host refuses for now; a report follows, unless the sender wanted none."""
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example", Rule(Step.RCPT, reply="450 4.2.1 later"))
        reports = await stage.receiver("sender.example")
        async with relaying(stage.config(processes=processes)) as relay:
            await send(relay, ["loud@a.example"], b"X-Expire: 500ms\r\nSubject: x\r\n\r\nx\r\n")
            await send(relay, ["quiet@a.example"], b"X-Expire: 500ms; silent\r\nSubject: x\r\n\r\nx\r\n")
            await empty(relay)
        assert sink.messages == []
        [report] = reports.messages
        assert b"loud@a.example" in report.data and b"quiet@a.example" not in report.data
        assert b"Status: 5.4.7" in report.data
        assert b"within the time that its sender allowed" in b" ".join(report.data.split())
    lapsed = logged_events(directory, "lapsed")
    assert sorted(str(e["recipient"]) for e in lapsed) == ["loud@a.example", "quiet@a.example"]
    assert sorted(bool(e["report"]) for e in lapsed) == [False, True]
    assert all(e["expires_ms"] for e in lapsed)
    assert logged_events(directory, "expired") == []


async def test_mail_that_is_late_is_not_sent(directory: Path) -> None:
    """Its time ends while the relay is down."""
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example", Rule(Step.RCPT, reply="450 4.2.1 later", times=1))
        await stage.receiver("sender.example")
        async with relaying(stage.config()) as relay:
            client = await RawClient.connect(relay.addresses[0].port)
            await client.ehlo()
            async with client:
                for command in ("MAIL FROM:<s@sender.example> BY=2;R", "RCPT TO:<u@a.example>", "DATA"):
                    assert (await client.command(command))[0] in "23"
                await client.send(b"Subject: x\r\n\r\nx\r\n.\r\n")
                assert (await client.reply()).startswith("250")
            over_ms = clock.now_ms() + 2000
        await until(lambda: clock.now_ms() > over_ms, "the end of its time")
        async with relaying(stage.config(zones={"default": {"retry": {"delays": ["1h"]}}})) as relay:
            await empty(relay)
        assert sink.messages == []
    assert len(logged_events(directory, "lapsed")) == 1
