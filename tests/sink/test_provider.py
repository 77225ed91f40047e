"""The decisions of a provider, with a clock that the test moves."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.config.values import MessagesWithin, Rate, Seconds
from zonemta_py.core.codec import to_json
from zonemta_py.sink.provider import ProviderSession, SinkProvider, SinkRefusal, Violation
from zonemta_py.sink.script import Step
from zonemta_py.sink.sink_limits import REPLIES, LimitName, SinkBlock, SinkLimits

ONE, TWO = "127.0.0.5", "127.0.0.6"


def provider(**limits: Any) -> SinkProvider:
    return SinkProvider(SinkLimits("bigmail", **limits))


def opened(at: SinkProvider, client: str = ONE, now_s: float = 0.0) -> ProviderSession:
    session = at.connect(client, now_s)
    assert isinstance(session, ProviderSession)
    return session


def refused(at: SinkProvider, client: str, now_s: float = 0.0) -> str:
    refusal = at.connect(client, now_s)
    assert isinstance(refusal, SinkRefusal)
    assert refusal.closes
    return refusal.reply


def message(session: ProviderSession, now_s: float, recipient: str = "r@d") -> str:
    """The first refusal of a message, or an empty text when it was accepted."""
    for step in (Step.EHLO, Step.MAIL, Step.RCPT, Step.DATA, Step.DOT):
        refusal = session.decide(step, "s@x", recipient if step is Step.RCPT else "", now_s)
        if refusal is not None:
            return refusal.reply
    session.accept(1, now_s)
    return ""


def test_sessions_of_all_clients_and_of_one() -> None:
    at = provider(sessions=3, sessions_per_address=2)
    first, _ = opened(at), opened(at)
    assert refused(at, ONE, 1.0) == "421 4.7.0 too many concurrent connections from your IP"
    opened(at, TWO)
    assert refused(at, TWO, 2.0) == "421 4.7.0 too many connections"
    assert at.crowded(TWO)
    first.close()
    first.close()
    assert (at.open_sessions, at.account(ONE).open_sessions) == (2, 1)
    assert not at.crowded(TWO)
    opened(at, TWO)
    assert (at.most_sessions, at.account(ONE).most_sessions, at.account(TWO).most_sessions) == (3, 2, 2)
    assert at.violations == [
        Violation(1.0, LimitName.SESSIONS_PER_ADDRESS, ONE),
        Violation(2.0, LimitName.SESSIONS, TWO),
    ]


def test_every_limit_that_an_attempt_exceeds_is_a_violation() -> None:
    """There is one reply, for the first."""
    at = provider(sessions=1, sessions_per_address=1, connect_rate=(Rate(1, 60.0),))
    opened(at)
    assert refused(at, ONE) == REPLIES[LimitName.SESSIONS_PER_ADDRESS]
    account = at.account(ONE)
    assert set(account.violations) == {"sessions", "sessions_per_address", "connect_rate"}
    assert account.refused == {LimitName.SESSIONS_PER_ADDRESS: 1}
    assert len(at.violations) == 3


def test_messages_of_a_session() -> None:
    at = provider(messages_per_session=2)
    session = opened(at)
    assert [message(session, 0.0) for _ in range(2)] == ["", ""]
    refusal = session.decide(Step.MAIL, "s@x", "", 3.0)
    assert refusal == SinkRefusal("421 4.7.0 too many messages in this session", closes=True)
    assert at.violations == [Violation(3.0, LimitName.MESSAGES_PER_SESSION, ONE)]
    assert message(opened(at), 4.0) == ""


def test_a_session_ends_with_other_replies_too() -> None:
    at = provider(messages_per_session=1, replies={"messages_per_session": "451 4.7.0 enough"})
    session = opened(at)
    message(session, 0.0)
    assert session.decide(Step.MAIL, "s@x", "", 0.0) == SinkRefusal("451 4.7.0 enough", closes=True)


def test_several_rates_of_a_client() -> None:
    """Only accepted messages count; other clients are not concerned."""
    at = provider(rate=(Rate(2, 1.0), Rate(3, 10.0)))
    session = opened(at)
    assert [bool(message(session, t)) for t in (0.0, 0.5, 0.9, 1.0, 1.5, 2.1, 9.9, 10.0)] == [
        False, False, True, False, True, True, True, False,
    ]  # fmt: skip
    assert message(opened(at, TWO), 1.5) == ""
    account = at.account(ONE)
    assert account.accepted.times_s.tolist() == [0.0, 0.5, 1.0, 10.0]
    assert account.violations == {LimitName.RATE: 4}
    assert [v.at_s for v in at.violations] == [0.9, 1.5, 2.1, 9.9]
    assert account.accepted.most_within(1.0) == 2
    assert account.messages == 4


def test_a_rate_of_all_clients() -> None:
    at = provider(rate_total=(Rate(2, 1.0),))
    one, two = opened(at), opened(at, TWO)
    assert (message(one, 0.0), message(two, 0.1)) == ("", "")
    assert message(one, 0.2) == "450 4.7.28 rate limit exceeded"
    assert message(two, 1.0) == ""
    assert at.violations == [Violation(0.2, LimitName.RATE_TOTAL, ONE)]
    assert at.accepted.times_s.tolist() == [0.0, 0.1, 1.0]


def test_slack_shortens_the_periods() -> None:
    at = provider(rate=(Rate(1, 1.0),), slack=Seconds(0.125))
    session = opened(at)
    assert [bool(message(session, t)) for t in (0.0, 0.75, 0.875)] == [False, True, False]


def test_a_rate_of_sessions() -> None:
    """A refused session does not count."""
    at = provider(connect_rate=(Rate(2, 60.0),))
    for now_s in (0.0, 1.0):
        opened(at, ONE, now_s).close()
    assert refused(at, ONE, 59.0) == REPLIES[LimitName.CONNECT_RATE]
    opened(at, TWO, 59.0)
    opened(at, ONE, 60.0)
    assert refused(at, ONE, 60.5) == REPLIES[LimitName.CONNECT_RATE]
    assert at.account(ONE).connected.times_s.tolist() == [0.0, 1.0, 60.0]


def test_greylisting_is_by_client_sender_and_recipient_and_no_violation() -> None:
    at = provider(greylist=Seconds(30.0))
    session = opened(at)

    def asked(sender: str, recipient: str, now_s: float) -> bool:
        return session.decide(Step.RCPT, sender, recipient, now_s) is not None

    assert asked("s@x", "r@d", 0.0)
    assert asked("S@x", "R@D", 29.9)
    assert asked("s@x", "other@d", 30.0)
    assert asked("other@x", "r@d", 30.0)
    assert not asked("s@x", "r@d", 30.0)
    assert not asked("S@X", "R@d", 9999.0)
    other = opened(at, TWO).decide(Step.RCPT, "s@x", "r@d", 30.0)
    assert other == SinkRefusal("451 4.7.1 Greylisted", closes=False)
    assert at.violations == []
    assert at.account(ONE).refused == {LimitName.GREYLIST: 4}


def test_a_block_begins_with_the_message_that_is_too_many() -> None:
    block = SinkBlock(MessagesWithin(Rate(3, 60.0)), Seconds(600.0), reply="550 5.7.1 go away")
    at = provider(block=block)
    session = opened(at)
    assert [message(session, float(t)) for t in range(3)] == ["", "", ""]
    assert message(session, 59.0) == "550 5.7.1 go away"
    assert at.violations == [Violation(59.0, LimitName.BLOCK, ONE)]
    assert session.decide(Step.RCPT, "s@x", "r@d", 60.0) is not None  # also a transaction under way
    assert message(session, 658.0) == "550 5.7.1 go away"
    assert message(opened(at, TWO), 658.0) == ""
    assert len(at.violations) == 1  # later refusals are counted as such
    assert at.account(ONE).refused == {LimitName.BLOCK: 1, LimitName.BLOCKED: 2}
    assert message(session, 659.0) == ""


@pytest.mark.parametrize(
    ("at_step", "refusing"),
    [
        ("connect", [Step.EHLO, Step.MAIL, Step.RCPT, Step.DOT]), ("mail", [Step.MAIL, Step.RCPT, Step.DOT]),
        ("rcpt", [Step.RCPT, Step.DOT]), ("dot", [Step.DOT]),
    ],
)  # fmt: skip
def test_a_block_of_a_test(at_step: str, refusing: list[Step]) -> None:
    at = provider(block=SinkBlock(at=at_step))
    session = opened(at)
    at.block(ONE, "421 4.7.0 blocked for now")
    steps = (Step.EHLO, Step.MAIL, Step.RCPT, Step.DOT)
    found = {step: session.decide(step, "s@x", "r@d", 1e9) for step in steps}
    assert [step for step, refusal in found.items() if refusal] == refusing
    assert found[Step.DOT] == SinkRefusal("421 4.7.0 blocked for now", closes=True)
    if at_step == "connect":
        assert refused(at, ONE) == "421 4.7.0 blocked for now"
    else:
        opened(at)
    opened(at, TWO)
    at.unblock(ONE)
    assert message(session, 1e9) == ""
    at.block(ONE, until_s=5.0)
    assert message(session, 4.9) == "550 5.7.1 mail from your IP is blocked"
    assert message(session, 5.0) == ""
    assert at.violations == []


def test_a_block_of_a_test_has_no_end() -> None:
    at = provider()
    at.block(ONE)
    assert at.account(ONE).active_block == (math.inf, "550 5.7.1 mail from your IP is blocked")


def test_the_row_for_json() -> None:
    at = provider(rate=(Rate(2, 1.0),), rate_total=(Rate(9, 60.0),))
    session = opened(at)
    for now_s in (1.25, 1.5, 1.75):
        message(session, now_s)
    assert json.loads(to_json(at.as_row())) == {
        "messages": 2,
        "most_sessions": 1,
        "most_within": {"60s": 2},
        "violations": [[1.75, "rate", ONE]],
        "clients": {
            ONE: {
                "messages": 2,
                "recipients": 2,
                "sessions": 1,
                "most_sessions": 1,
                "most_within": {"1s": 2},
                "violations": {"rate": 1},
                "refused": {"rate": 1},
                "accepted_s": [1.25, 1.5],
            }
        },
    }
    assert at.lines() == [
        f"{ONE}: 2 messages, 1 sessions at the same time, violations: rate 1, refusals: rate 1"
    ]


@given(st.lists(st.tuples(st.sampled_from([ONE, TWO]), st.integers(0, 7)), max_size=60))
def test_open_sessions_are_counted_exactly(moves: list[tuple[str, int]]) -> None:
    """A model that only has lists agrees after every opening and closing."""
    at = provider(sessions=4, sessions_per_address=3)
    model: list[tuple[str, ProviderSession]] = []
    excesses, most = 0, 0
    for client, choice in moves:
        if choice < 4:
            mine = sum(each == client for each, _ in model)
            found = at.connect(client, 0.0)
            excesses += (mine >= 3) + (len(model) >= 4)
            assert isinstance(found, SinkRefusal) == (mine >= 3 or len(model) >= 4)
            if isinstance(found, ProviderSession):
                model.append((client, found))
        elif model:
            _, session = model.pop(choice % len(model))
            session.close()
        most = max(most, len(model))
        assert at.open_sessions == len(model)
    assert (at.most_sessions, len(at.violations)) == (most, excesses)
