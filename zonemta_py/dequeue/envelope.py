"""Message and recipient, as a program sees them, and the errors of dequeueing."""

from typing import NamedTuple

from zonemta_py.core.errors import LocalError


class Recipient(NamedTuple):
    """A recipient of the message; ``address`` identifies it in ``dispose``.

    ``orcpt`` and ``notify`` are the parameters of RFC 3461; ``notify`` holds flags of ``smtp.dsn_params``,
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


# ---- errors


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
