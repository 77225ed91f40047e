"""The replies of a provider, as they were recorded: by how much was sent to it, and by class. Pure.

Two kinds of replies. Those that speak of the sender (``controller.OF_SENDER``: rate limits, blocks and so on) depend on how many attempts
a minute an address made; the shares of the recorded minutes with about that number apply. All others speak of a mailbox, and their share
is that of the domain (``PeerModel``).

Invariants:

- A step has twice the rate of the one before (``rate_step``). One with less than ATTEMPTS_MIN attempts is joined with a neighbour.
- The share of refused attempts never falls as the rate rises (decision 122): steps in which it would are joined.
- A rate below the first step has the share of the first step.
- A recorded expiry counts as deferred. Replies that differ in numbers and addresses only are one, with an example.
- What is kept is limited: DOMAINS_MAX domains, and REPLIES_MAX rows of replies, those of the busiest.

The only state is that of ``RateMeter``: the attempts of this minute and of the one before, from which it estimates those of the last minute.

Callers: ``simulate.job`` makes the models from events with Spark; ``simulate.world`` asks them for each transaction.

Example: 60 attempts a minute are of step 5 (32 to 63). If 10 of 100 recorded attempts of that step were refused, ``of_sender(60, random)``
returns one of their replies with a probability of 0.1.
"""

from collections.abc import Iterable, Mapping
from itertools import accumulate
from math import log2
from random import Random
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from zonemta_py.egress.controller import OF_SENDER
from zonemta_py.pipeline.events.rows import ATTEMPTS, named_provider, provider, reply_kind
from zonemta_py.pipeline.simulate.egress import RecordedDomain

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
        for each, redraw_source in self._steps:
            if found is None or each <= step:
                found = redraw_source
        return found.draw(random.random()) if found is not None and found.replies else None

    def other(self, event: str, random: Random) -> RecordedReply:
        """A reply of another kind to a recipient that is deferred or bounced."""
        return self._others[event].draw(random.random()) or UNCLASSED[event]


class _Step(NamedTuple):
    """Attempts of the rates from ``begins`` on, and their replies that speak of the sender."""

    begins: int
    total: int
    refused: Mapping[RecordedReply, int]

    def share(self) -> float:
        """That of the refused attempts."""
        return sum(self.refused.values()) / self.total

    def joined(self, higher: "_Step") -> "_Step":
        """The step of both, from the lower rate on."""
        names = {**self.refused, **higher.refused}
        refused = {each: self.refused.get(each, 0) + higher.refused.get(each, 0) for each in names}
        return _Step(self.begins, self.total + higher.total, refused)


def _merged(
    totals: Mapping[int, int], refused: Mapping[int, Mapping[RecordedReply, int]]
) -> Iterable[tuple[int, _Draws]]:
    """The steps with enough attempts, each from its lowest rate on; their shares never fall."""
    found: list[_Step] = []
    for number in sorted(totals):
        step = _Step(number, totals[number], refused.get(number, {}))
        few = found and found[-1].total < ATTEMPTS_MIN
        found.append(found.pop().joined(step) if few else step)
    if len(found) > 1 and found[-1].total < ATTEMPTS_MIN:  # the last one
        last = found.pop()
        found.append(found.pop().joined(last))
    rising: list[_Step] = []
    for step in found:
        rising.append(step)
        while len(rising) > 1 and rising[-2].share() > rising[-1].share():
            higher = rising.pop()
            rising.append(rising.pop().joined(higher))
    return ((each.begins, _Draws(each.refused, each.total)) for each in rising)


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


# ---- What events say of providers: which domains they have, and how they replied at which rate.

DOMAINS_MAX = 200_000  # whose provider is known from events, the busiest
REPLIES_MAX = 50_000  # rows of counted replies, those of the busiest providers
HOSTS_MAX = 10  # of a domain
_MINUTE_MS = 60_000


def is_of_sender() -> Column:
    """True if the reply of an attempt speaks of the sender; false for events without a class."""
    return F.coalesce(F.col("class").isin(*sorted(OF_SENDER)), F.lit(False))


def recorded_domains(events: DataFrame) -> DataFrame:
    """``domain``, the ``provider`` that its events name, else that of the relay's table or the domain, and the ``hosts`` that were tried."""
    attempts = events.where(F.col("event").isin(*ATTEMPTS))
    return (
        attempts.groupBy("domain")
        .agg(
            F.count("*").alias("attempts"),
            F.coalesce(F.max(F.nullif("provider", F.lit(""))), provider("domain")).alias("provider"),
            F.slice(F.array_sort(F.collect_set(F.nullif("mx", F.lit("")))), 1, HOSTS_MAX).alias("hosts"),
        )
        .orderBy(F.desc("attempts"), "domain")
        .limit(DOMAINS_MAX)
        .select("domain", "provider", "hosts")
    )


def domain_map(rows: Iterable[Mapping[str, Any]]) -> dict[str, RecordedDomain]:
    """Rows of ``recorded_domains`` by domain."""
    return {row["domain"]: RecordedDomain(row["provider"], tuple(row["hosts"])) for row in rows}


def recorded_replies(events: DataFrame) -> DataFrame:
    """How often each provider gave each reply, by the ``step`` of the rate from the address in that minute.

    ``event`` is delivered, deferred or bounced. Replies that differ in numbers and addresses only are one, with an example.
    """
    path = ["provider", "address", "minute"]
    event = F.when(F.col("event") == "expired", DEFERRED).otherwise(F.col("event"))
    is_failure = F.col("event") != DELIVERED
    each = events.where(F.col("event").isin(*ATTEMPTS)).select(
        named_provider().alias("provider"),
        F.col("source_ip").alias("address"),
        F.floor(F.col("time_ms") / _MINUTE_MS).alias("minute"),
        event.alias("event"),
        F.when(is_failure, F.coalesce("class", F.lit(""))).alias("class"),
        F.when(is_failure, F.col("code")).alias("code"),
        F.when(is_failure, F.col("status")).alias("status"),
        F.when(is_failure, reply_kind(F.col("reply"))).alias("kind"),
        F.when(is_failure, F.col("reply")).alias("example"),
        is_of_sender().alias("of_sender"),
    )
    reply = ["event", "class", "code", "status", "kind", "of_sender"]
    minutes = each.groupBy(*path, *reply).agg(
        F.count("*").alias("count"), F.min("example").alias("example")
    )
    per_minute = F.sum("count").over(Window.partitionBy(*path))
    step = F.floor(F.log2(per_minute)).cast("int")
    counted = minutes.withColumn("step", step).groupBy("provider", "step", *reply).agg(
        F.sum("count").alias("count"), F.min("example").alias("example")
    )  # fmt: skip
    whole = F.sum("count").over(Window.partitionBy("provider"))
    return (
        counted.withColumn("whole", whole)
        .orderBy(F.desc("whole"), "provider", F.desc("count"))
        .limit(REPLIES_MAX)
        .drop("whole", "kind")
    )


def reply_models(rows: Iterable[Mapping[str, Any]]) -> dict[str, ReplyModel]:
    """A model for each provider, from rows of ``recorded_replies``."""
    counted: dict[str, list[CountedReply]] = {}
    for row in rows:
        reply = None
        if row["event"] in (DEFERRED, BOUNCED):
            text = row["example"] or ""
            reply = RecordedReply(
                row["event"], row["class"], row["code"] or 0, row["status"] or "", text
            )
        each = CountedReply(row["step"], reply, row["count"], row["of_sender"])
        counted.setdefault(row["provider"], []).append(each)
    return {name: ReplyModel(each) for name, each in counted.items()}
