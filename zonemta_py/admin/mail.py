"""The operations that change mail: hold, release, delete, return it. A message, one recipient, or all that match.

What matches is found a page at a time, in one turn of the loop, and the messages of a page are changed together, so that
they share writes to the disk. Mail that comes in behind the page that is read is not changed.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from itertools import islice
from typing import NamedTuple

from zonemta_py.admin.messages import require_message, wanted_messages
from zonemta_py.admin.operation import Answer, Operations, operation
from zonemta_py.admin.reasons import Depths, SuspendedMail
from zonemta_py.admin.requests import (
    BounceRequest,
    DeleteRequest,
    FlushRequest,
    HoldRequest,
    MailRequest,
    ReleaseRequest,
)
from zonemta_py.core.codec import UNSET, Unset
from zonemta_py.core.errors import LocalError, QueueCorrupt
from zonemta_py.queue.format.records import RecipientState
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.upkeep.inspect import MessageLabels, message_row, recipient_rows
from zonemta_py.queue.upkeep.move import flush
from zonemta_py.queue.upkeep.operator import Selected

log = logging.getLogger(__name__)


PAGE = 500  # recipients that are looked at in one turn of the loop
TOGETHER = 20  # messages whose changes are computed in one turn, and written in one group

NEEDS = "name a message, or what to select: zone, domain, state, tenant, user, sender, sender_domain, campaign or tag"

Change = Callable[[str, Selected], Awaitable[tuple[int, int]]]
Page = dict[str, list[bytes]]  # keys of recipients by message


# ---- rows: their counts add up, one row at least


class Matched(Answer, frozen=True):
    """The number of recipients that match, of ``dry_run``."""

    matched: int


class DeletedRow(Answer, frozen=True):
    """Recipients that were deleted, those that are not because they are being sent, and messages that are damaged."""

    deleted: int
    in_flight: int
    damaged: int | Unset = UNSET


class BouncedRow(Answer, frozen=True):
    """Recipients that were returned, those that are not because they are being sent, and messages that are damaged."""

    bounced: int
    in_flight: int
    damaged: int | Unset = UNSET


class HeldRow(Answer, frozen=True):
    """Recipients that were held, those that are not because they are being sent, and messages that are damaged."""

    held: int
    in_flight: int
    damaged: int | Unset = UNSET


class ReleasedRow(Answer, frozen=True):
    """Recipients that were released, and messages that are damaged."""

    released: int
    damaged: int | Unset = UNSET


# ---- handlers


class FlushRow(Answer, frozen=True):
    """Recipients that are due now, destinations that did not answer and are tried again, and recipients there, now due, that wait
    for the end of what an operator has suspended."""

    woken: int
    tried: int
    suspended: int


@operation("flush")
async def flush_mail(on: Operations, request: FlushRequest) -> AsyncIterator[FlushRow]:
    """Yield one row. Raises LocalError when there is no such message."""
    if request.message is not None:
        require_message(on.queue, request.message)
    places = _places(on, request)
    if on.relay.unreachable is not None:  # before mail is ready that would be refused for it
        for destination in {destination for _, destination in places}:
            on.relay.unreachable.clear(destination=destination)
    tried = sum(
        destination in (None, name)
        for zone, destination in places
        for name in on.queue.windows.zone(zone).unreachable()
    )
    woken = await flush(on.queue, request.zone, request.domain, request.message)
    for zone, destination in places:
        on.relay.zones[zone].probe(destination)
    yield FlushRow(woken, tried, _suspended_at(on, places))


def _suspended_at(on: Operations, places: set[tuple[str, str | None]]) -> int:
    queue = on.queue
    if not queue.suspended:
        return 0
    suspended, count = SuspendedMail(queue.suspended, on.relay.zones), 0
    depths = Depths(queue.census, queue.windows, suspended)
    for zone, destination in places:
        if destination is None:
            count += depths.zone(zone)["suspended"]
        elif suspended.has(zone, destination):
            count += queue.census.destination(zone, destination)[RecipientState.WAITING]
    return count


def _places(on: Operations, request: FlushRequest) -> set[tuple[str, str | None]]:
    """The zones and destinations that are tried; a destination None: all of the zone."""
    destination_of, zones = on.queue.windows.destination_of, on.relay.zones
    if request.message is not None:
        row = message_row(on.queue.store, request.message)
        recipients = row["recipients"] if row is not None else []
        return {
            (each["zone"], destination_of(each["zone"], each["domain"]))
            for each in recipients
            if each["zone"] in zones
            and request.zone in (None, each["zone"])
            and request.domain in (None, each["domain"])
        }
    return {
        (name, destination_of(name, request.domain) if request.domain else None)
        for name in zones
        if request.zone in (None, name)
    }


@operation("delete")
async def delete(on: Operations, request: DeleteRequest) -> AsyncIterator[DeletedRow | Matched]:
    """Yield a row for each page. Raises LocalError."""
    async for changed in _changed(on.queue, request, on.operator.delete):
        yield Matched(changed.matched) if request.dry_run else DeletedRow(*changed.counts)


@operation("bounce")
async def bounce(on: Operations, request: BounceRequest) -> AsyncIterator[BouncedRow | Matched]:
    """Yield a row for each page. Raises LocalError."""
    change = partial(on.operator.bounce, reason=request.reason)
    async for changed in _changed(on.queue, request, change):
        yield Matched(changed.matched) if request.dry_run else BouncedRow(*changed.counts)


@operation("hold")
async def hold(on: Operations, request: HoldRequest) -> AsyncIterator[HeldRow | Matched]:
    """Yield a row for each page. Raises LocalError."""
    async for changed in _changed(on.queue, request, partial(on.operator.hold, by=request.by)):
        yield Matched(changed.matched) if request.dry_run else HeldRow(*changed.counts)


@operation("release")
async def release(on: Operations, request: ReleaseRequest) -> AsyncIterator[ReleasedRow | Matched]:
    """Yield a row for each page. Raises LocalError."""

    async def change(message: str, selected: Selected) -> tuple[int, int]:
        return await on.operator.release(message, selected, by=request.by), 0

    async for changed in _changed(on.queue, request, change):
        yield Matched(changed.matched) if request.dry_run else ReleasedRow(changed.done, changed.damaged)


# ---- one message, one recipient, or all that match


class Changed(NamedTuple):
    """The changes of a page: recipients, and messages that are ``damaged``. ``matched``: only counted."""

    done: int = 0
    in_flight: int = 0
    damaged: int | Unset = UNSET
    matched: int = 0

    @property
    def counts(self) -> tuple[int, int, int | Unset]:
        """The fields of a row."""
        return self.done, self.in_flight, self.damaged


async def _changed(queue: Queue, request: MailRequest, change: Change) -> AsyncIterator[Changed]:
    message = request.message
    if message is not None:
        if request.has_filter or request.dry_run:
            raise LocalError("message: a filter or dry_run does not go with it")
        require_message(queue, message, request.recipient)
        yield Changed(*await change(message, request.recipient))
        return
    if request.recipient is not None or not request.has_filter:
        raise LocalError(NEEDS if request.recipient is None else "recipient: name its message too")
    async for page in _pages(queue, request):
        if request.dry_run:
            yield Changed(matched=sum(map(len, page.values())))
        else:
            yield await _change_page(queue, request, page, change)


async def _change_page(queue: Queue, request: MailRequest, page: Page, change: Change) -> Changed:
    found, messages = list(page.items()), list(page)
    results: list[tuple[int, int] | BaseException] = []
    for at in range(0, len(found), TOGETHER):
        changes = (
            change(message, _selected(queue, message, recipients, request))
            for message, recipients in found[at : at + TOGETHER]
        )
        results += await asyncio.gather(*changes, return_exceptions=True)
    done = in_flight = damaged = 0
    for message, result in zip(messages, results, strict=True):
        if isinstance(result, QueueCorrupt):  # the others are changed
            log.critical("message %s is not changed: %s", message, result)
            damaged += 1
        elif isinstance(result, BaseException):
            raise result
        else:
            done += result[0]
            in_flight += result[1]
    return Changed(done, in_flight, damaged or UNSET)


def _selected(queue: Queue, message: str, found: list[bytes], request: MailRequest) -> Selected:
    """The part of a message to change: ``found``, or all of it (None) where whole messages are selected.

    Of a whole message there is one report, and what a scanner had held is free again when it is released. Keys
    save a search for what is known.
    """
    if not request.selects_messages:
        return found
    try:
        active = queue.acquire_message(message)
    except QueueCorrupt:
        return None  # the change says so
    is_all = len(found) == active.remaining and not active.meta.options.quarantined
    queue.release_message(active)
    return found if is_all else None


async def _pages(queue: Queue, request: MailRequest) -> AsyncIterator[Page]:
    """Yield the recipients that match, a page at least. A message that is changed as a whole is in one page."""
    store = queue.store
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
