"""13. A mail host that is this relay under another name."""

from pathlib import Path
from typing import Any

import pytest

from tests.kit.relay import empty, logged_events, relaying, send, staged
from tests.peers.scripts import peers

NEVER: dict[str, Any] = {"connections_per_domain": 1, "retry": {"delays": ["1h"], "give_up_after": "2h"}}


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


@pytest.mark.parametrize(("listens", "host"), [("0.0.0.0", "127.0.1.1"), ("127.0.1.7", "127.0.1.7")])
async def test_a_host_has_an_address_on_which_this_relay_listens(
    directory: Path, listens: str, host: str
) -> None:
    """Under any name: with the port to which mail is sent. The mail is returned without a connection."""
    async with staged(directory) as stage:
        stage.names.records = {
            "loop.example": {"MX": ["10 mx.loop.example."]},
            "mx.loop.example": {"A": [host]},
        }
        config = stage.config(listeners=[{"address": f"{listens}:{stage.port}"}])
        async with relaying(config) as relay:
            await send(relay, ["a@loop.example"], sender="")
            await empty(relay)
    [bounced] = logged_events(directory, "bounced")
    assert (bounced["status"], bounced["attempt"]) == ("5.4.6", 1)
    assert len(logged_events(directory, "accepted")) == 1


async def test_another_server_on_this_machine(directory: Path) -> None:
    """It listens on another port than this relay: no loop."""
    async with staged(directory) as stage:
        sink = await stage.receiver("local.example")
        async with relaying(stage.config(listeners=[{"address": "0.0.0.0:0"}])) as relay:
            await send(relay, ["a@local.example"])
            await empty(relay)
        assert len(sink.messages) == 1
