"""Plain values that several layers speak of."""

from enum import StrEnum

from zonemta_py.core.codec import Struct


class Attempt(Struct, frozen=True, array_like=True):
    """What one attempt to deliver found, for every recipient it answers.

    ``phase`` is connect, mail, rcpt, data or dot. ``code`` is 0 when no server answered and the
    text was written here. ``uncertain``: the final dot went out and no answer came. ``dsn``: the
    peer took over the duty to report (RFC 3461). ``final``: a success is delivery, and no relaying.
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


class OutcomeKind(StrEnum):
    """What a settle makes of a recipient."""

    DELIVERED = "delivered"
    DEFERRED = "deferred"
    BOUNCED = "bounced"
    EXPIRED = "expired"
    REQUEUED = "requeued"  # deferred, in a message of its own
