"""Envelopes submitted to real relays, without Spark."""

from pathlib import Path

import pytest

from tests.kit.deadlines import until
from tests.kit.listener import certificate, users_file
from tests.kit.relay import staged
from tests.pipeline.campaigns import addresses, relay_and_sinks, submit_options
from zonemta_py.pipeline.send.submission import (
    EnvelopeSubmitter,
    PlannedEnvelope,
    SubmissionResult,
    SubmitOptions,
)
from zonemta_py.sink.script import Rule, Step
from zonemta_py.transports import connect as smtp


async def submitted(options: SubmitOptions, envelopes: list[PlannedEnvelope]) -> list[SubmissionResult]:
    submitter = EnvelopeSubmitter(options)
    try:
        return await submitter.send(envelopes)
    finally:
        await submitter.aclose()


def personal(count: int) -> list[PlannedEnvelope]:
    return [
        PlannedEnvelope(f"{n:032x}", [(address, {"name": f"n{n}"})])
        for n, address in enumerate(addresses(count))
    ]


async def test_a_repeat_is_recognised(directory: Path) -> None:
    """The same envelopes again, and one with a new recipient: no recipient gets the message twice."""
    async with relay_and_sinks(directory) as here:
        first = await submitted(submit_options(here.target), personal(30))
        assert {(s.state, s.repeated, len(s.messages)) for s in first} == {("accepted", False, 1)}
        again = await submitted(submit_options(here.target), personal(30))
        assert {(s.state, s.repeated) for s in again} == {("accepted", True)}
        assert {s.key: s.messages for s in again} == {s.key: s.messages for s in first}
        more = PlannedEnvelope(
            f"{0:032x}", [("u0000@d0.example", {"name": "n0"}), ("new@d0.example", {"name": "n0"})]
        )
        [one, other] = await submitted(submit_options(here.target), [more])
        assert one.messages == other.messages
        assert len(one.messages) == 2
        await until(lambda: len(here.delivered()) == 31, "31 deliveries")
        assert here.delivered() == sorted([*addresses(30), "new@d0.example"])
        assert all(b"Subject: hi n" in m.data for s in here.sinks for m in s.messages)


async def test_another_letter_under_a_known_key(directory: Path) -> None:
    """It is refused with words: no recipient counts as one that has it."""
    async with relay_and_sinks(directory) as here:
        await submitted(submit_options(here.target), personal(1))
        other = PlannedEnvelope(f"{0:032x}", [("u0000@d0.example", {"name": "x"})])
        [row] = await submitted(submit_options(here.target), [other])
        assert (row.state, row.code) == ("refused", 550)
        assert "This submission key was used for another message" in row.reply


async def test_a_relay_that_defers(directory: Path) -> None:
    """Each envelope is tried once: one that is deferred does not hold up the others."""
    async with staged(directory) as stage:
        relay = await stage.receiver(
            "relay.example", Rule(Step.RCPT, recipient="*@d1*", reply="450 4.3.2 not now", times=2)
        )
        target = f"127.0.1.1:{stage.port}"
        rows = await submitted(submit_options(target, connections=1), personal(9))
        assert [(row.state, row.code) for row in rows].count(("deferred", 450)) == 3
        assert relay.tally.recipients == 6


async def test_settled_after_deferrals(directory: Path) -> None:
    """What is deferred is submitted again, and nothing else, until ``patience_s`` has passed."""
    async with staged(directory) as stage:
        rule = Rule(Step.RCPT, recipient="*@d1*", reply="450 4.3.2 not now", times=2)
        relay = await stage.receiver("relay.example", rule)
        await stage.receiver("never.example", Rule(Step.RCPT, reply="450 4.3.2 never"))
        submitter = EnvelopeSubmitter(submit_options(f"127.0.1.1:{stage.port}"))
        rows = await submitter.settle(personal(9))
        assert sorted(row.address for row in rows) == sorted(addresses(9))
        assert {row.state for row in rows} == {"accepted"}
        assert relay.tally.recipients == 9
        await submitter.aclose()
        submitter = EnvelopeSubmitter(submit_options(f"127.0.1.2:{stage.port}", patience_s=0.3))
        assert {(row.state, row.code) for row in await submitter.settle(personal(2))} == {
            ("deferred", 450)
        }
        await submitter.aclose()


async def test_a_relay_that_dies_at_the_final_dot(directory: Path) -> None:
    """Without a reply the message is submitted again with the same key."""
    async with staged(directory) as stage:
        relay = await stage.receiver("relay.example", Rule(Step.DOT, drop=True, times=1))
        rows = await submitted(submit_options(f"127.0.1.1:{stage.port}"), personal(3))
        assert {(s.state, s.code) for s in rows} == {("accepted", 250)}
        assert relay.tally.recipients >= 3
        await stage.receiver("never.example", Rule(Step.DOT, drop=True))
        [row] = await submitted(submit_options(f"127.0.1.2:{stage.port}", patience_s=0.3), personal(1))
        assert (row.state, row.code, row.messages) == ("deferred", 0, ())


async def test_a_relay_that_refuses(directory: Path) -> None:
    async with staged(directory) as stage:
        await stage.receiver("r.example", Rule(Step.RCPT, recipient="u0001*", reply="550 5.7.1 no"))
        rows = await submitted(submit_options(f"127.0.1.1:{stage.port}"), personal(3))
        assert {s.address: s.state for s in rows} == {
            "u0000@d0.example": "accepted", "u0001@d1.example": "refused", "u0002@d2.example": "accepted",
        }  # fmt: skip


async def test_a_sender_that_is_refused(directory: Path) -> None:
    """The reply is about none of the recipients, so another run submits them again; this one does not."""
    async with staged(directory) as stage:
        await stage.receiver("r.example", Rule(Step.MAIL, reply="530 5.7.0 who are you"))
        submitter = EnvelopeSubmitter(submit_options(f"127.0.1.1:{stage.port}"))
        rows = await submitter.settle(personal(2))
        await submitter.aclose()
        assert [(row.state, row.code) for row in rows] == [("deferred", 530)] * 2


async def test_with_a_password_over_tls(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """STARTTLS and AUTH; with a wrong password every recipient has a result with the reply."""
    cert, key, context = certificate(directory)
    monkeypatch.setattr(smtp, "verifying_context", lambda ca_file: context)
    listener = {
        "address": "127.0.0.1:0", "trusted_networks": [], "senders": "any", "auth": {"users_file": str(users_file(directory))},
        "tls": {"mode": "starttls", "certificate": str(cert), "key": str(key)},
    }  # fmt: skip
    async with relay_and_sinks(directory, listeners=[listener]) as here:
        good = submit_options(here.target, tls="required", credentials=("news", "secret"))
        rows = await submitted(good, personal(10))
        assert {(s.state, s.code) for s in rows} == {("accepted", 250)}
        await until(lambda: len(here.delivered()) == 10, "10 deliveries")
        assert all(b" with ESMTPSA " in m.data for s in here.sinks for m in s.messages)
        bad = submit_options(here.target, tls="required", credentials=("news", "wrong"), patience_s=0.2)
        [row] = await submitted(bad, personal(1))
        assert (row.state, row.messages) == ("deferred", ())
        assert "535" in row.reply
        plain = submit_options(here.target, tls="off", credentials=("news", "secret"), patience_s=0.2)
        [row] = await submitted(plain, personal(1))
        assert row.state == "deferred"


async def test_a_dead_relay(directory: Path) -> None:
    """Without failover the envelopes of an unreachable relay are deferred."""
    async with relay_and_sinks(directory) as here:
        dead = "127.0.0.1:9"
        rows = await submitted(submit_options(dead, patience_s=0.3), personal(2))
        assert {s.state for s in rows} == {"deferred"}
        assert "127.0.0.1" in rows[0].reply or "refused" in rows[0].reply
        mixed = await submitted(submit_options(dead, here.target, patience_s=0.3), personal(20))
        assert {s.state for s in mixed} == {"accepted", "deferred"}
        assert {s.relay for s in mixed if s.state == "accepted"} == {here.target}


async def test_failover(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zonemta_py.pipeline.send.submission.FAILOVER_S", 0.1)
    async with relay_and_sinks(directory) as here:
        rows = await submitted(
            submit_options("127.0.0.1:9", here.target, failover=True, patience_s=20), personal(20)
        )
        assert {(s.state, s.relay) for s in rows} == {("accepted", here.target)}
