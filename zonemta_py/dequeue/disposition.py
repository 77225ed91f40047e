"""What a routine may say about a recipient, and what it comes to as the end of an attempt. Pure.

Source: MTA SDK, mtaDequeueRecipientDisposition.
"""

import re
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from zonemta_py.config.schema import Retry
from zonemta_py.core.model import Attempt, OutcomeKind
from zonemta_py.delivery import outcome as settle
from zonemta_py.dequeue.errors import BadArgument
from zonemta_py.queue.active import ActiveMessage
from zonemta_py.queue.submitter_queues import Recipient as Leased
from zonemta_py.queue.transitions import Outcome
from zonemta_py.schedule.retry import Policy
from zonemta_py.smtp.classify import Phase
from zonemta_py.smtp.reply import make_reply


class Disposition(IntEnum):
    """What became of a recipient. The numbers are the SDK's."""

    DEFERRED = 0  # try again later
    DELIVERED = 1  # in its mailbox: a report of success if one was asked for
    FAILED = 2  # never: a report of failure
    RELAYED = 3  # handed on, with what the sender asked about reports: no report
    RELAYED_FOREIGN = 4  # handed on to where reports are unknown: a report that says so, if asked for
    RETURN = 5  # sent back by an operator's tool: a report of failure
    TIMEDOUT = 6  # too old: a report of failure


class Abort:
    """The type of ``ABORT``."""

    def __repr__(self) -> str:
        return "ABORT"


ABORT: Final = Abort()  # returned by a routine: its thread ends, and no new one begins


class Said(NamedTuple):
    """A disposition and its reason."""

    disposition: Disposition
    reason: str = ""


_REPLY = re.compile(r"([245]\d\d)[ -](.*)\Z", re.DOTALL)
_SUCCESS = (Disposition.DELIVERED, Disposition.RELAYED, Disposition.RELAYED_FOREIGN)


def checked(disposition: int) -> Disposition:
    """``disposition`` as one of the seven. Raises BadArgument."""
    try:
        return Disposition(disposition)
    except ValueError as exc:
        raise BadArgument(f"{disposition!r} is no disposition: 0 to 6 are") from exc


def outcomes(
    active: ActiveMessage,
    leased: Sequence[Leased],
    said: Mapping[str, Said],
    retry: Retry,
    policy: Policy,
    now_ms: int,
    spread: float,
) -> list[Outcome]:
    """An outcome for every leased recipient; nothing said is DEFERRED. Arguments as in ``settle.decide``."""
    urgency = settle.priority(active.meta.header, retry.policy)
    unsaid = Said(Disposition.DEFERRED, "the program did not finish the message")
    found = []
    for recipient in leased:
        word = said.get(recipient.address, unsaid)
        attempt = _attempt(word)
        if word.disposition is Disposition.TIMEDOUT:
            found.append(Outcome(recipient, OutcomeKind.EXPIRED, attempt))
        else:
            found.append(
                settle.decide(active.meta, urgency, recipient, attempt, retry, policy, now_ms, spread)
            )
    return found


def _attempt(said: Said) -> Attempt:
    """The attempt that ``said`` describes. A reason may begin with a reply code, a status code, or both."""
    disposition = said.disposition
    if disposition in _SUCCESS:
        reply = make_reply(250, said.reason or disposition.name.lower())
        return Attempt(
            Phase.DOT.value,
            250,
            reply.status or "2.0.0",
            reply.text,
            dsn=disposition is Disposition.RELAYED,
            final=disposition is Disposition.DELIVERED,
        )
    first = "4" if disposition is Disposition.DEFERRED else "5"
    text = said.reason or disposition.name.lower()
    match = _REPLY.match(text)
    if match and match[1].startswith(first):
        reply = make_reply(int(match[1]), match[2])
        return Attempt(Phase.DOT.value, reply.code, reply.status, reply.text)
    reply = make_reply(int(first + "50"), text)
    default = "4.4.7" if disposition is Disposition.TIMEDOUT else f"{first}.0.0"
    return Attempt(Phase.DOT.value, 0, reply.status or default, reply.text)
