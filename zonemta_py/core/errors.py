"""The one error tree.

``RemoteError`` is what others do (a peer, DNS, the network): it becomes a verdict about a
recipient. ``LocalError`` is what is wrong here (configuration, disk, a damaged value): it stops
what it touches and nothing else. Third-party exceptions end at their door file.
"""


class ZonemtaError(Exception):
    """Root of every error this package raises on purpose."""


class RemoteError(ZonemtaError):
    """A peer, a name server or the network failed."""


class LocalError(ZonemtaError):
    """This machine, its configuration or its caller failed."""


class NotAccepted(LocalError):
    """A message is not taken; nothing of it is in the queue. The text is the reply that SMTP would give."""


class ConfigError(LocalError):
    """A configuration cannot be used; the text names file, line, key, what was found, what is allowed."""


class QueueLocked(LocalError):
    """Another process has the queue open; the text says which. ``holder`` is host:pid where that is known."""

    def __init__(self, text: str, holder: str = "") -> None:
        super().__init__(text)
        self.holder = holder


class QueueUnavailable(LocalError):
    """A write to the queue failed; every later write fails until the queue is opened again."""


class QueueCorrupt(LocalError):
    """A stored value is missing, damaged or of an unknown version."""


class DestinationFailed(RemoteError):
    """No session with the destination could be had.

    ``reply`` is the text an operator sees, with an enhanced status code; ``permanent`` says
    whether trying again can help; ``timed_out``: nobody answered a connection attempt.
    """

    def __init__(
        self, code: int, status: str, text: str, *, permanent: bool = False, timed_out: bool = False
    ) -> None:
        super().__init__(f"{code} {status} {text}")
        self.code = code
        self.status = status
        self.text = text
        self.permanent = permanent
        self.timed_out = timed_out


class AgentLost(LocalError):
    """The process that carried out an order ended; ``uncertain``: it may have sent the final dot."""

    def __init__(self, text: str, *, uncertain: bool) -> None:
        super().__init__(text)
        self.uncertain = uncertain


class SessionLost(RemoteError):
    """The connection ended, or a time limit passed, in the middle of a dialogue."""
