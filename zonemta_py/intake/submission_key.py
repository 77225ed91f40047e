"""The submission key of one message: which of its recipients are new, and whether another session has it."""

from collections.abc import Sequence

from zonemta_py.core import clock
from zonemta_py.core.errors import QueueUnavailable
from zonemta_py.intake.queue_client import KeysClient
from zonemta_py.queue.format.records import Origin
from zonemta_py.queue.submitters.keys import KeyLookup, KeyQuestion, KeyUse, KnownKey, submission_digest
from zonemta_py.smtp.commands import Rcpt

ENVID = "envid"  # the source of a key in MAIL; those of others are the lower-case names of fields
KEY_FIELD = "X-Submission-Key"
OTHER_CONTENT = (
    "550 5.7.0 This submission key was used for another message: sender, From, Subject or body "
    "differ from those of {message}"
)


def key_question(origin: Origin, key: str, owner: str = "") -> KeyQuestion:
    """The question after ``key`` of the owner of ``origin``, or of ``owner``.

    Earlier versions had the keys of a tenant's users under the user. Those of its hosts were under the address, where other
    tenants have keys, too: they are not asked for.
    """
    former = submission_digest(origin.user, key) if origin.tenant and origin.user else ""
    return KeyQuestion(submission_digest(owner or origin.owner, key), former)


class SubmissionKeyClaim:
    """The claim of one message to a submission key, until the message is accepted or refused.

    ``origin``: of the message; its owner's keys count, or those of ``owner``. A new key is remembered for ``window_s``.
    """

    def __init__(self, keys: KeysClient, origin: Origin, window_s: float, owner: str = "") -> None:
        self.origin = origin
        self._keys = keys
        self._owner = owner
        self._window_s = window_s
        self._question = KeyQuestion("")
        self._digest = ""  # of the acquired key
        self._refuses_other = False
        self._known: KnownKey | None = None
        self._released = False

    def acquire(
        self, key: str, content: str = "", addresses: tuple[str, ...] = (), *, refuses_other: bool
    ) -> KeyLookup:
        """Acquire ``key``. When the lookup is done, it is ``acquired`` unless another session has it.

        ``content`` and ``addresses``: see ``compare``. ``refuses_other``: other content under the key is refused.
        """
        self._refuses_other = refuses_other
        question = key_question(self.origin, key, self._owner)
        self._question = question._replace(content=content, addresses=addresses)
        lookup = self._keys.acquire(self._question)

        def looked_up(failure: QueueUnavailable | None) -> None:
            if failure is None and not lookup.busy:
                self._digest, self._known = question.digest, lookup.known
                if self._released:
                    self.release()

        lookup.add_done_callback(looked_up)
        return lookup

    def compare(self, content: str, addresses: tuple[str, ...]) -> KeyLookup:
        """Ask which of ``addresses`` have a message with this content (a digest) under the acquired key."""
        self._question = self._question._replace(content=content, addresses=addresses)
        lookup = self._keys.compare(self._question)

        def compared(failure: QueueUnavailable | None) -> None:
            if failure is None:
                self._known = lookup.known

        lookup.add_done_callback(compared)
        return lookup

    @property
    def acquired(self) -> bool:
        return bool(self._digest)

    @property
    def refusal(self) -> str:
        """The reply to other content under the key, if it is refused; else empty."""
        if self._known is None or not self._known.is_other or not self._refuses_other:
            return ""
        return OTHER_CONTENT.format(message=self._known.message)

    @property
    def first(self) -> str:
        """The id of the first message that recipients have under the key; empty when none has one."""
        return min(filter(None, self._known.messages), default="") if self._known is not None else ""

    def new_recipients(self, recipients: Sequence[Rcpt]) -> Sequence[Rcpt]:
        """Those of ``recipients``, in the order of the addresses, that have no message under the key."""
        if self._known is None or not self._known.messages:
            return recipients
        pairs = zip(recipients, self._known.messages, strict=True)
        return [rcpt for rcpt, message in pairs if not message]

    def repeated(self) -> dict[str, list[str]]:
        """The addresses that have a message under the key, by its id."""
        found: dict[str, list[str]] = {}
        messages = self._known.messages if self._known is not None else ()
        for address, message in zip(self._question.addresses, messages, strict=False):
            if message:
                found.setdefault(message, []).append(address)
        return found

    def use_for(self, message: str, recipients: Sequence[Rcpt]) -> KeyUse | None:
        """The entry under the key in the batch of ``message``; None without a key."""
        if not self._digest:
            return None
        known, expires_ms = self._known, clock.now_ms() + int(self._window_s * 1000)
        return KeyUse(
            self._digest,
            self._question.content,
            message,
            known.expires_ms if known is not None and known.expires_ms else expires_ms,
            tuple(rcpt.address for rcpt in recipients),
            is_new=known is None,
            is_first=known is None or not known.expires_ms,
            other=known.message if known is not None and known.is_other else "",
        )

    def hand_over(self) -> None:
        """Leave the release of the key to the commit of the message."""
        self._digest = ""

    def release(self) -> None:
        """Release the key of a message that is not accepted; no effect after ``hand_over``."""
        self._released = True
        if self._digest:
            self._keys.release(self._digest)
            self._digest = ""
