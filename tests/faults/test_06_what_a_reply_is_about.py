"""06. A reply about a session, the dialogue, TLS or our address does not end a recipient."""

from pathlib import Path

import pytest

from tests.kit.deadlines import until
from tests.kit.queue import everything
from tests.kit.relay import FAST_RETRY, ledger, logged_events, relaying, send, staged
from zonemta_py.relay.relay import Relay
from zonemta_py.sink.script import Rule, Step
from zonemta_py.sink.server import Sink, SinkSession

PROCESSES = [{"receivers": 0, "senders": 0}, {"receivers": 2, "senders": 2}]
in_processes = pytest.mark.parametrize("processes", PROCESSES, ids=["0/0", "2/2"])


async def emptied(relay: Relay) -> None:
    await until(lambda: not everything(relay.queue.store), "an empty queue")


def delivered_and_bounced(directory: Path) -> tuple[int, int]:
    """Without the reports, whose domain does not exist."""
    bounced = [each for each in logged_events(directory, "bounced") if each["sender"]]
    return ledger(directory).counts["default"]["delivered"], len(bounced)


class _Listing(Sink):
    """It refuses two addresses."""

    def __init__(self, *arguments: object, reply: str, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]  # they are passed on as they come
        self.reply = reply

    def session(self) -> SinkSession:
        return _ListingSession(self)


class _ListingSession(SinkSession):
    def _command(self, line: str) -> None:
        sink = self._sink
        assert isinstance(sink, _Listing)
        is_listed = self.peer in ("127.0.0.2", "127.0.0.3")
        if is_listed and line.upper().startswith("RCPT") and "<no@" not in line:
            self._reply(sink.reply)
        else:
            super()._command(line)


class Sessions:
    """Rules of a receiver that takes ``most`` messages in a session."""

    def __init__(self, reply: str, most: int, sessions: int) -> None:
        self.rules = [
            Rule(Step.MAIL, session=number, sender=f"*{sender}@*", reply=reply)
            for number in range(1, sessions)
            for sender in range(10)
            if sender >= most * number
        ]


@in_processes
@pytest.mark.parametrize(
    "reply",
    ["503 5.5.1 Error: bad sequence of commands", "554 too many messages in this session"],
)
async def test_a_session_that_has_had_enough(
    directory: Path, reply: str, processes: dict[str, int]
) -> None:
    """At one receiver after two messages; the other one refuses the sender: that ends the recipient, in one more session."""
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example", *Sessions(reply, 2, 4).rules)
        refused = Rule(Step.MAIL, sender="no@*", reply="550 5.1.8 sender unknown")
        other = await stage.receiver("b.example", refused)
        zones = {"default": {"connections_per_domain": 1, "retry": {"delays": ["1h"]}}}
        config = stage.config(
            zones={"default": {"port": stage.port, **zones["default"]}}, processes=processes
        )
        async with relaying(config) as relay:
            for number in range(6):
                await send(relay, ["x@a.example"], sender=f"s{number}@c.example")
                await until(lambda count=number: len(sink.messages) > count, "the message")
            for _ in range(4):
                await send(relay, ["x@b.example"])
                await send(relay, ["x@b.example"], sender="no@c.example")
            await emptied(relay)
        assert sink.tally.sessions == 3
        assert other.tally.sessions <= 3
    assert delivered_and_bounced(directory) == (10, 4)
    assert logged_events(directory, "deferred") == []


@in_processes
@pytest.mark.parametrize(
    "reply",
    ["550 5.5.3 Too many recipients", "554 too many recipients", "554 5.5.3 too many recipients"],
)
async def test_too_many_recipients(directory: Path, reply: str, processes: dict[str, int]) -> None:
    """35 recipients at a receiver that takes 10 in a transaction, and at one that says so to DATA."""
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example", Rule(Step.RCPT, after=10, reply=reply))
        other = await stage.receiver("b.example", Rule(Step.DATA, after=11, reply=reply))
        config = stage.config(
            zones={"default": {"port": stage.port, "retry": {"delays": ["1h"]}}}, processes=processes
        )
        async with relaying(config) as relay:
            for domain in ("a.example", "b.example"):
                await send(relay, [f"r{number}@{domain}" for number in range(35)])
            await emptied(relay)
        for each in (sink, other):
            assert sum(len(message.recipients) for message in each.messages) == 35
            assert max(len(message.recipients) for message in each.messages) <= 10
    assert delivered_and_bounced(directory) == (70, 0)


@in_processes
async def test_an_address_that_is_listed(directory: Path, processes: dict[str, int]) -> None:
    """Small hosts list one address of the pool, and one host all of them; a mailbox that does not exist ends at once."""
    listed = "554 5.7.1 Service unavailable; Client host [127.0.0.2] blocked using zen.spamhaus.org"
    async with staged(directory) as stage:
        for number in range(4):
            rules = [Rule(Step.RCPT, recipient="no@*", reply="550 5.1.1 no such user")]
            await stage.receiver(f"a{number}.example", *rules, kind=_Listing, reply=listed)
        await stage.receiver("all.example", Rule(Step.RCPT, reply=listed))
        addresses = [f"127.0.0.{n}" for n in (2, 3, 4)]
        config = stage.config(
            pools={"default": [{"address": each} for each in addresses]},
            zones={"default": {"port": stage.port, "retry": {**FAST_RETRY, "jitter": 0}}},
            shaping={"shipped": False, "controller": {"enabled": False}},
            processes=processes,
        )
        async with relaying(config) as relay:
            for number in range(4):
                domain = f"a{number}.example"
                for name in "xyz":
                    await send(relay, [f"{name}@{domain}"])
                await send(relay, [f"no@{domain}"])
            await send(relay, ["x@all.example"])
            await emptied(relay)
        for domain, sink in stage.sinks.items():
            assert len(sink.messages) == (3 if domain != "all.example" else 0)
    assert delivered_and_bounced(directory) == (12, 5)
    bounced = logged_events(directory, "bounced")
    [last] = [each for each in bounced if each["domain"] == "all.example"]
    sources = {
        each["source_ip"]
        for each in [*logged_events(directory, "deferred"), last]
        if each["domain"] == "all.example"
    }
    assert (last["attempt"], sources) == (3, set(addresses)), "each address was tried once"
