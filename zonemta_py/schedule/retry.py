"""When a deferred recipient is tried again. Pure.

Source: RFC 5321 section 4.5.4.1; the default ladder is ZoneMTA's, see decision 11.
"""

from zonemta_py.config.schema import Retry

JITTER = 0.1  # of a delay: recipients deferred together do not come back in one burst


def next_due_ms(retry: Retry, attempts: int, created_ms: int, now_ms: int, spread: float) -> int | None:
    """Unix ms of the next attempt after the ``attempts``-th (1-based) failed, or None to give up.

    The last attempt falls on or before ``give_up_after``: a delay that leads past it is cut to it
    once, so that the promised time is used. ``spread`` is 0..1 and lengthens the delay by up to
    JITTER of itself.
    """
    end_ms = created_ms + int(retry.give_up_after * 1000)
    if now_ms >= end_ms:
        return None
    delay_s = retry.delays[min(attempts, len(retry.delays)) - 1]
    return min(now_ms + int(delay_s * (1 + JITTER * spread) * 1000), end_ms)


def warning_is_due(retry: Retry, created_ms: int, now_ms: int) -> bool:
    """Whether the sender should hear by now that a recipient is delayed."""
    return retry.warn_after is not None and now_ms - created_ms >= retry.warn_after * 1000
