"""The error tree.

``RemoteError``: a peer, DNS or the network failed; it becomes a verdict about a recipient.
``LocalError``: configuration, disk or a stored value is wrong; it stops the operation that meets it.
Exceptions of a third-party package are converted in the file that imports it.
"""


class ZonemtaError(Exception):
    """The root of the errors that this package raises."""


class RemoteError(ZonemtaError):
    """A peer, a name server or the network failed."""


class LocalError(ZonemtaError):
    """This machine, its configuration or its caller failed."""


class NotAccepted(LocalError):
    """A message was refused; nothing of it is in the queue. The text is the SMTP reply."""


class ConfigError(LocalError):
    """A configuration is not usable; the text names file, line, key, the value found and those allowed."""


class NotFound(LocalError):
    """The object that an operator asked for does not exist."""


class UnknownName(LocalError):
    """A request names something that the configuration does not have, or cannot have."""


class QueueLocked(LocalError):
    """Another process has the queue open; the text names it. ``holder`` is the token of its lease, or empty."""

    def __init__(self, text: str, holder: str = "") -> None:
        super().__init__(text)
        self.holder = holder


class QueueUnavailable(LocalError):
    """A write to the queue failed; every later write fails until the queue is opened again."""


class QueueCorrupt(LocalError):
    """A stored value is missing, damaged or of an unknown version."""


class QueueUnreadable(QueueCorrupt):
    """The disk has refused to read a stored value; it may give it later."""


class SegmentDamaged(LocalError):
    """A segment of the event log cannot be read as a whole; ``at`` is the offset of the damage."""

    def __init__(self, text: str, at: int) -> None:
        super().__init__(text)
        self.at = at


class DestinationFailed(RemoteError):
    """No session with the destination could be opened.

    ``text`` is shown to operators. ``permanent``: trying again does not help. ``timed_out``: a connection
    attempt was not answered.
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
    """The process that executed a request ended; ``uncertain``: it may have sent the final dot."""

    def __init__(self, text: str, *, uncertain: bool) -> None:
        super().__init__(text)
        self.uncertain = uncertain


class SessionLost(RemoteError):
    """The connection ended, or a time limit passed, in the middle of a dialogue."""
