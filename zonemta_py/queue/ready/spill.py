"""Waiting mail that is not in a ready window: its ``spill/`` keys, and where to read on. Pure."""

from collections import OrderedDict
from collections.abc import Callable, Container, Mapping
from itertools import islice
from typing import NamedTuple

from zonemta_py.core.model import PoolKey
from zonemta_py.queue.format import keys
from zonemta_py.queue.ready.streams import Stream

STARVED_LOOK = 16  # starved destinations of one stream that are examined for room


class SpillKey(NamedTuple):
    """The parts of a ``spill/`` key, and the stream of its recipients."""

    zone: str
    destination: str
    message: str
    stream: Stream

    @property
    def place(self) -> tuple[str, str, str]:
        """The part of it that the key names: the recipients of a message at a destination share it, whatever their streams."""
        return self[:3]

    @property
    def key(self) -> bytes:
        return keys.spill_key(self.zone, self.destination, self.message)


class SpillIndex:
    """The spilled mail of one zone: by destination and stream, the message id to resume reading at.

    A stream is *starved* at a destination where it has spilled mail and nothing in the window.
    """

    def __init__(self) -> None:
        self._resume: dict[str, dict[Stream, str]] = {}
        self._starved: OrderedDict[Stream, dict[str, None]] = OrderedDict()  # stream: destinations

    def note(self, destination: str, stream: Stream, message: str) -> None:
        """``message`` has spilled recipients here; reading resumes there or earlier."""
        resume = self._resume.setdefault(destination, {})
        at = resume.get(stream)
        if at is None or message < at:
            resume[stream] = message

    def has(self, destination: str, stream: Stream | None = None) -> bool:
        """True if mail of the destination, or of one stream for it, may be spilled."""
        resume = self._resume.get(destination, ())
        return bool(resume) if stream is None else stream in resume

    def streams(self, destination: str) -> Mapping[Stream, str]:
        """The streams with spilled mail, and the message id to resume at."""
        return self._resume.get(destination, {})

    def begin_again(self) -> dict[str, str]:
        """The names of the streams have changed: each destination is read from its first message, which is returned."""
        firsts = {destination: min(resume.values()) for destination, resume in self._resume.items()}
        for destination, first in firsts.items():
            self._resume[destination] = dict.fromkeys(self._resume[destination], first)
        return firsts

    def has_pool_key(self, destination: str, pool_key: PoolKey) -> bool:
        """True if mail that leaves from ``pool_key`` may be spilled."""
        return any(stream.pool_key == pool_key for stream in self._resume.get(destination, ()))

    def has_others(self, destination: str, pools: Container[PoolKey]) -> bool:
        """True if mail that leaves from another pool than ``pools`` may be spilled."""
        return any(stream.pool_key not in pools for stream in self._resume.get(destination, ()))

    # ---- starved streams

    def note_starved(self, destination: str, stream: Stream) -> None:
        """Put the pair behind the others that wait for room."""
        self._starved.setdefault(stream, {})[destination] = None

    def next_starved(self, may_enter: Callable[[str, Stream], bool | None]) -> str | None:
        """The destination to refill next, streams in turn.

        ``may_enter(destination, stream)``: False, wait for another turn; None, forget the pair.
        """
        for _ in range(len(self._starved)):
            stream, destinations = self._starved.popitem(last=False)
            found = self._first_with_room(stream, destinations, may_enter)
            if destinations:
                self._starved[stream] = destinations
            if found is not None:
                return found
        return None

    def _first_with_room(
        self,
        stream: Stream,
        destinations: dict[str, None],
        may_enter: Callable[[str, Stream], bool | None],
    ) -> str | None:
        for destination in list(islice(destinations, STARVED_LOOK)):
            del destinations[destination]
            if not self.has(destination, stream):
                continue
            enters = may_enter(destination, stream)
            if enters:
                return destination
            if enters is not None:
                destinations[destination] = None
        return None

    # ---- a refill: reading the spill keys of a destination from message id ``began``

    def is_next(self, destination: str, stream: Stream, message: str, began: str) -> bool:
        """True if the refill may take this message: no older one of its stream is left out."""
        at = self._resume.get(destination, {}).get(stream, began)
        return began <= at <= message

    def is_for(self, destination: str, stream: Stream, began: str) -> bool:
        """True if the refill is for this stream."""
        return began <= self._resume.get(destination, {}).get(stream, began)

    def all_skipped(self, destination: str, began: str, skipped: Container[Stream]) -> bool:
        """True if the refill has no room for any of the streams it is for."""
        resume = self._resume.get(destination, {})
        return all(stream in skipped for stream, at in resume.items() if at >= began)

    def refilled(
        self, destination: str, began: str, resume_at: str | None, skipped: Mapping[Stream, str]
    ) -> None:
        """The refill ended before message ``resume_at``; None: it read all keys.

        ``skipped``: streams without room, and their first message that was passed over.
        """
        resume = self._resume.pop(destination, {})
        remaining: dict[Stream, str] = {}
        for stream, at in resume.items():
            if at < began:  # the refill was not for this stream
                remaining[stream] = at
            elif stream in skipped:
                remaining[stream] = skipped[stream]
            elif resume_at is not None:
                remaining[stream] = max(at, resume_at)
        # The configuration may have changed since a message was noted.
        remaining |= {stream: at for stream, at in skipped.items() if stream not in resume}
        if remaining:
            self._resume[destination] = remaining
