"""Named points at which a test ends this process, as a crash would: SIGKILL, nothing is flushed.

``ZONEMTA_FAULT=settle.written:3`` kills ``zonemta serve`` the third time it gets there. Unset, a
point costs one look at an empty dictionary. Every batch has two points, by its kind: ``unwritten``
when it is built and ``written`` when it is on disk and nobody knows yet.
"""

import os
import signal
from collections.abc import Iterable

from zonemta_py.core.errors import ConfigError

VARIABLE = "ZONEMTA_FAULT"

KINDS = {
    "chunk": "a chunk of a body",
    "accept": "a message with its markers and recipients",
    "start": "the beginning of a transaction",
    "deliver": "a delivered recipient leaves",
    "defer": "a recipient goes to its later time",
    "bounce": "a failed recipient leaves, with its report or note",
    "requeue": "a deferred recipient leaves for a message of its own",
    "hold": "a recipient is held",
    "delete": "an operator takes a recipient out",
    "last": "the last recipient leaves, and the markers with it",
    "wake": "a deferred recipient may be sent again",
    "cleanup": "chunks of a message that is gone",
    "outbox": "facts that are in the event log leave the outbox",
}
STAGES = {"unwritten": "built, not on disk", "written": "on disk, nobody knows"}

POINTS = {f"{kind}.{stage}": f"{what}: {when}" for kind, what in KINDS.items() for stage, when in STAGES.items()}  # fmt: skip
POINTS |= {
    "reply.unsent": "a message is on disk and its 250 not yet written",
    "lease.taken": "a worker holds a lease",
    "dot.answered": "the peer took responsibility, nothing of it is on disk",
    "segment.appended": "facts are in the event log and still in the outbox",
    "segment.sealed": "a segment of the event log has its final name",
}

armed: dict[str, int] = {}  # point: how many more times it is passed, the last one kills


def arm(text: str) -> None:
    """Arm what ``text`` names, ``POINT`` or ``POINT:TIMES``. Raises ConfigError for another name."""
    point, _, times = text.partition(":")
    if point not in POINTS or not (times or "1").isdigit():
        raise ConfigError(f"{VARIABLE}: found '{text}', expected POINT[:TIMES], POINT one of {', '.join(POINTS)}")  # fmt: skip
    armed[point] = int(times or "1")


def reach(point: str) -> None:
    """The process is at ``point``."""
    if point in armed:
        armed[point] -= 1
        if armed[point] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)


def reach_all(kinds: Iterable[str], stage: str) -> None:
    """The process is at ``stage`` of batches of these kinds."""
    for kind in kinds:
        reach(f"{kind}.{stage}")
