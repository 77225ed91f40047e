"""A refill: spilled mail of a destination is read into the window, oldest first, where a stream has little there.

Plain ``def`` throughout; a refill reads a limited number of keys, and the next one goes on.
"""

import logging
from collections.abc import Callable, Container, Iterator

from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.core.model import USUAL_POOL
from zonemta_py.queue.batch import WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import read_recipient_record
from zonemta_py.queue.ready import ReadyWindow
from zonemta_py.queue.submitter_queues import QueuedRecipient, pool_key_of
from zonemta_py.smtp.address import domain_of
from zonemta_py.storage.interface import Store

REFILL_KEYS = 2000  # keys read by one refill: a few milliseconds

log = logging.getLogger(__name__)


class Refill:
    """Of ``destination``, from message ``began`` on. ``skipped``: the first message of each stream without room."""

    def __init__(
        self,
        store: Store,
        window: ReadyWindow,
        destination: str,
        began: str,
        destination_of: Callable[[str, str], str],
    ) -> None:
        self._store = store
        self._window = window
        self._destination = destination
        self._began = began
        self._destination_of = destination_of
        self._budget = REFILL_KEYS
        self._is_probe = window.is_suspended(destination)
        self._may_have_other_names = (
            window.has_pools
            or window.refills.is_unsorted(destination)
            or window.spilled.has_others(destination, (USUAL_POOL,))
        )
        self.skipped: dict[str, str] = {}

    def read(self, batch: WriteBatch, pending: Container[tuple[str, str, str]]) -> str | None:
        """Fill the window; returns the message to resume at, None at the end. ``batch`` deletes the spill keys of what was read.

        ``pending``: the places whose spill key a commit under way is about to write. Raises QueueCorrupt.
        """
        window, zone, destination = self._window, self._window.zone, self._destination
        probed: set[str] = set()
        for key, message in self._spilled():
            if self._budget <= 0 or (window.room.is_full and not self._is_probe):
                return message
            streams, found = self._streams_of(message)
            if streams and not any(self._is_next(each, message) for each in streams):
                continue
            if streams and not any(self._has_room(each) for each in streams):
                for each in streams:
                    self.skipped.setdefault(each, message)
                if not window.refills.is_unsorted(destination) and self._all_skipped():
                    return message
                continue
            window.add(destination, found if found else self._recipients(message))
            if (zone, destination, message) not in pending:
                batch.delete(key)
            if self._is_probe and streams:
                following = message + "0"  # the id after this one
                probed |= {pool_key_of(each) for each in streams}
                if not window.spilled.has_others(destination, probed):
                    return following  # a probe needs one message of each pool
                for each in streams:
                    self.skipped.setdefault(each, following)
        return None

    def _spilled(self) -> Iterator[tuple[bytes, str]]:
        """The spill keys, and their messages."""
        zone = self._window.zone
        stop = keys.end_of(keys.spill_key(zone, self._destination, ""))
        for key in self._store.keys(keys.spill_key(zone, self._destination, self._began), stop):
            yield key, keys.parse_spill(key)[2]

    def _is_next(self, stream: str, message: str) -> bool:
        """Whether a message of ``stream`` may be taken."""
        spilled = self._window.spilled
        if self._may_have_other_names:  # then the index may say that an older message was read
            return spilled.is_for(self._destination, stream, self._began)
        return spilled.is_next(self._destination, stream, message, self._began)

    def _has_room(self, stream: str) -> bool:
        if stream in self.skipped:
            return False
        return self._is_probe or self._window.has_room(self._destination, stream)

    def _all_skipped(self) -> bool:
        return self._window.spilled.all_skipped(self._destination, self._began, self.skipped)

    def _streams_of(self, message: str) -> tuple[set[str], list[QueuedRecipient]]:
        """The streams of a message on disk, and its recipients if they had to be read; no stream if none can be read."""
        self._budget -= 1
        if self._window.has_pools:
            found = [each for each in self._recipients(message) if each.key not in self._window]
            return {self._window.stream(self._destination, each) for each in found}, found
        submitter = self._submitter_of(message)
        return ({submitter} if submitter is not None else set()), []

    def _submitter_of(self, message: str) -> str | None:
        """The submitter of a message; None when no record of it can be read."""
        prefix = keys.zone_prefix(keys.WAITING, self._window.zone, message)
        try:
            for _, value in self._store.scan(prefix, keys.end_of(prefix)):
                return read_recipient_record(value).submitter
        except QueueCorrupt:
            pass  # logged by _recipients
        return None

    def _recipients(self, message: str) -> list[QueuedRecipient]:
        """The recipients of a message at this destination."""
        zone = self._window.zone
        prefix = keys.zone_prefix(keys.WAITING, zone, message)
        found: list[QueuedRecipient] = []
        try:
            for key, value in self._store.scan(prefix, keys.end_of(prefix)):
                self._budget -= 1
                address = keys.parse_recipient(key)[2]
                if self._destination_of(zone, domain_of(address)) == self._destination:
                    found.append(
                        QueuedRecipient(key, zone, message, address, read_recipient_record(value))
                    )
        except QueueCorrupt as exc:
            log.critical("%s is not sent, repair the queue: %s", message, exc)
        return found
