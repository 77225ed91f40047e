"""The submission key of one message: which of its recipients are new, and whether another session has it."""

from collections.abc import Sequence

from zonemta_py.core import clock
from zonemta_py.core.errors import QueueUnavailable
from zonemta_py.intake.queue_client import KeysClient
from zonemta_py.queue.format.records import Origin, SubmissionRecord
from zonemta_py.queue.submission_keys import KeyLookup, extended, not_covered, submission_digest
from zonemta_py.smtp.commands import Rcpt


class SubmissionKeyClaim:
    """The claim of one message to a submission key, until the message is accepted or refused.

    ``origin``: of the message; its owner's keys count, or those of ``owner``. A new key is remembered for ``window_s``.
    """

    def __init__(self, keys: KeysClient, origin: Origin, window_s: float, owner: str = "") -> None:
        self.origin = origin
        self._keys = keys
        self._owner = owner
        self._window_s = window_s
        self._digest = ""  # of the acquired key
        self._lookup: KeyLookup | None = None
        self._released = False

    def acquire(self, key: str) -> KeyLookup:
        """Acquire ``key``. When the lookup is done, it is ``acquired`` unless another session has it."""
        digest = submission_digest(self._owner or self.origin.owner, key)
        self._lookup = lookup = self._keys.acquire(digest)

        def looked_up(failure: QueueUnavailable | None) -> None:
            if failure is None and not lookup.busy:
                self._digest = digest
                if self._released:
                    self.release()

        lookup.add_done_callback(looked_up)
        return lookup

    @property
    def acquired(self) -> bool:
        """Whether a key is acquired."""
        return bool(self._digest)

    @property
    def _known(self) -> SubmissionRecord | None:
        return self._lookup.known if self._lookup is not None else None

    @property
    def first(self) -> str:
        """The id of the message that was accepted first under the key; empty for a new key."""
        return self._known.message if self._known else ""

    def new_recipients(self, recipients: Sequence[Rcpt]) -> Sequence[Rcpt]:
        """Those of ``recipients`` that were not yet accepted under the key."""
        if self._known is None:
            return recipients
        new = set(not_covered(self._known, (rcpt.address for rcpt in recipients)))
        return [rcpt for rcpt in recipients if rcpt.address in new]

    def record_for(
        self, message: str, recipients: Sequence[Rcpt]
    ) -> tuple[str, SubmissionRecord] | None:
        """The key's digest and record for the batch of ``message``; None without a key."""
        if not self._digest:
            return None
        addresses = (rcpt.address for rcpt in recipients)
        expires_ms = clock.now_ms() + int(self._window_s * 1000)
        return self._digest, extended(self._known, message, addresses, expires_ms)

    def hand_over(self) -> None:
        """From now on the message's commit releases the key."""
        self._digest = ""

    def release(self) -> None:
        """The message is not accepted; does nothing after ``hand_over``."""
        self._released = True
        if self._digest:
            self._keys.release(self._digest)
            self._digest = ""
