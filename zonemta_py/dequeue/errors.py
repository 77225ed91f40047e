"""What a channel program is told when it calls in the wrong order, or with the wrong things.

Each text ends with the name the MTA SDK has for it, for those who come from there.
"""

from zonemta_py.core.errors import LocalError


class DequeueError(LocalError):
    """A call that could not be carried out; nothing was changed by it."""

    sdk = "MTA_NO"

    def __init__(self, text: str) -> None:
        super().__init__(f"{text} ({self.sdk})")


class WrongOrder(DequeueError):
    """Lines before all recipients, recipients after the first line, anything after the end."""

    sdk = "MTA_ORDER"


class WrongThread(DequeueError):
    """A message belongs to the thread whose routine got it."""

    sdk = "MTA_THREAD"


class NotInMessage(DequeueError):
    """An address that is none of the message's recipients, or a recipient that was not read yet."""

    sdk = "MTA_NO"


class BadArgument(DequeueError):
    """A value out of its range."""

    sdk = "MTA_BADARGS"


class NoSuchZone(DequeueError):
    """A zone that is not there, or that the relay delivers itself."""

    sdk = "MTA_NOSUCHCHAN"
