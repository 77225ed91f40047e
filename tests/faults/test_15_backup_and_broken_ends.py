"""15. What the first MX host does not take the next one gets at once; a peer that cuts after the dot is left alone."""

from pathlib import Path

import pytest

from tests.kit.deadlines import until
from tests.kit.queue import everything
from tests.kit.relay import Stage, ledger, logged_events, received, relaying, send, staged
from zonemta_py.sink.script import Rule, Step
from zonemta_py.sink.server import Sink

PROCESSES = [{"receivers": 0, "senders": 0}, {"receivers": 2, "senders": 2}]
in_processes = pytest.mark.parametrize("processes", PROCESSES, ids=["0/0", "2/2"])
SLOW = {"delays": ["1h"]}

BROKEN = {
    "rcpt": Rule(Step.RCPT, reply="451 4.3.0 try again later"),
    "data": Rule(Step.DATA, reply="451 4.3.0 no space"),
    "dot": Rule(Step.DOT, reply="452 4.3.1 disk full"),
    "closes": Rule(Step.DOT, reply="421 4.3.2 closing"),
    "cuts": Rule(Step.DOT, drop=True),
    "silent": Rule(Step.DOT, stall_s=3600),
}


async def two_hosts(stage: Stage, name: str, first: Rule, *second: Rule) -> tuple[Sink, Sink]:
    """Two MX hosts of ``name``.example: the first one has the rule ``first``."""
    sinks = [
        await stage.receiver(f"{kind}.{name}.example", *rules)
        for kind, rules in (("one", [first]), ("two", second))
    ]
    records = dict(stage.names.records)
    records[f"{name}.example"] = {"MX": [f"10 mx.one.{name}.example.", f"20 mx.two.{name}.example."]}
    stage.names.records = records
    return sinks[0], sinks[1]


@in_processes
async def test_the_next_host(directory: Path, processes: dict[str, int]) -> None:
    """At once; where the first host may have the message, an event says so. A full mailbox is full at both."""
    async with staged(directory) as stage:
        hosts = {name: await two_hosts(stage, name, rule) for name, rule in BROKEN.items()}
        full = await two_hosts(stage, "full", Rule(Step.RCPT, reply="452 4.2.2 mailbox full"))
        zone = {"port": stage.port, "retry": SLOW, "timeouts": {"dot": "1s"}}
        config = stage.config(zones={"default": zone}, processes=processes)
        async with relaying(config) as relay:
            for name in (*hosts, "full"):
                await send(relay, [f"x@{name}.example"])
            for _, second in hosts.values():
                await received(second, 1)
            await until(lambda: len(everything(relay.queue.store)) == 5, "one message")
        assert full[1].tally.sessions == 0
    assert ledger(directory).counts["default"]["delivered"] == len(BROKEN)
    uncertain = {each["domain"] for each in logged_events(directory, "uncertain")}
    assert uncertain == {"cuts.example", "silent.example"}


@in_processes
async def test_both_hosts(directory: Path, processes: dict[str, int]) -> None:
    """The second one refuses, or takes some recipients: each recipient has the outcome of its last answer."""
    async with staged(directory) as stage:
        bad = Rule(Step.RCPT, recipient="bad@*", reply="550 5.1.1 no such user")
        await two_hosts(stage, "one", BROKEN["cuts"], bad)
        later = Rule(Step.RCPT, recipient="later@*", reply="451 4.3.0 later")
        first, second = await two_hosts(stage, "two", later)
        config = stage.config(
            zones={"default": {"port": stage.port, "retry": SLOW}}, processes=processes
        )
        async with relaying(config) as relay:
            await send(relay, ["good@one.example", "bad@one.example"], sender="")
            await send(relay, ["good@two.example", "later@two.example"], sender="")
            await until(lambda: not everything(relay.queue.store), "an empty queue")
        assert [each.recipients for each in first.messages] == [["good@two.example"]]
        assert [each.recipients for each in second.messages] == [["later@two.example"]]
    counts = ledger(directory).counts["default"]
    assert (counts["delivered"], counts["bounced"]) == (3, 1)
    uncertain = {each["recipient"] for each in logged_events(directory, "uncertain")}
    assert uncertain == {"good@one.example", "bad@one.example"}, "the first host may have both"


@in_processes
async def test_a_peer_that_cuts_after_the_dot(directory: Path, processes: dict[str, int]) -> None:
    """It gets few bodies, each of which is named; one message that it does not like is no reason to wait for the others."""
    async with staged(directory) as stage:
        first, second = await two_hosts(stage, "two", Rule(Step.DOT, drop=True))
        waits = Rule(Step.EHLO, stall_s=1)  # so that mail waits
        cuts = await stage.receiver("a.example", waits, Rule(Step.DOT, drop=True))
        once = await stage.receiver("b.example", Rule(Step.DOT, drop=True, recipient="poison@*"))
        zone = {"port": stage.port, "retry": SLOW, "connections_per_domain": 4}
        config = stage.config(zones={"default": zone}, processes=processes)
        async with relaying(config) as relay:
            for number in range(5):
                await send(relay, [f"r{number}@two.example"])
                await received(second, number + 1)
            await send(relay, ["poison@b.example"])
            for number in range(30):
                await send(relay, [f"r{number}@a.example"])
                await send(relay, [f"r{number}@b.example"])
            await received(once, 30)
            scheduler = relay._delivery.zones["default"].scheduler
            await until(
                lambda: (state := scheduler.state("a.example")) is not None and state.failing,
                "the suspension",
            )
        assert cuts.tally.sessions <= 12
        # A sender process finds this out for itself.
        assert first.tally.sessions <= max(1, processes["senders"]), "the other host has its turn first"
    uncertain = [each for each in logged_events(directory, "deferred") if each["uncertain"]]
    assert len([each for each in uncertain if each["domain"] == "a.example"]) == cuts.tally.sessions
    assert [each["recipient"] for each in uncertain if each["domain"] == "b.example"] == [
        "poison@b.example"
    ]
