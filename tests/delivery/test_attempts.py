"""The attempts of a transaction's recipients."""

from typing import cast

import pytest

from tests.delivery.agents import HEADER
from tests.delivery.agents import request as make_request
from zonemta_py.core.errors import DestinationFailed
from zonemta_py.core.model import Attempt
from zonemta_py.delivery.attempts import (
    attempts_of,
    no_session,
    of_others,
    reason_of,
    without_limited,
)
from zonemta_py.delivery.endpoints import Endpoint
from zonemta_py.smtp.reply import Reply
from zonemta_py.smtp.verdict import Phase
from zonemta_py.transports.connect import SessionRefused, Target
from zonemta_py.transports.session import LmtpSession, SmtpSession, TransactionResult

ENDPOINT = Endpoint("mx.a.example", "192.0.2.1", 25, "192.0.2.9")
TARGET = Target("mx.a.example", "192.0.2.1", 25)
OK = (Phase.DOT, Reply(250, "2.0.0", "ok"))
NO = (Phase.RCPT, Reply(550, "5.1.1", "no"))


class Session:
    """What an attempt records of a session."""

    secure = True
    lost_tls = False

    def __init__(self, kind: type[SmtpSession]) -> None:
        self.delivers = kind.delivers

    def offers(self, extension: str) -> bool:
        return extension == "dsn"


@pytest.mark.parametrize(("kind", "final"), [(SmtpSession, False), (LmtpSession, True)])
def test_one_attempt_for_each_answer(kind: type[SmtpSession], final: bool) -> None:
    """LMTP delivers; SMTP passes the responsibility on, and a report says *relayed*."""
    session = cast(SmtpSession, Session(kind))
    made = attempts_of(TransactionResult([OK, NO, OK, None]), ENDPOINT, session, 0.0)
    assert made[0] is not None
    assert made[0] is made[2]
    assert made[3] is None
    assert (made[0].code, made[0].mx_ip, made[0].source_ip) == (250, "192.0.2.1", "192.0.2.9")
    assert (made[0].tls, made[0].dsn, made[0].final) == (True, True, final)
    assert made[1] is not None
    assert (made[1].phase, made[1].status) == ("rcpt", "5.1.1")


def test_a_recipient_with_a_reply_is_not_uncertain() -> None:
    """LMTP: the peer answers for one recipient after the dot, then leaves."""
    session = cast(SmtpSession, Session(LmtpSession))
    full, lost = (Phase.DOT, Reply(452, "4.2.2", "full")), (Phase.DOT, Reply(0, "4.4.2", "no answer"))
    result = TransactionResult([OK, full, lost, NO], uncertain=True)
    made = attempts_of(result, ENDPOINT, session, 0.0)
    assert [each.uncertain for each in made if each] == [False, False, True, False]


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (DestinationFailed(554, "5.7.1", "not by a peer"), "4.7.1"),
        (SessionRefused(Reply(554, "5.7.1", "go away"), TARGET, "192.0.2.9"), "5.7.1"),
        (SessionRefused(Reply(0, "", "Malformed greeting"), TARGET, ""), "4.4.0"),
        (DestinationFailed(0, "4.4.1", "timed out"), "4.4.1"),
        (DestinationFailed(0, "5.1.2", "no such domain", permanent=True), "5.1.2"),
    ],
)
def test_without_a_session_a_failure_is_temporary_unless_it_is_permanent(
    failure: DestinationFailed, status: str
) -> None:
    result = no_session(
        make_request("x@a.example", "y@a.example", header=HEADER), failure, 0.0, tried=True
    )
    assert result.failure is result.attempts[0] is result.attempts[1]
    assert result.failure is not None
    assert result.failure.status == status
    assert result.permanent == failure.permanent


def test_a_refused_session_is_an_attempt_of_one_message_only() -> None:
    """The mail that fails with it was not tried: its attempt has the reply as a text."""
    refused = SessionRefused(Reply(554, "5.7.1", "go away"), TARGET, "192.0.2.9")
    failure = no_session(make_request("x@a.example", header=HEADER), refused, 0.0, tried=True).failure
    assert failure is not None
    assert (failure.code, failure.mx_ip, failure.source_ip) == (554, "192.0.2.1", "192.0.2.9")
    assert reason_of(failure) == "mx.a.example[192.0.2.1] said: 554 5.7.1 go away"
    others = of_others(failure)
    assert (others.code, others.status, others.text) == (0, "4.7.1", reason_of(failure))
    assert of_others(others) is others


def test_recipients_that_were_too_many() -> None:
    """They go in another transaction, with as many as the peer took, or half as many as before."""
    taken, refused = Attempt("dot", 250, "2.0.0", "ok"), Attempt("rcpt", 550, "5.1.1", "no")
    many = Attempt("rcpt", 554, "", "too many recipients", reply_class="too_many_recipients")
    assert without_limited([taken, refused, many, many]) == ([taken, refused, None, None], 1)
    assert without_limited([many] * 5) == ([None] * 5, 2)
    assert without_limited([many, None, many]) == ([None] * 3, 1)
    for attempts in ([many], [many, None], [taken, refused], [None, None]):
        assert without_limited(attempts) == (attempts, 0)
    lost = Attempt("dot", 0, "4.4.2", "", uncertain=True, reply_class="too_many_recipients")
    assert without_limited([lost, lost]) == ([lost, lost], 0), "the peer may have it"
