"""Policies at intake: what they return, what they refuse, and who gets which message."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.kit.queue import opened
from zonemta_py.core.errors import NotAccepted
from zonemta_py.intake.policies import (
    FAILED,
    NO_RECIPIENT,
    UNSTORABLE,
    EnvelopeWriters,
    apply_policies,
    recipients_of,
)
from zonemta_py.intake.stamping import MessageEnvelope
from zonemta_py.policies import Envelope, EnvelopePolicy, Forward, split_by_domain, split_by_recipient
from zonemta_py.queue.format.records import Origin
from zonemta_py.smtp.commands import Rcpt

HEADER = b"Subject: x\r\n"
ORIGIN = Origin("127.0.0.1:2525", "192.0.2.1", "client.example", "news", "ESMTPSA")
ONE, TWO, OTHER = Rcpt("a@x.example", 4, "rfc822;a"), Rcpt("b@x.example"), Rcpt("c@y.example")


def under(*policies: EnvelopePolicy, recipients: Sequence[Rcpt] = (ONE, TWO, OTHER)) -> list[Envelope]:
    return apply_policies(policies, MessageEnvelope("s@s.example", recipients, ORIGIN, False), HEADER)


def refusing(reply: str) -> EnvelopePolicy:
    def refuse(envelope: Envelope) -> None:
        raise NotAccepted(reply)

    return refuse


def test_a_policy_sees_envelope_header_and_client() -> None:
    seen: list[Envelope] = []
    assert under(seen.append) == seen
    [envelope] = seen
    assert (envelope.sender, envelope.header) == ("s@s.example", HEADER)
    assert envelope.recipients == ["a@x.example", "b@x.example", "c@y.example"]
    assert envelope.client == ("192.0.2.1", "client.example", "news", "ESMTPSA", "")


def test_a_reply_of_a_policy() -> None:
    with pytest.raises(NotAccepted, match=r"^550 5\.7\.1 Not here$"):
        under(refusing("550 5.7.1 Not here"))


@pytest.mark.parametrize("text", ["no", "250 2.0.0 Ok", "550 5.7.1 two\r\nlines", "550"])
def test_a_text_that_is_not_a_reply(text: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(NotAccepted, match=UNSTORABLE):
        under(refusing(text))
    assert "which is not an SMTP reply" in caplog.text


@pytest.mark.parametrize(
    "policy",
    [
        lambda envelope: 1 / 0,
        lambda envelope: [None],
        lambda envelope: envelope.rename("a@x.example", "@"),
    ],
    ids=["raises", "no envelope", "no address"],
)
def test_a_policy_that_fails(
    policy: Callable[[Envelope], None], caplog: pytest.LogCaptureFixture
) -> None:
    """The client gets a temporary reply, the log the traceback."""
    with caplog.at_level(logging.ERROR), pytest.raises(NotAccepted, match=FAILED):
        under(policy)
    assert "a policy failed on a message from <s@s.example>" in caplog.text


def test_no_recipient_left() -> None:
    with pytest.raises(NotAccepted, match=NO_RECIPIENT):
        under(lambda envelope: [])


def test_options_follow_a_renamed_recipient() -> None:
    [envelope] = under(Forward([("^a@", "z@")]))
    assert recipients_of(envelope, [ONE, TWO, OTHER], repeated=False) == [
        Rcpt("z@x.example", 4, "rfc822;a"),
        Rcpt("b@x.example"),
        Rcpt("c@y.example"),
    ]


def test_recipients_that_have_the_message() -> None:
    """Only new ones get it; what a policy adds was there with the first submission."""

    def add(envelope: Envelope) -> None:
        envelope.recipients.append("archive@z.example")

    here, there = under(split_by_domain, add)
    assert recipients_of(here, [TWO], repeated=False) == [TWO, Rcpt("archive@z.example")]
    assert recipients_of(here, [TWO], repeated=True) == [TWO]
    assert recipients_of(there, [TWO], repeated=True) == []


async def test_one_body_for_every_envelope(tmp_path: Path) -> None:
    async with opened(tmp_path / "queue", store="memory") as queue:
        first = queue.open_message()
        writers = EnvelopeWriters(queue, under(split_by_recipient), first)
        assert writers.all[0].writer is first
        assert [each.envelope.recipients for each in writers.all] == [
            ["a@x.example"],
            ["b@x.example"],
            ["c@y.example"],
        ]
        for _ in range(20):
            wait_for = writers.write(b"x" * 50_000)
            if wait_for is not None:
                await wait_for
        assert len({each.writer.id for each in writers.all}) == 3
        assert {(each.writer.size, each.writer.crc) for each in writers.all} == {(1_000_000, first.crc)}
        for each in writers.all:
            queue.abort(each.writer)
