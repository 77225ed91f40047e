"""The operations on a queue, for the control socket and the commands (see ``operation_table``).

An operation is an async generator of plain rows. It raises LocalError when it fails, and lets other tasks run
between slices of its work.
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

from zonemta_py.admin.reasons import Reasons, RunningRelay
from zonemta_py.admin.requests import (
    AuditRequest,
    BodyRequest,
    BounceRequest,
    CheckRequest,
    DeleteRequest,
    FlushRequest,
    HoldRequest,
    ListRequest,
    ReleaseRequest,
    ReloadRequest,
    Row,
    ShowRequest,
    StateRequest,
    StatsRequest,
    SummaryRequest,
    UnreachableRequest,
    WhyRequest,
)
from zonemta_py.admin.tenant_operations import TenantOperations
from zonemta_py.core.clock import monotonic_s
from zonemta_py.core.codec import to_plain
from zonemta_py.core.errors import ConfigError, LocalError, NotFound, QueueCorrupt
from zonemta_py.queue.census import TOTAL, count_all, differences
from zonemta_py.queue.depths import Depths
from zonemta_py.queue.format.keys import (
    META_EXPORTED,
    OUTBOX,
    end_of,
    mark_key,
    parse_outbox,
    waiting_key,
)
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.upkeep.check import check_bodies, check_queue
from zonemta_py.queue.upkeep.inspect import MessageLabels, message_row, recipient_rows
from zonemta_py.queue.upkeep.state import state_of_message

SLICE_ROWS = 500
TOP_DESTINATIONS = 10
ALL = "all"
DOWN = RunningRelay()


class Operations(TenantOperations):
    """The operations on ``queue``, and on the ``relay`` that runs on it."""

    def __init__(self, queue: Queue, relay: RunningRelay = DOWN) -> None:
        super().__init__(queue, relay.verify)
        self._relay = relay

    async def summary(self, request: SummaryRequest) -> AsyncIterator[Row]:
        """A row for each zone."""
        queue, census = self._queue, self._queue.census
        if not census.is_complete and not queue.counting:  # the queue is not running
            for counted in count_all(queue.store, queue.windows.destination_of):
                await asyncio.sleep(0)
                census = counted or census
        depths, next_due_ms = Depths(census, queue.windows), queue.deferral.next_due_ms()
        reasons = Reasons(queue, self._relay)
        for zone in census.zones():
            suspended = queue.windows.zone(zone).suspended()[:TOP_DESTINATIONS]
            suspensions = {
                name: to_plain(why)
                for name in suspended
                if (why := reasons.destination(zone, name)) is not None
            }
            yield {
                "zone": zone,
                **depths.zone(zone),
                "counting": not census.is_complete,
                "oldest_ms": depths.oldest_ms(zone),
                "next_due_ms": next_due_ms.get(zone),
                "destinations": {
                    name: row[TOTAL] for name, row in census.largest(zone, TOP_DESTINATIONS)
                },
                "suspensions": suspensions,
            }

    async def list(self, request: ListRequest) -> AsyncIterator[Row]:
        """A row for each recipient."""
        found, labels, reasons = 0, MessageLabels(self._queue.store), Reasons(self._queue, self._relay)
        for number, row in enumerate(self._rows_after(request)):
            record = row.pop("record")
            if number % SLICE_ROWS == 0:
                await asyncio.sleep(0)
            row["state"] = self._state(row)
            if request.domain not in (None, row["domain"]) or request.state not in (None, row["state"]):
                continue
            row.update(labels.of(row["message"]))
            if not request.has_labels(row):
                continue
            row["why"] = to_plain(reasons.of(row["zone"], row["message"], row["recipient"], record))
            yield row
            found += 1
            if found == request.limit:
                return

    def _rows_after(self, request: ListRequest) -> Iterator[Row]:
        """The recipients behind ``request.after``. Raises LocalError."""
        try:
            return recipient_rows(self._queue.store, request.zone, request.after.encode())
        except ValueError as exc:
            raise LocalError(f"after: {exc}") from exc

    def tenant_of(self, message: str) -> str | None:
        """Whose mail a message is; None when there is no such message."""
        if self._queue.store.get(mark_key(message)) is None:
            return None
        tenant: str = MessageLabels(self._queue.store).of(message)["tenant"]
        return tenant

    def _state(self, row: Row) -> str:
        """One of STATES, for a recipient that waits by what the running relay knows."""
        state: str = row["state"]
        if state == "waiting":
            zone, windows = row["zone"], self._queue.windows
            window = windows.zone(zone)
            if window.is_leased(waiting_key(zone, row["message"], row["recipient"])):
                return "in_flight"
            if window.is_suspended(windows.destination_of(zone, row["domain"])):
                return "suspended"
        return state

    async def show(self, request: ShowRequest) -> AsyncIterator[Row]:
        """One row. Raises LocalError when there is no such message."""
        with self._queue.store.frozen() as view:
            row = message_row(view, request.message)
        if row is None:
            raise _no_message(request.message)
        reasons = Reasons(self._queue, self._relay)
        for recipient in row["recipients"]:
            record = recipient.pop("record")
            recipient["state"] = self._state({**recipient, "message": request.message})
            why = reasons.of(recipient["zone"], request.message, recipient["recipient"], record)
            recipient["why"] = to_plain(why)
        yield row

    async def why(self, request: WhyRequest) -> AsyncIterator[Row]:
        """A row for each recipient, with ``state`` and ``why``. Raises LocalError when there is none."""
        found = False
        async for row in self.show(ShowRequest(request.message)):
            for recipient in row["recipients"]:
                if request.recipient in (None, recipient["recipient"]):
                    found = True
                    yield {name: recipient[name] for name in ("recipient", "zone", "state", "why")}
        if not found:
            raise _no_message(f"{request.message} to {request.recipient}")

    async def body(self, request: BodyRequest) -> AsyncIterator[Row]:
        """Rows with ``chunk``. Raises LocalError when there is no such message or it is damaged."""
        self._require(request.message)
        try:
            active = self._queue.acquire_message(request.message)
            try:
                yield _chunk_row(active.meta.header + b"\r\n")
                async for chunk in self._queue.bodies.stream(active):
                    yield _chunk_row(chunk)
                    await asyncio.sleep(0)
            finally:
                self._queue.release_message(active)
        except QueueCorrupt as exc:
            raise LocalError(str(exc)) from exc

    async def state(self, request: StateRequest) -> AsyncIterator[Row]:
        """One row."""
        with self._queue.store.frozen() as view:
            yield state_of_message(view, request.message)

    async def flush(self, request: FlushRequest) -> AsyncIterator[Row]:
        """One row with ``woken``, a number of recipients. Raises LocalError when there is no such message."""
        if request.message is not None:
            self._require(request.message)
        destination_of = self._queue.windows.destination_of
        destinations = {
            name: destination_of(name, request.domain) if request.domain else None
            for name in self._relay.zones
            if request.zone in (None, name)
        }
        if self._relay.unreachable is not None:  # before mail is ready that would be refused for it
            for destination in set(destinations.values()):
                self._relay.unreachable.clear(destination=destination)
        woken = await self._queue.deferral.flush(request.zone, request.domain, request.message)
        for name, destination in destinations.items():
            self._relay.zones[name].probe(destination)
        yield {"woken": woken}

    async def delete(self, request: DeleteRequest) -> AsyncIterator[Row]:
        """One row with ``deleted`` and ``in_flight``. Raises LocalError when both are 0."""
        deleted, busy = await self._queue.operator.delete(request.message, request.recipient)
        if not deleted and not busy:
            to = f" to {request.recipient}" if request.recipient else ""
            raise _no_message(request.message + to)
        yield {"deleted": deleted, "in_flight": busy}

    async def bounce(self, request: BounceRequest) -> AsyncIterator[Row]:
        """One row with ``bounced`` and ``in_flight``. Raises LocalError when there is no such message."""
        self._require(request.message)
        bounced, busy = await self._queue.operator.bounce(
            request.message, request.recipient, request.reason
        )
        yield {"bounced": bounced, "in_flight": busy}

    async def hold(self, request: HoldRequest) -> AsyncIterator[Row]:
        """One row with ``held`` and ``in_flight``. Raises LocalError when there is no such message."""
        self._require(request.message)
        held, busy = await self._queue.operator.hold(request.message, request.recipient)
        yield {"held": held, "in_flight": busy}

    async def release(self, request: ReleaseRequest) -> AsyncIterator[Row]:
        """One row with ``released``. Raises LocalError when there is no such message."""
        self._require(request.message)
        released = await self._queue.operator.release(request.message, request.recipient)
        yield {"released": released}

    def _require(self, message: str) -> None:
        if self._queue.store.get(mark_key(message)) is None:
            raise _no_message(message)

    async def unreachable(self, request: UnreachableRequest) -> AsyncIterator[Row]:
        """A row for each address; with ``clear`` one row with ``cleared``. No row when no relay runs."""
        if self._relay.unreachable is None:
            return
        if request.clear is not None:
            ip = None if request.clear == ALL else request.clear
            yield {"cleared": self._relay.unreachable.clear(ip)}
            return
        for row in self._relay.unreachable.rows(monotonic_s()):
            yield row

    async def reload(self, request: ReloadRequest) -> AsyncIterator[Row]:
        """One row with ``changed``, keys of the configuration, or ``refused``, why it is not used."""
        if self._relay.reload is None:
            raise LocalError("no relay is running")
        try:
            yield {"changed": list(self._relay.reload())}
        except ConfigError as exc:
            yield {"refused": str(exc)}

    async def check(self, request: CheckRequest) -> AsyncIterator[Row]:
        """Rows with ``problem``, then one with ``problems``, their number."""
        problems = 0
        async for problem in self._problems():
            problems += 1
            yield {"problem": problem}
        yield {"problems": problems}

    async def _problems(self) -> AsyncIterator[str]:
        store = self._queue.store
        async for problem in self._wrong_counts():
            yield problem
        for problem in check_queue(store, bodies=not store.is_remote()):
            if problem:
                yield problem
            else:
                await asyncio.sleep(0)
        if store.is_remote():
            async for problem in check_bodies(store):
                if problem:
                    yield problem

    async def _wrong_counts(self) -> AsyncIterator[str]:
        """Where the census of a running relay differs from the keys."""
        queue = self._queue
        if not queue.census.is_complete:
            return
        with ExitStack() as stack:
            frozen = queue.store.frozen()
            view, counts = await queue.commits.between_groups(
                lambda: (stack.enter_context(frozen), queue.census.copy())
            )
            for counted in count_all(view, queue.windows.destination_of):
                if queue.store.has_snapshots():
                    await asyncio.sleep(0)
                if counted is not None:
                    for problem in differences(counts, counted.copy()):
                        yield problem

    async def audit(self, request: AuditRequest) -> AsyncIterator[Row]:
        """``seq``, ``exported`` and ``node``, then rows with ``events`` (JSON lines) and with ``recipients``.

        ``seq`` is the number of the last group of events before the snapshot, ``exported`` of the last that
        the event log has. A recipient is [message, index, zone].
        """
        events: list[Row] = []
        with self._queue.store.frozen() as view:
            last = self._queue.commits.written_seq
            exported = int(view.get(META_EXPORTED) or b"0", 16)
            for key, value in view.scan(OUTBOX, end_of(OUTBOX)):
                last = max(last, parse_outbox(key))
                events.append({"events": value.decode()})
            recipients = [[r["message"], r["index"], r["zone"]] for r in recipient_rows(view)]
        yield {"seq": last, "exported": exported, "node": self._queue.node}
        for row in events:
            yield row
        for at in range(0, len(recipients), SLICE_ROWS):
            yield {"recipients": recipients[at : at + SLICE_ROWS]}

    async def stats(self, request: StatsRequest) -> AsyncIterator[Row]:
        """One row."""
        commits = self._queue.commits
        yield {
            "fsyncs": commits.groups,
            "transitions": commits.batches,
            "compactions": self._queue.cleanup.compactions,
            "writable": commits.failure is None,
            "scanning": self._queue.scanning,
        }


def _chunk_row(chunk: bytes) -> Row:
    return {"chunk": base64.b64encode(chunk).decode()}


def _no_message(text: str) -> NotFound:
    return NotFound(f"no message {text} in the queue")
