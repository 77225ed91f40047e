"""2. When a session fails before the final dot, the next host of the domain is tried in the same attempt."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.kit.deadlines import until
from tests.kit.relay import logged_events
from tests.peers.scripts import SENDERS, peers
from zonemta_py.queue.upkeep.move import flush

CONNECTIONS = 5
NEVER: dict[str, Any] = {
    "connections_per_domain": CONNECTIONS,
    "retry": {"delays": ["1h"], "give_up_after": "2h"},
}  # a second attempt would be too late


@SENDERS
@pytest.mark.parametrize(
    "script",
    [
        "one ehlo 421 4.3.2 going down",
        "one ehlo drop",
        "one mail 421 4.3.2 going down",
        "one mail 451 4.3.0 try again later",
        "one mail drop",
        "one rcpt 421 4.3.2 going down",
        "one rcpt drop",
        "one data 421 4.3.2 going down",
        "one data drop",
        "one rcpt 451 4.3.0 try again later",
        "one data 451 4.3.0 no space",
        "one dot 452 4.3.1 disk full",
        "one dot 421 4.3.2 going down",
    ],
)
async def test_the_backup_takes_it(directory: Path, script: str, senders: int) -> None:
    """The primary answers, and dies behind its greeting: the mail goes to the backup at once."""
    async with peers(directory, script, senders, **NEVER) as made:
        await made.send("a", "b")
        await made.finished()
        assert made.arrived("two") == ["a", "b"]
        assert made.arrived("one") == []
    assert logged_events(directory, "deferred") == []
    delivered = logged_events(directory, "delivered")
    assert [(event["mx"], event["attempt"]) for event in delivered] == [("mx.two.example", 1)] * 2


async def test_only_who_was_not_served(directory: Path) -> None:
    """A recipient that the primary has refused for good is not offered to the backup."""
    script = """
    one rcpt recipient=no@* 550 5.1.1 no such user
    one rcpt recipient=later@* 450 4.2.1 mailbox busy
    one rcpt recipient=z@* drop
    """
    async with peers(directory, script, **NEVER) as made:
        await made.send("no", "later", "y", "z", sender="")
        await until(lambda: made.arrived("two"), "the backup")
        assert made.arrived("two") == ["y", "z"]
        await flush(made.relay.queue)
    [bounced] = logged_events(directory, "bounced")
    assert (bounced["code"], bounced["mx"]) == (550, "mx.one.example")
    assert logged_events(directory, "deferred")[0]["recipient"] == "later@peer.example"


@pytest.mark.parametrize("reply", ["550 5.7.1 no", "250 ok"])
async def test_a_reply_that_counts(directory: Path, reply: str) -> None:
    """Of the primary: the backup is not asked."""
    async with peers(directory, f"one mail {reply}") as made:
        await made.send("a", sender="")
        await made.finished()
        assert made.sessions("two") == 0


async def test_an_answer_that_did_not_come(directory: Path) -> None:
    """After the final dot the message may have been accepted: the backup gets it, and an event says so."""
    async with peers(directory, "one dot times=1 drop", **NEVER) as made:
        await made.send("a")
        await made.finished()
        assert made.arrived("two") == ["a"]
    [uncertain] = logged_events(directory, "uncertain")
    assert (uncertain["recipient"], uncertain["attempt"]) == ("a@peer.example", 1)
    assert logged_events(directory, "deferred") == []


async def test_every_host_is_closing(directory: Path) -> None:
    """The destination is suspended as after a failure to connect; the mail behind keeps its step."""
    script = """
    one mail 421 4.3.2 too busy
    two mail 421 4.3.2 too busy
    three mail drop
    """
    async with peers(directory, script, hosts=("one", "two", "three"), **NEVER) as made:
        await asyncio.gather(*(made.send(f"{number}") for number in range(40)))
        await until(lambda: made.suspended() and not made.workers(), "the suspension")
        assert len(made.deferred()) <= CONNECTIONS
        assert made.sessions("one") <= 2 * CONNECTIONS
