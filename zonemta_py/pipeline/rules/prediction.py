"""What a simulated delivery is given, and what it predicts. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

ATTEMPTS_MAX = 5  # later attempts are treated as this one
SHARES = (0.5, 0.95, 0.99)
LIMITS = ("rate", "connections", "connections_per_domain")


@dataclass(frozen=True, slots=True)
class PeerModel:
    """How a destination answers.

    ``times_s``: evenly spaced quantiles of the time of a transaction. ``deferred`` and ``bounced``: the share of
    recipients, by attempt, from the first.
    """

    times_s: Sequence[float]
    deferred: Sequence[float] = (0.0,)
    bounced: Sequence[float] = (0.0,)


@dataclass(frozen=True, slots=True)
class SimulatedMessage:
    """The recipients of one message at one destination."""

    arrival_s: float
    destination: str
    recipients: int


@dataclass(slots=True)
class Prediction:
    """The result; times are from the first arrival. ``limited_s``: how long each limit held mail back."""

    delivered: int = 0
    bounced: int = 0
    expired: int = 0
    deferrals: int = 0
    transactions: int = 0
    completed_s: float = 0.0
    backlog_peak: int = 0
    quantiles_s: tuple[float, ...] = ()
    limited_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LIMITS, 0.0))
    backlog: list[int] = field(default_factory=list)  # waiting recipients, maximum of each minute


def share_at(shares: Sequence[float], attempt: int) -> float:
    """The share of recipients at an attempt, the first is 1; later ones are as the last that is known."""
    return shares[min(attempt, len(shares)) - 1] if shares else 0.0


def quantiles(ages: list[tuple[float, int]]) -> tuple[float, ...]:
    """The quantiles SHARES of ``ages``: pairs of age and number of recipients."""
    total, seen = sum(count for _, count in ages), 0
    found: list[float] = []
    ranks = [share * total for share in SHARES]
    for age_s, count in sorted(ages):
        seen += count
        while len(found) < len(ranks) and seen >= ranks[len(found)]:
            found.append(age_s)
    return tuple(found)
