"""4. A peer that takes a number of recipients gets that number, at once; a full mailbox is no limit."""

from pathlib import Path
from typing import Any

import pytest

from tests.kit.relay import logged_events
from tests.peers.scripts import SENDERS, Peers, peers

RECIPIENTS = [f"r{number:02}" for number in range(35)]
ONE_ATTEMPT: dict[str, Any] = {
    "connections_per_domain": 1,
    "retry": {"delays": ["1h"], "give_up_after": "2h"},
}


def transactions(made: Peers) -> list[int]:
    """The recipients of each message at the first host."""
    return [len(message.recipients) for message in made.hosts["one"].messages]


@SENDERS
@pytest.mark.parametrize(
    "reply",
    [
        "450 4.5.3 too many recipients",
        "451 4.5.3 too many recipients",
        "452 4.5.3 too many recipients",
        "452 too many recipients",
        "552 5.5.3 too many recipients",
        "552 too many recipients",
        "421 4.5.3 too many recipients",
        "421 4.3.2 going down",
    ],
)
async def test_a_limit_on_recipients(directory: Path, reply: str, senders: int) -> None:
    """All are delivered in their first attempt; the limit is met once."""
    async with peers(directory, f"one rcpt after=10 {reply}", senders, **ONE_ATTEMPT) as made:
        await made.send(*RECIPIENTS)
        await made.finished()
        assert made.arrived("one") == RECIPIENTS
        assert transactions(made) == [10, 10, 10, 5]
        assert made.hosts["one"].tally.refused <= 25, "in the first transaction only"
        assert made.sessions("one") == (2 if reply.startswith("421") else 1)
    assert logged_events(directory, "deferred") == []
    assert logged_events(directory, "bounced") == []


@pytest.mark.parametrize("full", ["r03", "r07"])
async def test_a_full_mailbox_is_no_limit(directory: Path, full: str) -> None:
    """The others are delivered together, it is deferred, and the next message has all its recipients at once.

    There is one host: another one would be asked for the mailbox. The last recipient is asked again alone, which says that it is the mailbox.
    """
    script = f"one rcpt recipient={full}@* 452 mailbox full"
    async with peers(directory, script, hosts=["one"], **ONE_ATTEMPT) as made:
        await made.send(*RECIPIENTS[:8])
        await made.send(*RECIPIENTS[20:30])
        await made.sent_to("one", 17)
        assert transactions(made) == [7, 10]
        await made.is_deferred(full)


async def test_a_limit_that_the_first_recipient_meets(directory: Path) -> None:
    """There is nothing to split: the recipient is deferred, not returned."""
    script = "one rcpt 552 5.5.3 too many recipients\ntwo rcpt 552 5.5.3 too many recipients"
    async with peers(directory, script, **ONE_ATTEMPT) as made:
        await made.send("a")
        await made.is_deferred("a")
