"""When a deferred recipient is tried again. Pure: one question, several policies that answer it.

Source: RFC 5321 section 4.5.4.1. Ladder: ZoneMTA (decision 11). Exponential: python-slimta's
backoff functions. Quadratic: qmail-send's nextretry. Priority: the lists of Sun's ``backoff``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, isqrt

from zonemta_py.config.functions import plain_function
from zonemta_py.config.schema import Retry


@dataclass(frozen=True, slots=True)
class RetryContext:
    """What a policy may look at. Times are unix ms; ``attempts`` counts those that ended, from 1.

    ``end_ms``: when ``give_up_after`` is over. ``priority``: urgent, normal or nonurgent (RFC 2156).
    ``code`` (0 when no server answered), ``status`` and ``reply`` are of the attempt that just failed.
    """

    created_ms: int
    attempts: int
    now_ms: int
    end_ms: int
    zone: str = ""
    sender: str = ""
    recipient: str = ""
    priority: str = "normal"
    code: int = 0
    status: str = ""
    reply: str = ""


SOONEST_S = 1.0  # what a function of the operator's may ask: no attempt after attempt without end
FALLBACK_S = 300.0
LATEST_MS = 9_999_999_999_999  # what a due time can say

Tell = Callable[[str], None]
Policy = Callable[[RetryContext], float | None]  # unix ms, or None to give up
Backoff = Callable[
    [RetryContext, int], float | None
]  # a delay in seconds after so many attempts, or None


def next_attempt(policy: Policy, context: RetryContext, jitter: float) -> int | None:
    """Unix ms of the next attempt, or None to give up.

    ``jitter`` (0 or more) is the part of the delay that is added, so that recipients deferred
    together do not come back in one burst; it does not lead past the end.
    """
    due_ms = policy(context)
    if due_ms is None:
        return None
    delay_ms = max(1, due_ms - context.now_ms) * (1 + jitter)
    return min(context.now_ms + int(delay_ms), max(int(due_ms), context.end_ms))


def ladder(delays: Sequence[float]) -> Policy:
    """After the 1st, 2nd, … failure wait the 1st, 2nd, … of ``delays`` (s); the last repeats.

    The last attempt falls on the end: a delay that leads past it is cut to it once, so that the
    promised time is used.
    """

    def policy(context: RetryContext) -> float | None:
        return _cut(context, delays[min(context.attempts, len(delays)) - 1])

    return policy


def exponential(first_s: float, factor: int, longest_s: float) -> Policy:
    """After the n-th failure wait ``first_s * factor ** (n - 1)``, at most ``longest_s``."""

    def policy(context: RetryContext) -> float | None:
        power = min(context.attempts - 1, 64)  # beyond it ``longest_s`` has long been reached
        return _cut(context, min(first_s * factor**power, longest_s))

    return policy


def quadratic(skip: int) -> Policy:
    """The square root of the age (s) grows by ``skip`` from one attempt to the next.

    One attempt is made after the lifetime, and then no more, as qmail does.
    """

    def policy(context: RetryContext) -> float | None:
        if context.now_ms >= context.end_ms:
            return None
        age_s = max(0, context.now_ms - context.created_ms) // 1000
        return context.created_ms + (isqrt(age_s) + skip) ** 2 * 1000

    return policy


def from_backoff(backoff: Backoff | Sequence[float]) -> Policy:
    """The policy of a python-slimta backoff function, or of delays (s), the last of which repeats.

    A function says alone when to give up, by None: ``give_up_after`` does not count beside it.
    """
    if not callable(backoff):
        return ladder(backoff)
    function = backoff

    def policy(context: RetryContext) -> float | None:
        delay_s = function(context, context.attempts)
        return None if delay_s is None else context.now_ms + delay_s * 1000

    return policy


def by_priority(delays: dict[str, Sequence[float]]) -> Policy:
    """A ladder for each priority; ``normal`` for one that has none."""
    ladders = {name: ladder(own) for name, own in delays.items() if own}

    def policy(context: RetryContext) -> float | None:
        return ladders.get(context.priority, ladders["normal"])(context)

    return policy


def _cut(context: RetryContext, delay_s: float) -> float | None:
    if context.now_ms >= context.end_ms:
        return None
    return min(context.now_ms + delay_s * 1000, context.end_ms)


def guarded(policy: Policy, tell: Tell) -> Policy:
    """``policy``, a function of the operator's, kept from harm: its answer is used only when it is one.

    Else ``tell`` hears why, and the next attempt is in FALLBACK_S; none is sooner than SOONEST_S.
    """

    def safe(context: RetryContext) -> float | None:
        try:
            due_ms = policy(context)
            if due_ms is None:
                return None
            if isfinite(due_ms) and due_ms < LATEST_MS:
                return max(due_ms, context.now_ms + SOONEST_S * 1000)
            tell(f"the retry function answered {due_ms!r}, which is no time")
        except Exception as exc:
            tell(f"the retry function failed on {context.recipient}: {exc!r}")
        return context.now_ms + FALLBACK_S * 1000

    return safe


def make_policy(retry: Retry, tell: Tell = lambda problem: None) -> Policy:
    """The policy a zone's configuration asks for. Raises ConfigError for a function that is not there.

    ``tell`` hears of a function that fails; what it fails on is tried again all the same.
    """
    if retry.policy == "exponential":
        return exponential(retry.first, retry.factor, retry.longest)
    if retry.policy == "quadratic":
        return quadratic(retry.skip)
    if retry.policy == "priority":
        own = retry.priorities
        return by_priority({"urgent": own.urgent, "normal": own.normal, "nonurgent": own.nonurgent})
    if retry.policy == "function":
        return guarded(plain_function(retry.function or ""), tell)
    if retry.policy == "backoff":
        return guarded(from_backoff(plain_function(retry.function or "")), tell)
    return ladder(retry.delays)


def warning_is_due(retry: Retry, created_ms: int, now_ms: int) -> bool:
    """Whether the sender should hear by now that a recipient is delayed."""
    return retry.warn_after is not None and now_ms - created_ms >= retry.warn_after * 1000


def priority_of(field: str) -> str:
    """The priority that a ``Priority:`` header field asks for."""
    word = field.strip().lower()
    return {"urgent": "urgent", "non-urgent": "nonurgent"}.get(word, "normal")
