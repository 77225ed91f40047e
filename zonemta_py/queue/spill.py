"""Waiting mail that is not in a ready window: its ``spill/`` keys, and where to read on. Pure."""

from collections import OrderedDict
from collections.abc import Callable, Container, Mapping
from itertools import islice
from typing import NamedTuple

from zonemta_py.queue.format import keys

STARVED_LOOK = 16  # starved destinations of one submitter that are examined for room


class SpillKey(NamedTuple):
    """The parts of a ``spill/`` key, and the submitter of its message."""

    zone: str
    destination: str
    message: str
    submitter: str

    @property
    def key(self) -> bytes:
        """The key on disk."""
        return keys.spill_key(self.zone, self.destination, self.message)


class SpillIndex:
    """The spilled mail of one zone: by destination and submitter, the message id to resume reading at.

    A submitter is *starved* at a destination where it has spilled mail and nothing in the window.
    """

    def __init__(self) -> None:
        self._resume: dict[str, dict[str, str]] = {}
        self._starved: OrderedDict[str, dict[str, None]] = OrderedDict()  # submitter: destinations

    def note(self, destination: str, submitter: str, message: str) -> None:
        """``message`` has spilled recipients here; reading resumes there or earlier."""
        resume = self._resume.setdefault(destination, {})
        at = resume.get(submitter)
        if at is None or message < at:
            resume[submitter] = message

    def has(self, destination: str, submitter: str | None = None) -> bool:
        """Whether mail of the destination, or of one submitter for it, may be spilled."""
        resume = self._resume.get(destination, ())
        return bool(resume) if submitter is None else submitter in resume

    def submitters(self, destination: str) -> Mapping[str, str]:
        """The submitters with spilled mail, and the message id to resume at."""
        return self._resume.get(destination, {})

    # ---- starved submitters

    def note_starved(self, destination: str, submitter: str) -> None:
        """Put the pair behind the others that wait for room."""
        self._starved.setdefault(submitter, {})[destination] = None

    def next_starved(self, may_enter: Callable[[str, str], bool | None]) -> str | None:
        """The destination to refill next, submitters in turn.

        ``may_enter(destination, submitter)``: False, wait for another turn; None, forget the pair.
        """
        for _ in range(len(self._starved)):
            submitter, destinations = self._starved.popitem(last=False)
            found = self._first_with_room(submitter, destinations, may_enter)
            if destinations:
                self._starved[submitter] = destinations
            if found is not None:
                return found
        return None

    def _first_with_room(
        self,
        submitter: str,
        destinations: dict[str, None],
        may_enter: Callable[[str, str], bool | None],
    ) -> str | None:
        for destination in list(islice(destinations, STARVED_LOOK)):
            del destinations[destination]
            if not self.has(destination, submitter):
                continue
            enters = may_enter(destination, submitter)
            if enters:
                return destination
            if enters is not None:
                destinations[destination] = None
        return None

    # ---- a refill: reading the spill keys of a destination from message id ``began``

    def is_next(self, destination: str, submitter: str, message: str, began: str) -> bool:
        """Whether the refill may take this message: no older one of its submitter is left out."""
        at = self._resume.get(destination, {}).get(submitter, began)
        return began <= at <= message

    def all_skipped(self, destination: str, began: str, skipped: Container[str]) -> bool:
        """Whether the refill has no room for any of the submitters it is for."""
        resume = self._resume.get(destination, {})
        return all(submitter in skipped for submitter, at in resume.items() if at >= began)

    def refilled(
        self, destination: str, began: str, resume_at: str | None, skipped: Mapping[str, str]
    ) -> None:
        """The refill ended before message ``resume_at``; None: it read all keys.

        ``skipped``: submitters without room, and their first message that was passed over.
        """
        resume = self._resume.pop(destination, {})
        remaining: dict[str, str] = {}
        for submitter, at in resume.items():
            if at < began:  # the refill was not for this submitter
                remaining[submitter] = at
            elif submitter in skipped:
                remaining[submitter] = skipped[submitter]
            elif resume_at is not None:
                remaining[submitter] = max(at, resume_at)
        if remaining:
            self._resume[destination] = remaining
