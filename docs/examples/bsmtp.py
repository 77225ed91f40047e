"""Writes the mail of a zone as batch SMTP, to one file per thread. A failed write defers the message.

python docs/examples/bsmtp.py QUEUE ZONE DIRECTORY
"""

import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

from zonemta_py.dequeue import ABORT, Disposition, Message, dequeue
from zonemta_py.dequeue.envelope import Abort

DIRECTORY = Path(sys.argv[3]) if len(sys.argv) > 3 else Path()


def routine(message: Message) -> Abort | None:
    """Append one transaction. The messages of a thread share ``message.thread``."""
    batch = getattr(message.thread, "batch", None)
    try:
        if batch is None:
            batch = message.thread.batch = tempfile.NamedTemporaryFile(
                dir=DIRECTORY, suffix=".bsmtp", delete=False
            )
            batch.write(b"HELO relay.example\n")
        recipients = list(message.recipients())
        batch.write(f"MAIL FROM:<{message.sender}>\n".encode())
        for recipient in recipients:
            batch.write(f"RCPT TO:<{recipient.address}>\n".encode())
        batch.write(b"DATA\n")
        for line in message.lines():
            batch.write((b"." + line if line.startswith(b".") else line) + b"\n")
        batch.write(b".\n")
        batch.flush()
    except OSError as exc:
        message.abort(f"450 4.3.1 {exc.strerror}")
        return ABORT  # the next message could not be written either: end the call
    for recipient in recipients:
        message.dispose(recipient.address, Disposition.RELAYED_FOREIGN)
    message.finish()
    return None


def done(thread: SimpleNamespace) -> None:
    """Complete the file of a thread that ends."""
    batch = getattr(thread, "batch", None)
    if batch is not None:
        batch.write(b"QUIT\n")
        batch.close()


if __name__ == "__main__":
    dequeue(sys.argv[1], sys.argv[2], routine, done, max_threads=3, max_attempts=1, retry_interval_s=0.1)
