"""The submission key of one message: which of its recipients are new, and who else is at it."""

from collections.abc import Sequence

from zonemta_py.core import clock
from zonemta_py.core.errors import QueueUnavailable
from zonemta_py.intake.queue_client import Keys
from zonemta_py.queue.format.records import IdempotencyRecord
from zonemta_py.queue.idempotency import KeyLookup, digest_of, extended, not_covered
from zonemta_py.smtp.commands import Rcpt


class Claim:
    """Claims a key, at DATA or once the header is known, until the message is accepted or given up."""

    def __init__(self, keys: Keys, user: str, window_s: float) -> None:
        self._keys = keys
        self._user = user
        self._window_s = window_s
        self._digest = ""
        self._lookup: KeyLookup | None = None
        self._over = False

    def acquire(self, key: str) -> KeyLookup:
        """Claim ``key``; the claim is ``taken`` once the promise is kept, unless another session has it."""
        digest = digest_of(self._user, key)
        self._lookup = lookup = self._keys.acquire(digest)

        def answered(failure: QueueUnavailable | None) -> None:
            if failure is None and not lookup.busy:
                self._digest = digest
                if self._over:
                    self.give_up()

        lookup.add_done_callback(answered)
        return lookup

    @property
    def taken(self) -> bool:
        """Whether a key is claimed."""
        return bool(self._digest)

    @property
    def _known(self) -> IdempotencyRecord | None:
        return self._lookup.known if self._lookup is not None else None

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

    def covering(self, message: str, recipients: Sequence[Rcpt]) -> tuple[str, IdempotencyRecord] | None:
        """What goes into the message's batch; ``handed_over`` follows when the queue has taken it."""
        if not self._digest:
            return None
        addresses = (rcpt.address for rcpt in recipients)
        expires_ms = clock.now_ms() + int(self._window_s * 1000)
        return self._digest, extended(self._known, message, addresses, expires_ms)

    def handed_over(self) -> None:
        """From here on the message's commit gives the key back."""
        self._digest = ""

    def give_up(self) -> None:
        """The message is not accepted; harmless after ``handed_over``."""
        self._over = True
        if self._digest:
            self._keys.release(self._digest)
            self._digest = ""
