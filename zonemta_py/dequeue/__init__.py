"""Channel programs: a routine of yours is called with each message of a zone (docs/library.md).

def routine(message: Message) -> None:
    for recipient in message.recipients():
        message.dispose(recipient.address, Disposition.DELIVERED)
    message.finish()

dequeue("var/queue", "archive", routine)
"""

from zonemta_py.dequeue.api import adequeue, dequeue
from zonemta_py.dequeue.envelope import (
    ABORT,
    BadArgument,
    DequeueError,
    Disposition,
    Info,
    NoSuchZone,
    NotInMessage,
    Recipient,
    WrongOrder,
    WrongThread,
)
from zonemta_py.dequeue.message import AsyncMessage, Message
from zonemta_py.dequeue.outgoing import AsyncOutgoing, Outgoing

__all__ = [
    "ABORT", "AsyncMessage", "AsyncOutgoing", "BadArgument", "DequeueError", "Disposition", "Info",
    "Message", "NoSuchZone", "NotInMessage", "Outgoing", "Recipient", "WrongOrder", "WrongThread",
    "adequeue", "dequeue",
]  # fmt: skip
