"""6. A rate for an hour or more holds over a restart; 13. a domain whose MX hosts have no address."""

from pathlib import Path

import pytest

from tests.kit.deadlines import until
from tests.kit.relay import logged_events, relaying, send, staged
from tests.peers.scripts import SENDERS, peers
from zonemta_py.core import clock
from zonemta_py.delivery import outcome
from zonemta_py.relay.relay import Relay


def wait_s(relay: Relay) -> float:
    """How long the zone's next message waits for its token."""
    scheduler = relay._delivery.zones["default"].scheduler
    return scheduler.rate_wait_s(clock.monotonic_s())


@pytest.mark.parametrize(("rate", "survives"), [("1/h", True), ("2/2h", True), ("1/30m", False)])
async def test_a_restart(directory: Path, rate: str, survives: bool) -> None:
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        config = stage.config(zones={"default": {"rate": rate}})
        async with relaying(config) as relay:
            await send(relay, ["a@a.example"])
            await until(lambda: len(sink.messages) == 1, "the first message")
            await send(relay, ["b@a.example"])
        async with relaying(config) as relay:
            if survives:
                assert 3000 < wait_s(relay) <= 3600
            await until(lambda: len(sink.messages) == 1 + (not survives), "the next run")


async def test_a_smaller_rate_after_a_restart(directory: Path) -> None:
    """What was stored for a rate of one a day does not stop one of a thousand an hour."""
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        async with relaying(stage.config(zones={"default": {"rate": "1/d"}})) as relay:
            await send(relay, ["a@a.example"])
            await until(lambda: len(sink.messages) == 1, "the first message")
        async with relaying(stage.config(zones={"default": {"rate": "1000/h"}})) as relay:
            assert wait_s(relay) <= 3.6


@SENDERS
async def test_exchangers_without_an_address(
    directory: Path, senders: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mail waits for a day, because DNS may be corrected; then it is returned."""
    no_address = {"MX": ["10 mx.none.example."]}
    async with peers(directory, "", senders, retry={"delays": ["100ms"]}) as made:
        made.stage.names.records = {**made.stage.names.records, "none.example": no_address}
        await made.send("a@none.example", sender="")
        await until(lambda: made.relay._delivery.zones["default"].describe("none.example"), "a failure")
        monkeypatch.setattr(outcome, "NO_ADDRESS_MS", 1)
        await made.finished()
    assert logged_events(directory, "deferred") != []
    [bounced] = logged_events(directory, "bounced")
    assert bounced["status"] == "5.1.2"
    assert "no mail exchanger of none.example has an address" in str(bounced["reply"])
