"""How a provider replies, as its replies were recorded: by how much was sent to it, and by class. Pure.

Replies that speak of the sender (``controller.OF_SENDER``: rate limits, blocks and so on) depend on how many attempts
a minute an address made; the shares of the recorded minutes with about that number apply. All other replies speak of
a mailbox, and their share is that of the domain (``PeerModel``).
"""

from collections.abc import Iterable, Mapping
from itertools import accumulate
from math import log2
from random import Random
from typing import NamedTuple

ATTEMPTS_MIN = 50  # of a step of the rate; one with fewer belongs to the next one
MINUTE_S = 60.0
DELIVERED, DEFERRED, BOUNCED = "delivered", "deferred", "bounced"


class RecordedReply(NamedTuple):
    """A reply: the event of the recipient (deferred or bounced), and what shaping looks at."""

    event: str
    reply_class: str
    code: int
    status: str
    text: str


UNCLASSED = {
    DEFERRED: RecordedReply(DEFERRED, "", 451, "4.0.0", ""),
    BOUNCED: RecordedReply(BOUNCED, "", 550, "5.0.0", ""),
}


class CountedReply(NamedTuple):
    """How often a reply, or acceptance (None), was recorded at a step of the rate."""

    step: int
    reply: RecordedReply | None
    number: int
    of_sender: bool = False


def rate_step(per_minute: float) -> int:
    """The step of a rate: each has twice the rate of the one before."""
    return int(log2(per_minute)) if per_minute >= 2 else 0


class _Draws:
    """Replies with their share of ``total`` attempts."""

    def __init__(self, counts: Mapping[RecordedReply, int], total: int) -> None:
        self.replies = list(counts)
        self.sums = [count / total for count in accumulate(counts.values())] if total else []

    def draw(self, drawn: float) -> RecordedReply | None:
        """That of ``drawn``, from 0 to 1; None: it is beyond all shares."""
        for reply, upto in zip(self.replies, self.sums, strict=True):
            if drawn < upto:
                return reply
        return None


class ReplyModel:
    """The replies of one provider."""

    def __init__(self, counted: Iterable[CountedReply]) -> None:
        totals: dict[int, int] = {}
        refused: dict[int, dict[RecordedReply, int]] = {}
        others: dict[str, dict[RecordedReply, int]] = {DEFERRED: {}, BOUNCED: {}}
        for each in counted:
            totals[each.step] = totals.get(each.step, 0) + each.number
            if each.reply is None:
                continue
            kept = refused.setdefault(each.step, {}) if each.of_sender else others[each.reply.event]
            kept[each.reply] = kept.get(each.reply, 0) + each.number
        self._steps = list(_merged(totals, refused))
        self._others = {event: _Draws(counts, sum(counts.values())) for event, counts in others.items()}

    def of_sender(self, per_minute: float, random: Random) -> RecordedReply | None:
        """A reply that speaks of the sender, who makes that number of attempts a minute; None: there is none."""
        step, found = rate_step(per_minute), None
        for each, draws in self._steps:
            if found is None or each <= step:
                found = draws
        return found.draw(random.random()) if found is not None and found.replies else None

    def other(self, event: str, random: Random) -> RecordedReply:
        """A reply of another kind to a recipient that is deferred or bounced."""
        return self._others[event].draw(random.random()) or UNCLASSED[event]


def _merged(
    totals: Mapping[int, int], refused: Mapping[int, Mapping[RecordedReply, int]]
) -> Iterable[tuple[int, _Draws]]:
    """The steps with enough attempts, each from its lowest rate on."""
    begins, total, counts = -1, 0, dict[RecordedReply, int]()
    found: list[tuple[int, int, dict[RecordedReply, int]]] = []
    for step in sorted(totals):
        begins = step if begins < 0 else begins
        total += totals[step]
        for reply, count in refused.get(step, {}).items():
            counts[reply] = counts.get(reply, 0) + count
        if total >= ATTEMPTS_MIN:
            found.append((begins, total, counts))
            begins, total, counts = -1, 0, {}
    if total and found:  # what is left belongs to the last step
        begins, before, last = found.pop()
        counts = {reply: counts.get(reply, 0) + last.get(reply, 0) for reply in {**last, **counts}}
        total += before
    if total:
        found.append((begins, total, counts))
    return ((step, _Draws(counts, total)) for step, total, counts in found)


class RateMeter:
    """How many attempts were made in the last minute, estimated from two periods of a minute."""

    __slots__ = ("_before", "_count", "_minute")

    def __init__(self) -> None:
        self._minute = 0
        self._count = self._before = 0

    def add(self, attempts: int, now_s: float) -> float:
        """Count some; returns the attempts of the last minute, with them."""
        minute, into = divmod(now_s, MINUTE_S)
        if minute != self._minute:
            self._before = self._count if minute == self._minute + 1 else 0
            self._minute, self._count = int(minute), 0
        self._count += attempts
        return self._count + self._before * (1 - into / MINUTE_S)
