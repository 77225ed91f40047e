"""Mail that is held because an operator has suspended what it belongs to, and its release when that ends.

The recipients are listed under ``meta/held/`` with the name of the suspension, in the batch that holds them. When the time of a
suspension is over these are released, and no others. When an operator resumes a tenant or a user, all of their held mail is, found
by its messages.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import suppress
from itertools import groupby, islice

from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.queue.commit import WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.messages import Lease
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.ready.streams import QueuedRecipient
from zonemta_py.queue.suspensions import (
    MAIL,
    SENDING,
    USER,
    end_event,
    named,
    suspended_submitter,
)
from zonemta_py.queue.upkeep.inspect import held_messages
from zonemta_py.queue.upkeep.operator import Operator, suspensions_with_mail

log = logging.getLogger(__name__)


MESSAGES_AT_ONCE = 100
LISTED_AT_ONCE = 1000  # recipients
NOT_HELD_S = 0.1  # before mail that could not be held has its next turn
LOOKED_EVERY_S = 3600.0  # whether a suspension is over, at least


class HeldMail:
    """The held mail of ``queue``. All raise QueueUnavailable, QueueCorrupt."""

    def __init__(self, queue: Queue, operator: Operator) -> None:
        self._queue = queue
        self._operator = operator

    def must_hold(self, lease: Lease, provider: str = "") -> bool:
        """True if some recipient of ``lease`` must not be sent. ``provider``: that of the destination, if it is known."""
        queue, meta = self._queue, lease.active.meta
        if suspended_submitter(queue.suspended, meta.origin.tenant, meta.origin.user):
            return True
        return bool(self._by_part(lease, provider))

    async def hold(self, lease: Lease, provider: str = "") -> bool:
        """Hold what must not be sent, and end the lease then; False: all of it may be sent."""
        queue, active = self._queue, lease.active
        origin = active.meta.origin
        who = suspended_submitter(queue.suspended, origin.tenant, origin.user)
        by_part = {} if who else self._by_part(lease, provider)
        if not who and not by_part:
            return False
        queue.release(lease)
        held = 0
        if who:
            held += await self._operator.hold_for(who, active.id, None, f"{named(who)} is suspended")
        for name, recipients in by_part.items():
            waiting = [each.key for each in recipients]
            held += await self._operator.hold_for(
                name, active.id, waiting, f"{named(name)} is suspended"
            )
        if not held:
            # Damaged on disk since it was read, or the suspension has ended: it is leased again.
            await asyncio.sleep(NOT_HELD_S)
        return True

    def _by_part(self, lease: Lease, provider: str) -> dict[str, list[QueuedRecipient]]:
        found: dict[str, list[QueuedRecipient]] = {}
        for recipient in lease.recipients:
            name = self._queue.suspended.of_recipient(
                lease.active.meta, lease.zone, provider, recipient.record.domain
            )
            if name:
                found.setdefault(name, []).append(recipient)
        return found

    def is_any(self, name: str) -> bool:
        """True if mail is held that an operator's ``release`` of ``name`` would release."""
        return any(self._messages(name)) or any(self._listed(name))

    async def release(self, name: str) -> AsyncIterator[int]:
        """Release what is held for a suspension that an operator has ended; yields the number of recipients so far.

        Of a tenant or a user all held mail. It stops when ``name`` is suspended again.
        """
        queue, released = self._queue, 0
        messages = self._messages(name)
        while name not in queue.suspended and (step := list(islice(messages, MESSAGES_AT_ONCE))):
            released += sum(await asyncio.gather(*map(self._release_message, step)))
            yield released
        async for count in self._release_all_listed(name):
            yield released + count

    async def _release_message(self, message: str) -> int:
        try:
            return await self._operator.release(message)
        except QueueCorrupt as exc:  # it is no obstacle to the others
            log.critical("message %s is not released: %s", message, exc)
            return 0

    async def _release_all_listed(self, name: str) -> AsyncIterator[int]:
        """Those that are listed now, until ``name`` is suspended again; what is damaged stays held."""
        released, suspended, after = 0, self._queue.suspended, b""
        while name not in suspended and (
            listed := list(islice(self._listed(name, after), LISTED_AT_ONCE))
        ):
            released += await self._release_listed(name, listed)
            after = listed[-1]
            yield released

    def _messages(self, name: str) -> Iterator[str]:
        if name.startswith(MAIL):
            return iter(())
        is_user = name.startswith(USER)
        tenant, user = ("", name.removeprefix(USER)) if is_user else (name, "")
        return held_messages(self._queue.store, tenant, user)

    def _listed(self, name: str, after: bytes = b"") -> Iterator[bytes]:
        prefix = keys.held_prefix(name)
        start = prefix + after + b"\x00" if after else prefix
        return (key[len(prefix) :] for key in self._queue.store.keys(start, keys.end_of(prefix)))

    async def _release_listed(self, name: str, listed: list[bytes]) -> int:
        """Release recipients by their DEFERRED keys; those that were moved to another zone are found by their address."""
        released = 0
        for (_, message), group in groupby(listed, lambda key: keys.parse_recipient(key)[:2]):
            try:
                released += await self._release_of_message(name, message, list(group))
            except QueueCorrupt as exc:  # it is no obstacle to the others
                log.critical("message %s is not released: %s", message, exc)
        return released

    async def _release_of_message(self, name: str, message: str, listed: list[bytes]) -> int:
        queue, batch = self._queue, WriteBatch()
        here = [key for key in listed if queue.store.get(key) is not None]
        released = await self._operator.release(message, here, name)
        for key in set(listed).difference(here):
            row = keys.held_key(name, key)
            if name in queue.suspended or queue.store.get(row) is None:
                continue
            released += await self._operator.release(message, keys.parse_recipient(key)[2])
            batch.delete(row)
        if batch.ops:
            await queue.commits.submit(batch)
        return released

    async def start(self) -> None:
        """Release the mail of suspensions that end, until the queue is closed."""
        self._queue.background.start(self.run(), "held mail")

    async def run(self) -> None:
        """Release the mail of each suspension when it ends; first of those whose release was interrupted."""
        suspended, ended = self._queue.suspended, list[str]()
        try:
            ended = [name for name in suspensions_with_mail(self._queue.store) if name not in suspended]
        except QueueCorrupt as exc:
            log.critical("what is held for suspensions is not released, repair the queue: %s", exc)
        while True:
            version = suspended.version
            await self._release_ended({*ended, *suspended.ended()})
            ended.clear()
            end_ms = suspended.next_end_ms()
            wait_s = min(max(0, end_ms - self._queue.now()) / 1000, LOOKED_EVERY_S) if end_ms else None
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await suspended.wait_for_change(version)

    async def _release_ended(self, names: Collection[str]) -> None:
        suspended = self._queue.suspended
        if names:
            await self._queue.commits.submit(WriteBatch())  # all that was held for them is on disk now
        for name in names:
            released = 0
            try:
                async for count in self._release_all_listed(name):
                    released = count
            except QueueCorrupt as exc:
                log.critical("mail of %s stays held, repair the queue: %s", named(name), exc)
            if name in suspended:  # again, by an operator
                continue
            # None where an operator has resumed it: the release was interrupted, or began meanwhile.
            event = end_event(name, self._queue.now()) if name in suspended.ended() else None
            await suspended.resume(name, event)
            text = f": {released} recipients released" if not name.startswith(SENDING) else ""
            log.warning("the suspension of %s has ended%s", named(name), text)
