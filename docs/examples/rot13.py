"""An intermediate channel: mail of one zone continues in another, with its body encoded by ROT13.

python docs/examples/rot13.py QUEUE FROM-ZONE TO-ZONE
"""

import codecs
import sys

from zonemta_py.dequeue import Disposition, Message, dequeue


def routine(message: Message) -> None:
    """Write new mail for every message, with the same envelope.

    The new mail is on disk before the old message ends: a crash between the two sends the mail twice,
    never not at all.
    """
    new = message.start(zone=sys.argv[3])
    for recipient in message.recipients():
        new.to(recipient)  # keeps ORCPT and NOTIFY
    in_header = True
    for line in message.lines():
        if in_header:
            in_header = bool(line)
            new.write_line(line)
        else:
            new.write_line(codecs.encode(line.decode("latin-1"), "rot13").encode("latin-1"))
    new.finish()
    message.finish(Disposition.RELAYED)


if __name__ == "__main__":
    dequeue(sys.argv[1], sys.argv[2], routine, max_attempts=1, retry_interval_s=0.1)
