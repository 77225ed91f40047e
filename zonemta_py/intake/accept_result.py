"""How the receipt of a message ends: what was accepted, or that nothing could be now."""

from typing import NamedTuple

from zonemta_py.core import clock
from zonemta_py.queue.format.keys import created_ms

UNDER_WAY = "450 4.3.0 This submission is under way, try again later"
UNWRITABLE = "451 4.3.0 The queue cannot be written, try again later"


class AcceptResult(NamedTuple):
    """What was accepted.

    ``stored``: id of the message that was stored; empty for a repetition without new recipients.
    ``first``: id of the message accepted first under the submission key; empty without a repetition.
    ``recipients``: how many the stored message has. ``all``: ids of the messages that policies made of it.
    """

    stored: str
    first: str
    recipients: int
    all: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The id to report to the client."""
        return self.first or self.stored

    def reply(self) -> str:
        """The reply to the final dot."""
        reply = f"250 2.0.0 Ok: queued as {self.id}"
        if self.first:
            age_ms = max(0, clock.now_ms() - created_ms(self.first))
            reply += f" duplicate, accepted {age_ms / 1000:.3f} s ago"
            if self.stored:
                reply += f", {self.recipients} new recipients as {self.stored}"
        return reply
