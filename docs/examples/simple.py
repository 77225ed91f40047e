"""The simplest channel program: prints every message of a zone, one after another.

python docs/examples/simple.py QUEUE ZONE
"""

import sys

from zonemta_py.dequeue import Disposition, Message, dequeue


def routine(message: Message) -> None:
    """Print a message. ``finish`` is last: a message that is not finished is deferred."""
    print(f"{message.info.id} from <{message.sender}>")
    for recipient in message.recipients():  # all of them, before the lines
        print(f"  to <{recipient.address}>")
    for line in message.lines():
        print("  |", line.decode("utf-8", "replace"))
    message.finish(Disposition.DELIVERED)


if __name__ == "__main__":
    count = dequeue(
        sys.argv[1], sys.argv[2], routine, max_threads=1, max_attempts=1, retry_interval_s=0.1
    )
    print(f"{count} messages")
