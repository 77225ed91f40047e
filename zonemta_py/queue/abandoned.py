"""A lease whose sender process ended in the middle of it: for this lease, what a crash is for all."""

from zonemta_py.errors import QueueUnavailable
from zonemta_py.queue import keys
from zonemta_py.queue.commit import Batch
from zonemta_py.queue.cut_off import CutOff
from zonemta_py.queue.lanes import Recipient
from zonemta_py.queue.lease import Lease
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.records import FORMAT, Inflight, read_waiting


def cut_off(queue: Queue, lease: Lease) -> Batch:
    """End ``lease``: its recipients are uncertain, and ready again, later, or held, as after a crash."""
    message, now_ms = lease.live.id, queue.now()
    assert lease.number is not None
    batch = Batch()
    cut = CutOff(queue.store, queue.poison_after, now_ms)
    indexes = tuple(recipient.record.number for recipient in lease.recipients)
    attempt = lease.recipients[0].record.attempts + 1
    cut.transaction(batch, message, Inflight(FORMAT, queue.boot, lease.zone, indexes, attempt, now_ms))
    batch.delete(keys.inflight_key(message, lease.number))
    left = {key: value for key, value in batch.ops if value is not None}
    dues = [key for key in left if key.startswith(keys.DUE)]
    for due in dues:
        queue.deferral.expect(due)

    def written(failure: QueueUnavailable | None) -> None:
        if failure is not None:
            return  # the lease stays: the next life of the queue finds everything as it was
        window = queue.windows.zone(lease.zone)
        again = []
        for recipient in lease.recipients:
            value = left.get(recipient.key)
            if value is None:
                window.forget([recipient.key])
            else:
                record = read_waiting(value)
                again.append(Recipient(recipient.key, lease.zone, message, recipient.address, record))
        if again:
            window.give_back(lease.destination, again)
            queue.windows.on_ready(lease.zone, lease.destination, False)
        for due in dues:
            queue.deferral.arrived(due)
        queue.unpin(lease.live)

    batch.then(written)
    return queue.commits.submit(batch)
