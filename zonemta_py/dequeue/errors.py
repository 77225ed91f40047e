"""Errors of channel programs: a call at the wrong time or with a wrong argument.

Each text ends with the error code of the MTA SDK.
"""

from zonemta_py.core.errors import LocalError


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
