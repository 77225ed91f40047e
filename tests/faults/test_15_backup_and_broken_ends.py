"""15. What the first MX host does not take the next one gets at once; a peer that cuts after the dot is left alone."""

import asyncio
from pathlib import Path

import pytest
import yaml

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
async def test_the_next_host_where_connections_are_limited(
    directory: Path, processes: dict[str, int]
) -> None:
    """The next attempt begins with it, whether the first host's session is still open or not; then the first one has its turn again."""
    table = {"providers": {"big": {"mx": ["*.big.example"], "limits": {"connect_rate": "1/500ms"}}}}
    (directory / "providers.yaml").write_text(yaml.safe_dump(table))
    providers = {"file": str(directory / "providers.yaml"), "shipped": False}
    later = Rule(Step.RCPT, reply="451 4.3.0 later")
    once = Rule(Step.RCPT, reply="451 4.3.0 later", times=1)
    async with staged(directory) as stage:
        one = await two_hosts(stage, "a.big", later)
        both = await two_hosts(stage, "b.big", once, later)
        full = await two_hosts(stage, "c.big", Rule(Step.RCPT, reply="452 4.2.2 mailbox full", times=2))
        zone = {"port": stage.port, "retry": {"delays": ["800ms"]}}
        config = stage.config(zones={"default": zone}, processes=processes, providers=providers)
        async with relaying(config) as relay:
            for name in "abc":
                await send(relay, [f"x@{name}.big.example"])
                await until(lambda: not everything(relay.queue.store), "an empty queue")
        assert (len(one[1].messages), one[0].tally.refused) == (1, 1)
        assert (len(both[0].messages), both[0].tally.refused, both[1].tally.refused) == (1, 1, 1)
        assert (len(full[0].messages), full[1].tally.sessions) == (1, 0), "it is full at both"


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


@in_processes
async def test_this_relay_behind_a_host_that_cuts(directory: Path, processes: dict[str, int]) -> None:
    """The second MX host is this relay: mail waits for the first one, which has its turn last for a while, and is not returned as a loop."""
    async with staged(directory) as stage:
        first = await stage.receiver(
            "one.a.example", Rule(Step.DOT, recipient="x@*", drop=True, times=1)
        )
        await stage.receiver("two.a.example", hostname="relay.example")
        records = dict(stage.names.records)
        records["a.example"] = {"MX": ["10 mx.one.a.example.", "20 mx.two.a.example."]}
        stage.names.records = records
        async with relaying(stage.config(processes=processes)) as relay:
            for count, name in enumerate("xy", 1):
                await send(relay, [f"{name}@a.example"])
                await until(lambda count=count: first.tally.sessions >= count, "a session")
            await received(first, 2)
    assert logged_events(directory, "bounced") == []


class ClosingHost:
    """Takes a message in its first session, then answers 421 to y and cuts at the dot; its second session never begins."""

    def __init__(self) -> None:
        self.sessions = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.sessions += 1
        number = self.sessions
        if number != 2:
            writer.write(b"220 mx\r\n")
            await self._answer(reader, writer, number)
        writer.close()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> None:
        recipients = b""
        while line := await reader.readline():
            verb, reply = line[:4].upper(), b"250 ok"
            if verb == b"MAIL":
                recipients = b""
            elif verb == b"RCPT" and number == 1 and b"y@" in line:
                reply = b"421 4.7.0 not this one now"
            elif verb == b"RCPT":
                recipients += line
            elif verb == b"DATA":
                writer.write(b"354 go\r\n")
                await reader.readuntil(b"\r\n.\r\n")
                if number == 1 and b"x@" in recipients:
                    return
            elif verb == b"EHLO":
                reply = b"250-mx\r\n250 PIPELINING"
            elif verb == b"QUIT":
                return
            writer.write(reply + b"\r\n")


@in_processes
async def test_a_cut_behind_a_refusal_of_the_session(directory: Path, processes: dict[str, int]) -> None:
    """421 to one recipient in a session that was used, then a cut at the dot, and no new session: the other one is uncertain."""
    host = ClosingHost()
    async with staged(directory) as stage:
        server = await asyncio.start_server(host.serve, "127.0.1.1", stage.port)
        stage.names.records = {
            "a.example": {"MX": ["10 mx.a.example."]}, "mx.a.example": {"A": ["127.0.1.1"]},
        }  # fmt: skip
        async with relaying(stage.config(processes=processes)) as relay:
            for recipients in (["first@a.example"], ["x@a.example", "y@a.example"]):
                await send(relay, recipients)
                await until(lambda: everything(relay.queue.store) == [], "an empty queue")
        server.close()
    assert host.sessions > 2
    deferred = {each["recipient"]: each["uncertain"] for each in logged_events(directory, "deferred")}
    assert deferred == {"x@a.example": True, "y@a.example": False}
