"""What accepting a message does in memory: room in the windows, a live entry, its submission key."""

from collections.abc import Callable, Iterable
from functools import partial

from zonemta_py.errors import QueueUnavailable
from zonemta_py.queue import transitions
from zonemta_py.queue.commit import Batch
from zonemta_py.queue.deferral import Deferral
from zonemta_py.queue.live import LiveMessage, LiveMessages
from zonemta_py.queue.placement import Placement
from zonemta_py.queue.promise import Then
from zonemta_py.queue.submissions import Submissions
from zonemta_py.queue.transitions import Submission
from zonemta_py.queue.windows import Windows


class Acceptance:
    """Accepts messages into ``windows``; ``now`` gives unix ms."""

    def __init__(
        self,
        windows: Windows,
        deferral: Deferral,
        live: LiveMessages,
        submissions: Submissions,
        now: Callable[[], int],
    ) -> None:
        self._windows = windows
        self._deferral = deferral
        self._live = live
        self._submissions = submissions
        self._now = now

    def plan(self, batch: Batch, new: Submission) -> Then:
        """Put ``new`` into ``batch``. Returns what is to be called when that is on disk, or failed."""
        transitions.accept(batch, new, self._now())  # first: what cannot be written reserves nothing
        placement = self._windows.plan([r for r in new.recipients if not r.record.due_ms])
        dues = transitions.due_keys_of(new.recipients)
        for due in dues:
            self._deferral.expect(due)
        for spill in placement.spills:
            batch.put(spill.key, b"")
        # There before the commit is: whoever leases it the moment it is on disk must count with this.
        body = b"".join(new.tail) if new.mark.chunks <= 1 else None
        live = LiveMessage(new.message, new.meta, new.mark, body, len(new.recipients))
        live.leases = 1  # until the commit is over
        self._live.add(live)
        return partial(self._over, new, live, placement, dues)

    def _over(
        self,
        new: Submission,
        live: LiveMessage,
        placement: Placement,
        dues: Iterable[bytes],
        failure: QueueUnavailable | None,
    ) -> None:
        if new.key is not None:
            self._submissions.give_back(new.key[0])
        if failure is not None:
            live.remaining = 0
            self._live.unpin(live)
            self._windows.abandon(placement)
            return
        self._live.unpin(live)
        self._windows.place(placement)
        for due in dues:
            self._deferral.arrived(due)
