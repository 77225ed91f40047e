"""Named points at which a test ends this process, as a crash would: SIGKILL, nothing is flushed.

``ZONEMTA_FAULT=last.written:3`` kills ``zonemta serve`` the third time it reaches that point. Unset, a
point costs one test of an empty dictionary. Each batch has two points, by its kind: ``unwritten`` when it
is built, and ``written`` when it is on disk and its callbacks have not run.
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
    "deliver": "a delivered recipient is removed",
    "defer": "a recipient is deferred",
    "bounce": "a failed recipient is removed, with its report or note",
    "requeue": "a deferred recipient moves to a new message",
    "hold": "a recipient is held",
    "delete": "an operator deletes a recipient",
    "last": "the last recipient and the markers are removed",
    "wake": "a deferred recipient is ready again",
    "cleanup": "chunks of a message that ended",
    "outbox": "events that are in the event log are deleted from the outbox",
}
STAGES = {"unwritten": "built, not on disk", "written": "on disk, callbacks not run"}

POINTS = {f"{kind}.{stage}": f"{what}: {when}" for kind, what in KINDS.items() for stage, when in STAGES.items()}  # fmt: skip
POINTS |= {
    "reply.unsent": "a message is on disk and its 250 not yet written",
    "lease.taken": "a worker holds a lease",
    "dot.answered": "the peer accepted the message, which is not yet recorded",
    "segment.appended": "events are in the event log and still in the outbox",
    "segment.linked": "a segment has its final name, and still its hidden one",
    "segment.sealed": "a segment of the event log has its final name",
}

armed: dict[str, int] = {}  # point: how often it is still to be reached; the last time kills


def arm(text: str) -> None:
    """Arm the point in ``text``, ``POINT`` or ``POINT:TIMES``. Raises ConfigError for another name."""
    point, _, times = text.partition(":")
    if point not in POINTS or not (times or "1").isdigit():
        raise ConfigError(f"{VARIABLE}: found '{text}', expected POINT[:TIMES], POINT one of {', '.join(POINTS)}")  # fmt: skip
    armed[point] = int(times or "1")


def reach(point: str) -> None:
    """End this process if ``point`` is armed and this is the armed passage."""
    if point in armed:
        armed[point] -= 1
        if armed[point] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)


def reach_all(kinds: Iterable[str], stage: str) -> None:
    """``reach`` for ``stage`` of batches of these kinds."""
    for kind in kinds:
        reach(f"{kind}.{stage}")
