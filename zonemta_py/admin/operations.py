"""What an operator may ask of a queue, in one place for the control socket and the offline tools.

Every operation is an async generator of plain rows. Each lets others run between slices.
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol

from zonemta_py.core.clock import monotonic_s
from zonemta_py.core.errors import LocalError, QueueCorrupt
from zonemta_py.queue.format.keys import OUTBOX, end_of, mark_key, parse_outbox
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.upkeep.check import check_queue
from zonemta_py.queue.upkeep.inspect import Summary, body_of, message_row, recipient_rows
from zonemta_py.queue.upkeep.state import state_of_message
from zonemta_py.schedule.unreachable import UnreachableHosts

ROWS_AT_ONCE = 500

Row = dict[str, Any]


class ZoneView(Protocol):
    """What is asked of a running zone."""

    def describe(self, destination: str) -> str:
        """Why its mail is not moving; empty when nothing is known to be wrong."""

    def probe(self, destination: str | None) -> None:
        """Try a resting destination now, or all of them."""


class Operations:
    """Operations on ``queue``; ``zones`` are the running ones, none when the relay is down.

    ``dead`` are the addresses that time out, as a running relay knows them.
    """

    def __init__(
        self, queue: Queue, zones: Mapping[str, ZoneView], dead: UnreachableHosts | None = None
    ) -> None:
        self._queue = queue
        self._zones = zones
        self._dead_addresses = dead

    def run(self, command: str, arguments: Row) -> AsyncIterator[Row]:
        """The rows of ``command``. Raises LocalError for one that is not known."""
        operations: dict[str, Callable[..., AsyncIterator[Row]]] = {
            "summary": self._summary,
            "list": self._list,
            "show": self._show,
            "body": self._body,
            "flush": self._flush,
            "delete": self._delete,
            "hold": self._hold,
            "release": self._release,
            "state": self._state,
            "places": self._places,
            "dead": self._dead,
            "check": self._check,
            "stats": self._stats,
        }
        operation = operations.get(command)
        if operation is None:
            raise LocalError(f"the relay knows no command '{command}'")
        return operation(**arguments)

    async def _summary(self) -> AsyncIterator[Row]:
        summary = Summary()
        for number, row in enumerate(recipient_rows(self._queue.store)):
            summary.add(row)
            if number % ROWS_AT_ONCE == 0:
                await asyncio.sleep(0)
        for row in summary.rows():
            resting = {d: self._resting(row["zone"], d) for d in row["domains"]}
            yield {**row, "resting": {domain: why for domain, why in resting.items() if why}}

    def _resting(self, zone: str, domain: str) -> str:
        view = self._zones.get(zone)
        return view.describe(self._queue.windows.destination_of(zone, domain)) if view else ""

    async def _list(
        self,
        zone: str | None = None,
        domain: str | None = None,
        state: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Row]:
        found = 0
        for number, row in enumerate(recipient_rows(self._queue.store, zone)):
            if number % ROWS_AT_ONCE == 0:
                await asyncio.sleep(0)
            if domain not in (None, row["domain"]) or state not in (None, row["state"]):
                continue
            if row["state"] == "waiting":
                row["reply"] = row["reply"] or self._resting(row["zone"], row["domain"])
            yield row
            found += 1
            if found == limit:
                return

    async def _show(self, message: str) -> AsyncIterator[Row]:
        with self._queue.store.frozen() as view:
            row = message_row(view, message)
        if row is None:
            raise LocalError(f"no message {message} in the queue")
        yield row

    async def _body(self, message: str) -> AsyncIterator[Row]:
        try:
            for chunk in body_of(self._queue.store, message):
                yield {"chunk": base64.b64encode(chunk).decode()}
                await asyncio.sleep(0)
        except QueueCorrupt as exc:
            if self._queue.store.get(mark_key(message)) is None:
                raise LocalError(f"no message {message} in the queue") from exc
            raise LocalError(str(exc)) from exc

    async def _flush(
        self, zone: str | None = None, domain: str | None = None, message: str | None = None
    ) -> AsyncIterator[Row]:
        if message is not None:
            self._must_exist(message)
        woken = await self._queue.deferral.flush(zone, domain, message)
        for name, view in self._zones.items():
            if zone in (None, name):
                view.probe(self._queue.windows.destination_of(name, domain) if domain else None)
        yield {"woken": woken}

    async def _delete(self, message: str, recipient: str | None = None) -> AsyncIterator[Row]:
        deleted, busy = await self._queue.operator.delete(message, recipient)
        if not deleted and not busy:
            what = f"{message} to {recipient}" if recipient else message
            raise LocalError(f"no message {what} in the queue")
        yield {"deleted": deleted, "in_flight": busy}

    async def _hold(self, message: str, recipient: str | None = None) -> AsyncIterator[Row]:
        self._must_exist(message)
        held, busy = await self._queue.operator.hold(message, recipient)
        yield {"held": held, "in_flight": busy}

    async def _release(self, message: str, recipient: str | None = None) -> AsyncIterator[Row]:
        self._must_exist(message)
        yield {"released": await self._queue.operator.release(message, recipient)}

    def _must_exist(self, message: str) -> None:
        if self._queue.store.get(mark_key(message)) is None:
            raise LocalError(f"no message {message} in the queue")

    async def _state(self, message: str) -> AsyncIterator[Row]:
        with self._queue.store.frozen() as view:
            yield state_of_message(view, message)

    async def _places(self) -> AsyncIterator[Row]:
        """Every recipient and what is in the outbox, from one moment; for ``zonemta audit``.

        ``seq`` is the last group of facts that this moment knows.
        """
        rows: list[Row] = []
        with self._queue.store.frozen() as view:
            last = self._queue.commits.written_seq
            for key, value in view.scan(OUTBOX, end_of(OUTBOX)):
                last = max(last, parse_outbox(key))
                rows.append({"facts": value.decode()})
            places = [[r["message"], r["index"], r["zone"]] for r in recipient_rows(view)]
        yield {"seq": last, "node": self._queue.node}
        for row in rows:
            yield row
        for at in range(0, len(places), ROWS_AT_ONCE):
            yield {"places": places[at : at + ROWS_AT_ONCE]}

    async def _dead(self, clear: str | None = None) -> AsyncIterator[Row]:
        """Addresses that timed out; ``clear`` forgets one, or ``all``."""
        if self._dead_addresses is None:
            return
        if clear is not None:
            yield {"cleared": self._dead_addresses.clear(None if clear == "all" else clear)}
            return
        for row in self._dead_addresses.rows(monotonic_s()):
            yield row

    async def _check(self) -> AsyncIterator[Row]:
        problems = 0
        for problem in check_queue(self._queue.store):
            if problem:
                problems += 1
                yield {"problem": problem}
            else:
                await asyncio.sleep(0)
        yield {"problems": problems}

    async def _stats(self) -> AsyncIterator[Row]:
        commits = self._queue.commits
        yield {
            "fsyncs": commits.groups,
            "transitions": commits.batches,
            "compactions": self._queue.cleanup.compactions,
            "writable": commits.failure is None,
            "scanning": self._queue.scanning,
        }
