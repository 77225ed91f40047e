"""The ready window of a zone: what may be sent next, in memory, bounded.

Every waiting recipient is in the window, or under a ``spill/`` key of its destination, or ahead of
the start-up scan. Each destination has a share of the window, so that a blocked one does not keep
others out; and a submitter finds places there however much others have brought.

Plain ``def`` throughout: the caller reads the database and writes the batches.
"""

from collections import Counter, OrderedDict
from collections.abc import Container, Iterable
from itertools import islice

from zonemta_py.queue.submitter_queues import Recipient, SubmitterQueues

SHARES = 8  # a destination gets at most 1/8 of the window
HEADROOM = 4  # the last 1/4 of the window is for submitters who have little in it
LIGHT = 16  # recipients: so few of a submitter find a place at any destination, and come first
STARVED_LOOK = 16  # starved destinations of a submitter that are looked at for room

Lane = tuple[str, str]  # destination, submitter


class ReadyWindow:
    """One zone's window of at most ``limit`` recipients."""

    def __init__(self, zone: str, limit: int) -> None:
        self.zone = zone
        self.limit = limit
        self.share = max(1, limit // SHARES)
        self.light = min(LIGHT, max(1, self.share // 2))
        self.size = 0  # in lanes, plus reserved by accepts whose commit is under way
        self._reserved: Counter[Lane] = Counter()
        self._lanes: dict[str, SubmitterQueues] = {}
        self._brought: Counter[str] = Counter()  # by submitter: in lanes, and reserved
        # Keys in a lane, leased or being taken out by an operator; with the object of one in a lane.
        self._known: dict[bytes, Recipient | None] = {}
        self._leased: set[bytes] = set()
        self._withdrawn: set[bytes] = set()  # being deleted by an operator
        self._resting: set[str] = set()  # destinations that do not answer: their mail stays on disk
        # Submitters and their destinations with spilled mail and nothing here, in order of waiting.
        self._starved: OrderedDict[str, dict[str, None]] = OrderedDict()
        self._spilled: dict[str, dict[str, str]] = {}  # destination: submitter: id where to resume

    def __contains__(self, key: bytes) -> bool:
        return key in self._known

    def reserve(self, destination: str, submitter: str, count: int) -> bool:
        """Make room for ``count`` recipients that are being committed; False: write a spill key.

        A submitter's mail for a destination where it has spilled mail goes behind that.
        """
        if destination in self._resting or submitter in self._spilled.get(destination, ()):
            return False
        if not self.has_room(destination, submitter):
            return False
        self._reserved[destination, submitter] += count
        self._brought[submitter] += count
        self.size += count
        return True

    def unreserve(self, destination: str, submitter: str, count: int) -> None:
        """The commit is over; the recipients come by ``add``, or not at all if it failed."""
        self.size -= count
        self._bring(submitter, -count)
        left = self._reserved[destination, submitter] - count
        if left:
            self._reserved[destination, submitter] = left
        else:
            del self._reserved[destination, submitter]

    def _bring(self, submitter: str, count: int) -> None:
        now = self._brought[submitter] + count
        if now:
            self._brought[submitter] = now
        else:
            del self._brought[submitter]

    def has_room(self, destination: str, submitter: str) -> bool:
        """Whether another recipient may come here."""
        light = self._brought.get(submitter, 0) < self.light
        if self.size >= (self.limit if light else self.limit - self.limit // HEADROOM):
            return False
        lanes = self._lanes.get(destination)
        if light or lanes is None:
            return True
        return lanes.length + self._reserved.get((destination, submitter), 0) < self.share

    def is_light(self, submitter: str) -> bool:
        """Whether the submitter has so little here that its mail should not wait in line."""
        return self._brought.get(submitter, 0) <= self.light

    def add(self, destination: str, recipients: Iterable[Recipient]) -> None:
        """Put recipients at the end of their lanes; known ones are passed over."""
        lanes = self._lanes.get(destination)
        if lanes is None:
            lanes = self._lanes[destination] = SubmitterQueues()
        for recipient in recipients:
            if recipient.key not in self._known:
                self._known[recipient.key] = recipient
                lanes.append(recipient)
                self._brought[recipient.record.submitter] += 1
                self.size += 1
        if not lanes.length:
            del self._lanes[destination]

    def take(self, destination: str, most: int) -> list[Recipient]:
        """Lease up to ``most`` recipients of one message at ``destination``, submitters in turn."""
        lanes = self._lanes.get(destination)
        if lanes is None:
            return []
        taken = lanes.take(most)
        for recipient in taken:
            self._known[recipient.key] = None
            self._leased.add(recipient.key)
        if taken:
            self.size -= len(taken)
            self._bring(taken[0].record.submitter, -len(taken))
        if not lanes.length:
            del self._lanes[destination]
        return taken

    def give_back(self, destination: str, recipients: Iterable[Recipient]) -> None:
        """Put leased recipients back in front, in their order."""
        given = list(recipients)
        for recipient in given:
            self._leased.discard(recipient.key)
            self._known[recipient.key] = recipient
            self._brought[recipient.record.submitter] += 1
        self._lanes.setdefault(destination, SubmitterQueues()).put_back(given)
        self.size += len(given)

    def forget(self, keys: Iterable[bytes]) -> None:
        """These recipients are settled, deferred or deleted."""
        for key in keys:
            self._known.pop(key, None)
            self._leased.discard(key)
            self._withdrawn.discard(key)

    # ---- an operator's orders

    def withdraw(self, key: bytes) -> bool:
        """Take one waiting recipient out of circulation, for an operator; False: it is leased.

        One in a lane is passed over when its turn comes. ``forget`` follows its deletion.
        """
        if key in self._leased or key in self._withdrawn:
            return False
        queued = self._known.get(key)
        if queued is not None:
            self.size -= 1
            self._bring(queued.record.submitter, -1)
            queued.void = True
        self._known[key] = queued
        self._withdrawn.add(key)
        return True

    def restore(self, key: bytes) -> None:
        """A withdrawn recipient stays after all."""
        queued = self._known.get(key)
        self._withdrawn.discard(key)
        if queued is None:
            self._known.pop(key, None)
        else:
            self.size += 1
            self._brought[queued.record.submitter] += 1
            queued.void = False

    # ---- destinations that do not answer

    def evict(self, destination: str) -> list[Recipient]:
        """Take a destination's mail out of the window, to be spilled; it rests until ``awake``."""
        self._resting.add(destination)
        evicted = list(self._lanes.pop(destination, ()))
        for recipient in evicted:
            if not recipient.void:
                self.size -= 1
                self._bring(recipient.record.submitter, -1)
                self._known.pop(recipient.key, None)
            elif recipient.key in self._withdrawn:
                self._known[recipient.key] = None  # should it stay after all, its spill key leads to it
        return evicted

    def awake(self, destination: str) -> None:
        """The destination answers again."""
        self._resting.discard(destination)

    def rests(self, destination: str) -> bool:
        """Whether the destination was evicted and has not answered since."""
        return destination in self._resting

    # ---- what is on disk

    def note_spill(self, destination: str, submitter: str, message: str) -> None:
        """``message`` has spilled recipients for ``destination``; the refill resumes no later."""
        resume = self._spilled.setdefault(destination, {})
        at = resume.get(submitter)
        if at is None or message < at:
            resume[submitter] = message
        self.note_starved(destination)

    def note_starved(self, destination: str) -> None:
        """Remember submitters with spilled mail and nothing here, until there is room."""
        lanes = self._lanes.get(destination)
        for submitter in self._spilled.get(destination, ()):
            if lanes is None or not lanes.of(submitter):
                self._starved.setdefault(submitter, {})[destination] = None

    def next_starved(self) -> str | None:
        """The destination to refill next, if there is room for it now: submitters in turn."""
        for _ in range(len(self._starved)):
            if self.size >= self.limit:
                return None
            submitter, destinations = self._starved.popitem(last=False)
            found = self._first_with_room(submitter, destinations)
            if destinations:
                self._starved[submitter] = destinations
            if found is not None:
                return found
        return None

    def _first_with_room(self, submitter: str, destinations: dict[str, None]) -> str | None:
        for destination in list(islice(destinations, STARVED_LOOK)):
            del destinations[destination]
            if submitter not in self._spilled.get(destination, ()) or destination in self._resting:
                continue
            if self.has_room(destination, submitter):
                return destination
            destinations[destination] = None  # behind the others: its turn comes again
        return None

    def wants_refill(self, destination: str) -> str | None:
        """The message id to resume at, when a submitter with spilled mail runs low here."""
        resume = self._spilled.get(destination)
        if resume is None:
            return None
        lanes = self._lanes.get(destination)
        low = [at for who, at in resume.items() if lanes is None or lanes.of(who) <= self.share // 2]
        return min(low, default=None)

    def has_spilled(self, destination: str, submitter: str | None = None) -> bool:
        """Whether mail of the destination, or of one submitter for it, may be on disk and not here."""
        resume = self._spilled.get(destination, ())
        return bool(resume) if submitter is None else submitter in resume

    def is_next(self, destination: str, submitter: str, message: str, began: str) -> bool:
        """Whether a refill from ``began`` may take this message: nothing older of its submitter is left."""
        at = self._spilled.get(destination, {}).get(submitter, began)
        return began <= at <= message

    def all_left(self, destination: str, began: str, left: Container[str]) -> bool:
        """Whether a refill from ``began`` has no room for anybody it is for."""
        resume = self._spilled.get(destination, {})
        return all(submitter in left for submitter, at in resume.items() if at >= began)

    def may_refill(self, destination: str) -> bool:
        """Whether there is mail on disk and room for it."""
        return any(self.has_room(destination, who) for who in self._spilled.get(destination, ()))

    def refilled(
        self, destination: str, began: str, resume_at: str | None, left: dict[str, str]
    ) -> None:
        """The spill was read from ``began`` up to ``resume_at``; None: there is nothing more.

        ``left``: submitters and their first message that was passed over for want of room.
        """
        resume = self._spilled.pop(destination, {})
        now: dict[str, str] = {}
        for submitter, at in resume.items():
            if at < began:  # it was not this one's turn
                now[submitter] = at
            elif submitter in left:
                now[submitter] = left[submitter]
            elif resume_at is not None:
                now[submitter] = max(at, resume_at)
        if now:
            self._spilled[destination] = now

    # ---- for others

    def waiting(self, destination: str) -> int:
        """How many recipients of ``destination`` are in the window."""
        lanes = self._lanes.get(destination)
        return lanes.length if lanes is not None else 0

    def has_mail(self, destination: str) -> bool:
        """Whether there is mail of ``destination`` to lease, here or on disk."""
        return destination in self._lanes or destination in self._spilled

    def destinations(self) -> list[str]:
        """Destinations that have mail in the window."""
        return list(self._lanes)
