"""When a deferred recipient is tried again: retry policies. Pure.

Source: RFC 5321 section 4.5.4.1. Ladder: ZoneMTA (decision 11). Exponential: python-slimta's
backoff functions. Quadratic: qmail-send's nextretry. Priority: the lists of Sun's ``backoff``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, isqrt

from zonemta_py.config.hooks import plain_function
from zonemta_py.config.zones import Retry
from zonemta_py.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RetryContext:
    """The input of a policy. Times are unix ms; ``attempts`` is the number of finished attempts, from 1.

    ``end_ms``: acceptance plus ``give_up_after``. ``priority``: urgent, normal or nonurgent (RFC 2156).
    ``code`` (0 without a reply), ``status`` and ``reply`` describe the attempt that just failed.
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


SOONEST_S = 1.0  # shortest delay that a user's function can ask for
FALLBACK_S = 300.0  # delay when a user's function fails
LATEST_MS = 9_999_999_999_999  # the largest due time that a key of the queue can hold

ReportError = Callable[[str], None]
RetryPolicy = Callable[[RetryContext], float | None]  # unix ms, or None to give up
Backoff = Callable[[RetryContext, int], float | None]  # (context, attempts): seconds, or None to give up


def next_attempt(policy: RetryPolicy, context: RetryContext, jitter: float) -> int | None:
    """The time of the next attempt in unix ms, or None to give up.

    ``jitter`` (0 or more) is the fraction of the delay that is added to it, so that recipients
    deferred together are not tried together. Jitter never moves an attempt past ``end_ms``.
    """
    due_ms = policy(context)
    if due_ms is None:
        return None
    delay_ms = max(1, due_ms - context.now_ms) * (1 + jitter)
    return min(context.now_ms + int(delay_ms), max(int(due_ms), context.end_ms))


def ladder(delays: Sequence[float]) -> RetryPolicy:
    """Wait ``delays[n - 1]`` seconds after the n-th failure; the last delay repeats.

    A delay that leads past ``end_ms`` is cut to it, so that the last attempt is at ``end_ms``.
    """

    def policy(context: RetryContext) -> float | None:
        return _cut(context, delays[min(context.attempts, len(delays)) - 1])

    return policy


def exponential(first_s: float, factor: int, longest_s: float) -> RetryPolicy:
    """Wait ``first_s * factor ** (n - 1)`` after the n-th failure, at most ``longest_s``."""

    def policy(context: RetryContext) -> float | None:
        power = min(context.attempts - 1, 64)  # larger powers exceed every ``longest_s``
        return _cut(context, min(first_s * factor**power, longest_s))

    return policy


def quadratic(growth: int) -> RetryPolicy:
    """The square root of the message's age in seconds grows by ``growth`` from attempt to attempt.

    With 20, attempts are 0, 400, 1600, 3600, … s after acceptance. As in qmail, one attempt is
    made after ``end_ms``.
    """

    def policy(context: RetryContext) -> float | None:
        if context.now_ms >= context.end_ms:
            return None
        age_s = max(0, context.now_ms - context.created_ms) // 1000
        return context.created_ms + (isqrt(age_s) + growth) ** 2 * 1000

    return policy


def from_backoff(backoff: Backoff | Sequence[float]) -> RetryPolicy:
    """The policy of a python-slimta backoff function, or a ladder of delays (s).

    A function alone decides when to give up, by returning None: ``end_ms`` does not limit it.
    """
    if not callable(backoff):
        return ladder(backoff)
    function = backoff

    def policy(context: RetryContext) -> float | None:
        delay_s = function(context, context.attempts)
        return None if delay_s is None else context.now_ms + delay_s * 1000

    return policy


def by_priority(delays: dict[str, Sequence[float]]) -> RetryPolicy:
    """A ladder for each priority; those without delays use the ladder of ``normal``."""
    ladders = {name: ladder(own) for name, own in delays.items() if own}

    def policy(context: RetryContext) -> float | None:
        return ladders.get(context.priority, ladders["normal"])(context)

    return policy


def _cut(context: RetryContext, delay_s: float) -> float | None:
    if context.now_ms >= context.end_ms:
        return None
    return min(context.now_ms + delay_s * 1000, context.end_ms)


def guarded(policy: RetryPolicy, report_error: ReportError) -> RetryPolicy:
    """``policy``, a function of the user, made safe: it never raises and returns only valid times.

    If it fails, ``report_error`` is called with the reason and the next attempt is in FALLBACK_S.
    No attempt is sooner than SOONEST_S.
    """

    def safe(context: RetryContext) -> float | None:
        try:
            due_ms = policy(context)
            if due_ms is None:
                return None
            if isfinite(due_ms) and due_ms < LATEST_MS:
                return max(due_ms, context.now_ms + SOONEST_S * 1000)
            report_error(f"the retry function returned {due_ms!r}, which is not a valid time")
        except Exception as exc:
            report_error(f"the retry function failed on {context.recipient}: {exc!r}")
        return context.now_ms + FALLBACK_S * 1000

    return safe


def _named_function(name: str | None) -> Callable[..., float | None]:
    return plain_function(name or "")


def make_policy(
    retry: Retry,
    report_error: ReportError = lambda problem: None,
    load: Callable[[str | None], Callable[..., float | None] | None] = _named_function,
) -> RetryPolicy:
    """The policy that ``retry`` selects. Raises ConfigError for a function that cannot be loaded.

    ``report_error`` is called when a user's function fails (see ``guarded``). ``load`` returns the
    function for the name in ``retry``.
    """
    if retry.policy == "exponential":
        own = retry.exponential
        return exponential(own.first, own.factor, own.longest)
    if retry.policy == "quadratic":
        return quadratic(retry.quadratic.growth)
    if retry.policy == "priority":
        lists = retry.priority
        return by_priority(
            {"urgent": lists.urgent, "normal": lists.normal, "nonurgent": lists.nonurgent}
        )
    if retry.policy in ("function", "backoff"):
        function = load(retry.function)
        if function is None:
            raise ConfigError(f"policy: {retry.policy} needs a function")
        return guarded(function if retry.policy == "function" else from_backoff(function), report_error)
    return ladder(retry.delays)


def warning_is_due(retry: Retry, created_ms: int, now_ms: int) -> bool:
    """True if the sender's report of a delay is due."""
    return retry.warn_after is not None and now_ms - created_ms >= retry.warn_after * 1000


def priority_of(field: str) -> str:
    """The priority that a ``Priority:`` header field asks for: urgent, normal or nonurgent."""
    word = field.strip().lower()
    return {"urgent": "urgent", "non-urgent": "nonurgent"}.get(word, "normal")
