"""The submission key of one message: which of its recipients are new, and who else is at it."""

from collections.abc import Sequence

from zonemta_py.intake.commands import Rcpt
from zonemta_py.queue.records import Submitted
from zonemta_py.queue.submissions import Submissions, digest_of, not_covered


class Claim:
    """Claims a key, at MAIL or once the header is known, until the message is accepted or given up."""

    def __init__(self, submissions: Submissions, user: str, window_s: float) -> None:
        self._submissions = submissions
        self._user = user
        self._window_s = window_s
        self._digest = ""
        self._known: Submitted | None = None

    def take(self, key: str) -> bool:
        """Claim ``key``; False: another session has it now."""
        digest = digest_of(self._user, key)
        if not self._submissions.take(digest):
            return False
        self._digest = digest
        self._known = self._submissions.find(digest)
        return True

    @property
    def taken(self) -> bool:
        """Whether a key is claimed."""
        return bool(self._digest)

    @property
    def first(self) -> str:
        """The id of the message that was accepted under the key first; empty for a new key."""
        return self._known.message if self._known else ""

    def fresh(self, recipients: Sequence[Rcpt]) -> Sequence[Rcpt]:
        """The recipients that were not yet accepted under the key."""
        if self._known is None:
            return recipients
        new = set(not_covered(self._known, (rcpt.address for rcpt in recipients)))
        return [rcpt for rcpt in recipients if rcpt.address in new]

    def hand_over(self, message: str, recipients: Sequence[Rcpt]) -> tuple[str, Submitted] | None:
        """What goes into the message's batch; from here on its commit gives the key back."""
        if not self._digest:
            return None
        addresses = (rcpt.address for rcpt in recipients)
        record = self._submissions.extended(self._known, message, addresses, self._window_s)
        digest, self._digest = self._digest, ""
        return digest, record

    def give_up(self) -> None:
        """The message is not accepted; harmless after ``hand_over``."""
        if self._digest:
            self._submissions.give_back(self._digest)
            self._digest = ""
