"""Plain values that several layers use."""

from enum import StrEnum
from typing import NamedTuple

from zonemta_py.core.codec import Struct

# The states of a recipient in the queue, as an operator sees them. unreachable: its destination fails; suspended: an operator
# has suspended what sends it.
STATES = ("waiting", "in_flight", "unreachable", "suspended", "deferred", "not_before", "held")
RENAMED_STATES = {"stopped": "suspended"}  # words that are accepted for one release
AGES_MIN = (
    5,
    10,
    20,
    40,
    80,
    160,
    320,
    640,
    1280,
)  # upper ends of the ages of Postfix's qshape, in minutes

PathKey = tuple[str, str]  # provider and source address: a path that mail takes (KumoMTA: egress path)
ALL_PROVIDERS = "*"  # the provider in the row of an address whose limits hold over all of them
USUAL_POOL = ""  # the pool that the settings of a destination name, or a rule of shaping instead


class PoolKey(NamedTuple):
    """The source addresses from which mail may leave: all of ``pool``; only ``address``; or, if it is ``avoided``, all but it."""

    pool: str = USUAL_POOL
    address: str = ""
    avoided: bool = False


USUAL_KEY = PoolKey()


class Attempt(Struct, frozen=True, array_like=True):
    """The result of one delivery attempt for the recipients that it concerns.

    ``phase`` is connect, mail, rcpt, data, dot or operator. ``code`` is 0 when no server replied; ``text`` is
    then ours. ``reply_class``: one of ``smtp.reply_class.ReplyClass``, empty before it is classified and for
    a success. ``provider``: the provider of the hosts (``egress.providers``). ``uncertain``: the final dot was sent, or the message handed over, and no reply received. ``dsn``: the peer takes over the
    duty to report (RFC 3461). ``final``: success means delivery and not relaying. ``lost_tls``: the session was in clear text because TLS failed.
    """

    phase: str
    code: int
    status: str
    text: str
    mx: str = ""
    mx_ip: str = ""
    source_ip: str = ""
    tls: bool = False
    duration_ms: int = 0
    uncertain: bool = False
    dsn: bool = False
    final: bool = False
    reply_class: str = ""
    provider: str = ""
    lost_tls: bool = False


class OutcomeKind(StrEnum):
    """The result of a settle for a recipient."""

    DELIVERED = "delivered"
    DEFERRED = "deferred"
    BOUNCED = "bounced"
    EXPIRED = "expired"
    LAPSED = "lapsed"  # the time that its submitter gave is over
    REQUEUED = "requeued"  # deferred, in a new message
