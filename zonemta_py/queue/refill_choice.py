"""Which spilled mail of a zone is read into its window next, and from which message on. Pure.

A stream is the mail of a submitter that leaves from one pool, see ``submitter_queues``.
"""

from collections.abc import Callable, Iterable, Mapping

from zonemta_py.queue.spill import SpillIndex
from zonemta_py.queue.submitter_queues import SubmitterQueues, pool_key_of
from zonemta_py.queue.window_room import WindowRoom

HasRoom = Callable[[str, str], bool]  # (destination, stream): whether one more recipient may enter


class RefillChoice:
    """``spilled``: what is on disk. ``queues``: what is in the window, by destination.

    ``suspended``: destinations whose mail stays on disk.
    """

    def __init__(
        self,
        spilled: SpillIndex,
        room: WindowRoom,
        queues: Mapping[str, SubmitterQueues],
        has_room: HasRoom,
    ) -> None:
        self._spilled = spilled
        self._room = room
        self._queues = queues
        self._has_room = has_room
        self.suspended: set[str] = set()
        # Destinations whose mail on disk is to be read as a whole, and from which message on.
        self._unsorted: dict[str, str] = {}
        # Destinations where a submitter may have little, and spilled mail.
        self._may_be_low: set[str] = set()

    # ---- what changes the choice

    def note_spill(self, destination: str, stream: str, message: str) -> None:
        """``message`` has spilled recipients; the next refill begins there or earlier."""
        self._spilled.note(destination, stream, message)
        if destination in self._unsorted:
            self._unsorted[destination] = min(message, self._unsorted[destination])
        self._may_be_low.add(destination)
        self.note_starved(destination, [stream])

    def note_starved(self, destination: str, streams: Iterable[str]) -> None:
        """Those of ``streams`` that have spilled mail and nothing in the window wait for their turn."""
        queues = self._queues.get(destination)
        for stream in streams:
            if queues is None or not queues.count(stream):
                self._spilled.note_starved(destination, stream)

    def note_low(self, destination: str, queues: SubmitterQueues, streams: Iterable[str]) -> None:
        """These streams of a destination have less than before in ``queues``."""
        for stream in streams:
            if self._is_low(queues, stream) and self._spilled.has(destination, stream):
                self._may_be_low.add(destination)
                if not queues.count(stream):
                    self._spilled.note_starved(destination, stream)
            pool_key = pool_key_of(stream)
            if queues.waiting(pool_key) <= self._room.share(pool_key) // 2:
                self._may_be_low.add(destination)

    def resume(self, destination: str) -> None:
        """The destination has answered again."""
        self.suspended.discard(destination)
        self.note_starved(destination, self._spilled.streams(destination))

    def begin_again(self) -> None:
        """Mail leaves from other pools than before: the streams of what is on disk are not known."""
        self._unsorted = self._spilled.begin_again()
        for destination in self._unsorted:
            self.note_starved(destination, self._spilled.streams(destination))

    def refilled(self, destination: str, resume_at: str | None) -> None:
        """A refill has ended before message ``resume_at``: remember the streams that it did not reach, see ``SpillIndex``."""
        self._may_be_low.add(destination)
        if resume_at is None:
            self._unsorted.pop(destination, None)
        elif destination in self._unsorted:
            self._unsorted[destination] = resume_at
        self.note_starved(destination, self._spilled.streams(destination))

    # ---- the choice

    def next_starved(self) -> str | None:
        """The destination to refill next, round-robin by stream; None without room or starved mail."""
        if self._room.is_full:
            return None
        return self._spilled.next_starved(self._may_enter)

    def _may_enter(self, destination: str, stream: str) -> bool | None:
        """Whether a starved stream finds room; None: not while the destination is suspended."""
        if destination in self.suspended:
            return None
        return self._has_room(destination, stream)

    def begins_at(self, destination: str) -> str | None:
        """The message id to resume at, when a stream with spilled mail has little in the window, and room.

        Little is half of what finds room: otherwise each lease would read many keys for one. After ``begin_again``
        all messages are read once.
        """
        if destination in self._unsorted:
            return self._unsorted[destination]
        queues = self._queues.get(destination)
        if queues is not None and destination not in self._may_be_low:
            return None
        low = {
            stream: message
            for stream, message in self._spilled.streams(destination).items()
            if self._is_low(queues, stream)
        }
        if not low:
            self._may_be_low.discard(destination)
        # One without room would hide what is behind its mail.
        entering = [low[stream] for stream in low if self._may_enter(destination, stream) is not False]
        return min(entering, default=None)

    def _is_low(self, queues: SubmitterQueues | None, stream: str) -> bool:
        """See ``WindowRoom.is_low``."""
        if queues is None:
            return True
        pool_key = pool_key_of(stream)
        return self._room.is_low(pool_key, queues.waiting(pool_key), queues.count(stream))

    def is_unsorted(self, destination: str) -> bool:
        """Whether the streams of what it has on disk are not known."""
        return destination in self._unsorted

    def may_refill(self, destination: str) -> bool:
        """Whether there is spilled mail and room for it."""
        return any(self._has_room(destination, stream) for stream in self._spilled.streams(destination))
