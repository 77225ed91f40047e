"""The operations that change mail: hold, release, delete, return it. A message, one recipient, or all that match.

What matches is found a page at a time, in one turn of the loop, and the messages of a page are changed together, so that
they share writes to the disk. Mail that comes in behind the page that is read is not changed.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from itertools import islice

from zonemta_py.admin.requests import (
    BounceRequest,
    DeleteRequest,
    HoldRequest,
    MailRequest,
    ReleaseRequest,
    Row,
    wanted_messages,
)
from zonemta_py.admin.views import no_message
from zonemta_py.core.errors import LocalError, QueueCorrupt
from zonemta_py.queue.format import keys
from zonemta_py.queue.messages import read_message
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.upkeep.inspect import MessageLabels, recipient_rows
from zonemta_py.queue.upkeep.operator import Operator, Selected

log = logging.getLogger(__name__)


PAGE = 500  # recipients that are looked at in one turn of the loop
TOGETHER = 20  # messages whose changes are computed in one turn, and written in one group

NEEDS = "name a message, or what to select: zone, domain, state, tenant, user, sender, sender_domain, campaign or tag"

Change = Callable[[str, Selected], Awaitable[tuple[int, int]]]
Page = dict[str, list[bytes]]  # keys of recipients by message


class MailOperations:
    """A part of ``Operations``. Each answers with rows whose counts add up, one at least; raises LocalError."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._operator = Operator(queue)

    def delete(self, request: DeleteRequest) -> AsyncIterator[Row]:
        """Rows with ``deleted`` and ``in_flight``, recipients."""
        return self._change(request, "deleted", self._operator.delete)

    def bounce(self, request: BounceRequest) -> AsyncIterator[Row]:
        """Rows with ``bounced`` and ``in_flight``, recipients."""
        return self._change(request, "bounced", partial(self._operator.bounce, reason=request.reason))

    def hold(self, request: HoldRequest) -> AsyncIterator[Row]:
        """Rows with ``held`` and ``in_flight``, recipients."""
        return self._change(request, "held", partial(self._operator.hold, by=request.by))

    async def release(self, request: ReleaseRequest) -> AsyncIterator[Row]:
        """Rows with ``released``, recipients."""
        released = partial(self._released, request.by)
        async for row in self._change(request, "released", released):
            row.pop("in_flight", None)
            yield row

    async def _released(self, by: str, message: str, selected: Selected) -> tuple[int, int]:
        return await self._operator.release(message, selected, by=by), 0

    async def _change(self, request: MailRequest, done: str, change: Change) -> AsyncIterator[Row]:
        message = request.message
        if message is not None:
            if request.has_filter or request.dry_run:
                raise LocalError("message: a filter or dry_run does not go with it")
            self._require(message, request.recipient)
            changed, busy = await change(message, request.recipient)
            yield {done: changed, "in_flight": busy}
            return
        if request.recipient is not None or not request.has_filter:
            raise LocalError(NEEDS if request.recipient is None else "recipient: name its message too")
        async for page in self._pages(request):
            if request.dry_run:
                yield {"matched": sum(map(len, page.values()))}
            else:
                yield await self._change_page(request, page, done, change)

    async def _change_page(self, request: MailRequest, page: Page, done: str, change: Change) -> Row:
        found, messages = list(page.items()), list(page)
        results: list[tuple[int, int] | BaseException] = []
        for at in range(0, len(found), TOGETHER):
            changes = (
                change(message, self._selected(message, recipients, request))
                for message, recipients in found[at : at + TOGETHER]
            )
            results += await asyncio.gather(*changes, return_exceptions=True)
        row = {done: 0, "in_flight": 0}
        for message, result in zip(messages, results, strict=True):
            if isinstance(result, QueueCorrupt):  # it is no obstacle to the others
                log.critical("message %s is not changed: %s", message, result)
                row["damaged"] = row.get("damaged", 0) + 1
            elif isinstance(result, BaseException):
                raise result
            else:
                row[done] += result[0]
                row["in_flight"] += result[1]
        return row

    def _selected(self, message: str, found: list[bytes], request: MailRequest) -> Selected:
        """What to change of a message: ``found``, or all of it where whole messages are selected.

        Of a whole message there is one report, and what a scanner had held is free again when it is released. Keys
        save a search for what is known.
        """
        if not request.selects_messages:
            return found
        try:
            active = self._queue.acquire_message(message)
        except QueueCorrupt:
            return None  # the change says so
        is_all = len(found) == active.remaining and not active.meta.options.quarantined
        self._queue.release_message(active)
        return found if is_all else None

    async def _pages(self, request: MailRequest) -> AsyncIterator[Page]:
        """What matches, a page at least. A message that is changed as a whole is in one page."""
        store = self._queue.store
        is_held = request.state == "held" or isinstance(request, ReleaseRequest)
        after, last, empty = b"", "", True
        while True:
            page: Page = {}
            wants = wanted_messages(request, MessageLabels(store))
            rows = recipient_rows(store, request.zone, after, held=is_held, wants=wants)
            found, message = False, last
            for row in islice(rows, PAGE):
                found, after = True, row["cursor"].encode()
                if "message" not in row:
                    break
                message = row["message"]
                if message == last and request.selects_messages and not request.dry_run:
                    continue
                if request.domain in (None, row["domain"]) and request.state in (None, row["state"]):
                    page.setdefault(message, []).append(after)
            if page or (empty and not found):
                empty = False
                yield page
            if not found:
                return
            last = message
            await asyncio.sleep(0)

    def _require(self, message: str, recipient: str | None = None) -> None:
        """Raises LocalError when there is no such message, or recipient of it."""
        store = self._queue.store
        if store.get(keys.mark_key(message)) is None:
            raise no_message(message)
        if recipient is None:
            return
        try:
            zones = read_message(store, message)[0].zones
        except QueueCorrupt as exc:
            raise LocalError(str(exc)) from exc
        places = (keys.waiting_key, keys.deferred_key)
        if all(store.get(place(zone, message, recipient)) is None for zone in zones for place in places):
            raise no_message(f"{message} to {recipient}")
