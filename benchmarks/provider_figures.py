"""The figures of ``providers.py``, from the accounts of the receivers. Pure; times are monotonic seconds."""

import bisect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from zonemta_py.bench.measure import quantile
from zonemta_py.sink.provider import ClientAccount, SinkProvider
from zonemta_py.sink.sink_limits import LimitName

WITHIN_S = 1.0  # figures of an address that comes back are for each such period
SHOWN_S = 20.0


def latency(
    accepted_s: Sequence[float],
    delivered_s: Sequence[float],
    first: int,
    from_s: float = 0.0,
    until_s: float = inf,
) -> dict[str, float | int]:
    """From the 250 to the receiver's final dot, in ms; the first message is number ``first``.

    Of those whose 250 came from ``from_s`` on and before ``until_s``.
    """
    waits_ms = sorted(
        max(0.0, delivered_s[first + number] - at_s) * 1000
        for number, at_s in enumerate(accepted_s)
        if from_s <= at_s < until_s
    )
    return {
        "messages": len(waits_ms), "p50_ms": quantile(waits_ms, 0.5), "p95_ms": quantile(waits_ms, 0.95),
        "p99_ms": quantile(waits_ms, 0.99), "most_ms": round(waits_ms[-1], 1),
    }  # fmt: skip


def kinds(provider: SinkProvider) -> dict[str, int]:
    """How many violations of each limit it has seen."""
    return dict(Counter(str(each.limit) for each in provider.violations))


def share_of_rates(provider: SinkProvider) -> float | None:
    """Which part of what the rates allow the provider got, in per cent.

    For each address in whole periods of its longest rate, after the first one and until its last message; None if there
    was none.
    """
    got, allowed = 0, 0.0
    for account in provider.clients.values():
        period_s = max(rate.per_s for rate in provider.limits.rate)
        times_s = account.accepted.times_s.tolist()
        if not times_s:
            continue
        first_s = times_s[0] + period_s
        periods = int((times_s[-1] - first_s) / period_s)
        end_s = first_s + periods * period_s
        got += bisect.bisect_left(times_s, end_s) - bisect.bisect_left(times_s, first_s)
        allowed += min(rate.events / rate.per_s for rate in provider.limits.rate) * periods * period_s
    return round(got / allowed * 100, 1) if allowed else None


@dataclass(slots=True)
class Block:
    """When an address was blocked, and its refusals since then: (seconds, how many until then)."""

    blocked_s: float
    unblocked_s: float
    open_sessions: int
    refusals: list[tuple[float, int]]

    def row(self, providers: Mapping[str, SinkProvider], client: str, at: str) -> dict[str, object]:
        """What the address did meanwhile and after."""
        account = providers[at].account(client)
        back_s = [each for each in account.accepted.times_s.tolist() if each > self.unblocked_s]
        return {
            "client": client, "provider": at, "open_sessions": self.open_sessions,
            "refused": account.refused[LimitName.BLOCKED],
            "first_refusal_s": round(self.refusals[0][0], 3) if self.refusals else None,
            "last_refusal_s": round(self.refusals[-1][0], 3) if self.refusals else None,
            "elsewhere": sum(
                _between(each.account(client), self.blocked_s, self.unblocked_s)
                for name, each in providers.items() if name != at
            ),
            "back_after_unblock_s": round(back_s[0] - self.unblocked_s, 2) if back_s else None,
            "per_second_since": [
                _between(account, start_s, start_s + WITHIN_S)
                for start_s in _starts(back_s)
            ],
        }  # fmt: skip


def _starts(back_s: Sequence[float]) -> list[float]:
    if not back_s:
        return []
    length_s = min(SHOWN_S, back_s[-1] - back_s[0])
    return [back_s[0] + number * WITHIN_S for number in range(int(length_s / WITHIN_S))]


def _between(account: ClientAccount, start_s: float, end_s: float) -> int:
    times_s = account.accepted.times_s
    return bisect.bisect_left(times_s, end_s) - bisect.bisect_left(times_s, start_s)
