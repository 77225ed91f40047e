"""What sessions ask of a queue: it may be in this process, or at the other end of a link."""

from typing import Protocol

from zonemta_py.core.errors import QueueUnavailable
from zonemta_py.events.schema import Event
from zonemta_py.queue.accept import NewMessage
from zonemta_py.queue.batch import CommitFuture
from zonemta_py.queue.chunks import MessageWriter
from zonemta_py.queue.idempotency import KeyLookup


class Keys(Protocol):
    """The submission keys, by their digests."""

    def lookup(self, digest: str) -> KeyLookup:
        """What is known of a key, which stays free."""

    def acquire(self, digest: str) -> KeyLookup:
        """The same, and the key is taken unless it is busy."""

    def release(self, digest: str) -> None:
        """A key that was taken is free again."""


class QueueClient(Protocol):
    """The way into a queue."""

    @property
    def failure(self) -> QueueUnavailable | None:
        """Why nothing can be written any more."""

    @property
    def idempotency_keys(self) -> Keys:
        """Its submission keys."""

    def open_message(self) -> MessageWriter:
        """A writer for a body; ``accept`` or ``abort`` ends it."""

    def accept(self, writer: MessageWriter, new: NewMessage) -> CommitFuture:
        """Take responsibility, once the promise is kept; the submission key in ``new`` is free then."""

    def abort(self, writer: MessageWriter) -> object:
        """The body will not be finished."""

    def record(self, event: Event) -> None:
        """Put a fact that belongs to no accepted message into the ledger."""
