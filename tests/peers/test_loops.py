"""13. A mail host that is this relay under another name."""

from pathlib import Path

from tests.kit.relay import logged_events
from tests.peers.scripts import peers

NEVER = {"connections_per_domain": 1, "retry": {"delays": ["1h"], "give_up_after": "2h"}}


async def test_the_best_host_is_this_relay(directory: Path) -> None:
    """The mail is returned at once: it would come back again and again."""
    async with peers(directory, "one ehlo 250 relay.example", **NEVER) as made:
        await made.send("a", sender="")
        await made.finished()
        assert made.arrived("one") == []
    [bounced] = logged_events(directory, "bounced")
    assert (bounced["status"], "is this relay: mail loops back" in str(bounced["reply"])) == (
        "5.4.6",
        True,
    )


async def test_a_backup_host_is_this_relay(directory: Path) -> None:
    """While the best one is away, the mail waits for it; no host behind this relay gets it."""
    script = "one connect 421 away\ntwo ehlo 250 relay.example"
    async with peers(directory, script, hosts=("one", "two", "three"), **NEVER) as made:
        await made.send("a")
        await made.is_deferred("a")
        assert made.sessions("two") == 1
        assert made.sessions("three") == 0
    [deferred] = logged_events(directory, "deferred")
    assert "away" in str(deferred["reply"])
