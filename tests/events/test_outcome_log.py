"""Lines about outcomes: which, in which words, and how many."""

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.kit.relay import empty, relaying, send, staged
from zonemta_py.events.observers import OutcomeLog, postfix_line, text_line
from zonemta_py.sink.script import Rule, Step

BOUNCED: dict[str, Any] = {
    "event": "bounced", "time_ms": 10_500, "created_ms": 8_000, "message": "0" * 24, "recipient": "a@x.example",
    "zone": "bulk", "attempt": 1, "code": 550, "status": "5.1.1", "reply": "no\x1b[2J such user", "mx": "mx.x.example",
    "mx_ip": "192.0.2.1", "duration_ms": 250,
}  # fmt: skip


def test_lines() -> None:
    """A stranger's reply cannot command the terminal."""
    assert text_line(BOUNCED) == (
        f"{'0' * 24} bounced to=<a@x.example> zone=bulk mx=mx.x.example[192.0.2.1] attempt=1: "
        "550 5.1.1 no [2J such user"
    )
    assert postfix_line(BOUNCED) == (
        f"{'0' * 24}: to=<a@x.example>, relay=mx.x.example[192.0.2.1], delay=2.50, delays=2.25/0/0/0.25, "
        "dsn=5.1.1, status=bounced (550 no [2J such user)"
    )
    unreached = {
        **BOUNCED,
        "event": "deferred",
        "mx": "",
        "code": 0,
        "status": "4.4.1",
        "reply": "refused",
    }
    assert "relay=none" in postfix_line(unreached)
    assert "status=deferred (refused)" in postfix_line(unreached)
    assert "status=sent" in postfix_line({**BOUNCED, "event": "delivered"})


async def test_the_outcomes_of_a_relay(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Bounces have a line each if they differ, deliveries none; a dead destination is two lines."""
    caplog.set_level(logging.INFO)
    async with staged(directory) as stage:
        await stage.receiver("a.example", Rule(Step.RCPT, recipient="no*", reply="550 5.1.1 no"))
        await stage.receiver("sender.example")
        async with relaying(stage.config()) as relay:
            await send(relay, ["ok@a.example", *(f"no{number}@a.example" for number in range(9))])
            await empty(relay)
    lines = [record.getMessage() for record in caplog.records if record.name == "zonemta_py.smtp"]
    assert len(lines) == 2
    assert " bounced to=<no" in lines[0]
    assert lines[1].startswith("repeated 8 more times within a minute: ")


async def test_lines_below_the_level_are_not_made(caplog: pytest.LogCaptureFixture) -> None:
    outcomes = OutcomeLog(("bounced",), as_postfix=False)
    caplog.set_level(logging.WARNING)
    outcomes.publish(b'{"event":"bounced" this is not even JSON}\n')
    caplog.set_level(logging.INFO)
    outcomes.publish(b'{"event":"delivered" nor is this}\n')
    assert caplog.records == []
