"""The interface of a queue to a session: the queue itself, or a ``RemoteQueue`` in a receiver process."""

from collections.abc import Container
from typing import Protocol

from zonemta_py.core.errors import QueueUnavailable
from zonemta_py.events.schema import Event
from zonemta_py.queue.accept import NewMessage
from zonemta_py.queue.commit import CommitFuture
from zonemta_py.queue.messages import MessageWriter
from zonemta_py.queue.submitters.keys import KeyLookup, KeyQuestion
from zonemta_py.queue.submitters.limits import (
    Charge,
    LimitedClient,
    RecentLogins,
    SessionClaim,
    Use,
    WrongPasswords,
)


class KeysClient(Protocol):
    """The submission keys of a queue, by their digests."""

    def lookup(self, question: KeyQuestion) -> KeyLookup:
        """Ask for the messages that were accepted under a key."""

    def acquire(self, question: KeyQuestion) -> KeyLookup:
        """Like ``lookup``; the key is then acquired, unless it is busy."""

    def compare(self, question: KeyQuestion) -> KeyLookup:
        """Ask for the messages that were accepted under a key that is acquired."""

    def release(self, digest: str) -> None:
        """Release an acquired key."""


class LimitsClient(Protocol):
    """The limits of what is submitted."""

    def closed(self, client: LimitedClient) -> str:
        """The reply to any message of ``client``; empty when one may be accepted."""

    def charge(self, client: LimitedClient, use: Use) -> Charge:
        """Count ``use`` unless it exceeds a limit."""

    def open_session(self, client: LimitedClient) -> SessionClaim:
        """Count a session that begins, unless there are too many."""


class QueueClient(Protocol):
    """The entrance to a queue."""

    @property
    def failure(self) -> QueueUnavailable | None:
        """The error that stopped all writes; None while the queue can be written."""

    @property
    def suspended(self) -> Container[str]:
        """The suspensions; ``suspended_part`` reads them."""

    @property
    def verified(self) -> Container[tuple[str, str]]:
        """The verified domains, with their tenants in front."""

    @property
    def submission_keys(self) -> KeysClient:
        """The submission keys of the queue."""

    @property
    def limits(self) -> LimitsClient:
        """The limits of submitted mail."""

    @property
    def wrong_passwords(self) -> WrongPasswords:
        """The wrong passwords that clients have tried."""

    @property
    def recent_logins(self) -> RecentLogins:
        """The users that have logged in recently, with their networks."""

    def open_message(self) -> MessageWriter:
        """A writer for a body; ``accept`` or ``abort`` ends it."""

    def accept(self, writer: MessageWriter, new: NewMessage) -> CommitFuture:
        """Store a message: the relay is responsible for it once the future is done without a failure.

        The submission key in ``new`` is released then, or after a failure.
        """

    def abort(self, writer: MessageWriter) -> object:
        """Discard an unfinished body."""

    def record(self, event: Event) -> None:
        """Write an event that belongs to no accepted message to the event log."""
