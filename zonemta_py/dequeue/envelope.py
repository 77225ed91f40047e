"""Message, recipient and dispositions, as a program sees them, and the errors of dequeueing."""

import re
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from zonemta_py.config.zones import Retry
from zonemta_py.core.errors import LocalError
from zonemta_py.core.model import Attempt, OutcomeKind
from zonemta_py.delivery.outcome import RetryRules, decide_outcome, requested_priority
from zonemta_py.queue.messages import ActiveMessage
from zonemta_py.queue.outcome import Outcome
from zonemta_py.queue.ready.streams import QueuedRecipient as Leased
from zonemta_py.schedule.retry import RetryPolicy
from zonemta_py.smtp.reply import make_reply
from zonemta_py.smtp.verdict import Phase


class Recipient(NamedTuple):
    """A recipient of the message; ``address`` identifies it in ``dispose``.

    ``orcpt`` and ``notify`` are the parameters of RFC 3461; ``notify`` holds flags of ``smtp.reports.dsn``,
    0 without the parameter. ``attempts`` counts earlier delivery attempts.
    """

    address: str
    domain: str
    orcpt: str
    notify: int
    attempts: int


class Info(NamedTuple):
    """The message. ``accepted_ms``: when it was accepted (Unix time in ms).

    ``envid`` (xtext) and ``ret`` are the parameters of RFC 3461; ``user``, ``client_ip``, ``protocol``
    and ``tenant`` describe the submission. ``size_bytes`` includes the header.
    """

    id: str
    zone: str
    sender: str
    envid: str
    ret: str
    size_bytes: int
    accepted_ms: int
    user: str
    client_ip: str
    protocol: str
    tenant: str = ""


# ---- Errors.


class DequeueError(LocalError):
    """A call that failed; it changed nothing."""

    sdk = "MTA_NO"

    def __init__(self, text: str) -> None:
        super().__init__(f"{text} ({self.sdk})")


class WrongOrder(DequeueError):
    """Lines before all recipients, recipients after the first line, anything after the end."""

    sdk = "MTA_ORDER"


class WrongThread(DequeueError):
    """A message was used outside the thread of its routine, or a blocking call would block a loop."""

    sdk = "MTA_THREAD"


class NotInMessage(DequeueError):
    """The address is not a recipient of the message, or no recipient was read yet."""

    sdk = "MTA_NO"


class BadArgument(DequeueError):
    """A value of the wrong type or out of range."""

    sdk = "MTA_BADARGS"


class NoSuchZone(DequeueError):
    """The zone does not exist, or the relay delivers it itself."""

    sdk = "MTA_NOSUCHCHAN"


# ---- The dispositions of a recipient, and the delivery outcome of each. Pure.
#
# Source: MTA SDK, mtaDequeueRecipientDisposition.


class Disposition(IntEnum):
    """The result of a delivery to a recipient. The numbers are those of the MTA SDK."""

    DEFERRED = 0  # try again later
    DELIVERED = 1  # in its mailbox: a report of success if requested
    FAILED = 2  # permanently: a report of failure
    RELAYED = 3  # passed on together with the DSN parameters: no report
    RELAYED_FOREIGN = 4  # passed on without them: a report "relayed" if requested
    RETURN = 5  # returned by an operator: a report of failure
    TIMEDOUT = 6  # too old: a report of failure


class Abort:
    """The type of ``ABORT``."""

    def __repr__(self) -> str:
        return "ABORT"


ABORT: Final = Abort()  # returned by a routine: its thread ends, and no further one starts


class RecipientVerdict(NamedTuple):
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
        raise BadArgument(f"{disposition!r} is not a disposition; 0 to 6 are allowed") from exc


def outcomes(
    active: ActiveMessage,
    leased: Sequence[Leased],
    verdicts: Mapping[str, RecipientVerdict],
    retry: Retry,
    policy: RetryPolicy,
    now_ms: int,
    spread: float,
) -> list[Outcome]:
    """An outcome for every leased recipient; one without a verdict is deferred. Arguments: see ``decide_outcome``."""
    priority = requested_priority(active.meta, retry.policy)
    rules = RetryRules(retry, policy)
    unsaid = RecipientVerdict(Disposition.DEFERRED, "the program did not finish the message")
    found = []
    for recipient in leased:
        verdict = verdicts.get(recipient.address, unsaid)
        attempt = _attempt(verdict)
        if verdict.disposition is Disposition.TIMEDOUT:
            found.append(Outcome(recipient, OutcomeKind.EXPIRED, attempt))
        else:
            found.append(
                decide_outcome(active.meta, priority, recipient, attempt, rules, now_ms, spread)
            )
    return found


def _attempt(verdict: RecipientVerdict) -> Attempt:
    """The attempt that ``verdict`` describes. A reason may begin with a reply code, a status code, or both."""
    disposition = verdict.disposition
    if disposition in _SUCCESS:
        reply = make_reply(250, verdict.reason or disposition.name.lower())
        return Attempt(
            Phase.DOT.value,
            250,
            reply.status or "2.0.0",
            reply.text,
            dsn=disposition is Disposition.RELAYED,
            final=disposition is Disposition.DELIVERED,
        )
    first = "4" if disposition is Disposition.DEFERRED else "5"
    text = verdict.reason or disposition.name.lower()
    match = _REPLY.match(text)
    if match and match[1].startswith(first):
        reply = make_reply(int(match[1]), match[2])
        return Attempt(Phase.DOT.value, reply.code, reply.status, reply.text)
    reply = make_reply(int(first + "50"), text)
    default = "4.4.7" if disposition is Disposition.TIMEDOUT else f"{first}.0.0"
    return Attempt(Phase.DOT.value, 0, reply.status or default, reply.text)
