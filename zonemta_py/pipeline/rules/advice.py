"""From what was observed of a provider to settings for a zone of its own, each with its evidence. Pure.

Nothing is advised that was not seen: limits only where the provider said that there is one, patience
only where it greylisted, more sessions only where all of them were in use and nobody complained.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zonemta_py.config.schema import Retry, Zone
from zonemta_py.core.codec import to_json

SEEN_LEAST = 20  # replies that make a case
SHARE_LEAST = 0.005  # of a provider's transactions
IN_USE = 0.9  # of the sessions: the limit is ours, not the peer's
TEXT_MAX = 90


@dataclass(frozen=True, slots=True)
class Observed:
    """A provider, from the events; transactions count, not recipients. Minutes are *clean* without a word of limits.

    ``limited`` of them spoke of limits, ``limited_sessions`` of sessions among those, for example ``said``.
    ``clean_per_minute``, ``clean_sessions``: what 90 % of the clean minutes stayed within.
    ``limited_per_minute``: the median of the others. ``busiest_sessions``: the most in any minute.
    ``greylisted`` recipients at first; 90 % of those that got through had done so after ``greylist_s``.
    """

    provider: str
    domains: Sequence[str]
    zones: Sequence[str]
    transactions: int
    limited: int
    limited_sessions: int
    said: str
    clean_per_minute: float | None
    limited_per_minute: float | None
    clean_sessions: float | None
    busiest_sessions: float
    greylisted: int
    greylist_s: float | None
    greylist_through: int


@dataclass(frozen=True, slots=True)
class Line:
    """A setting of a zone, and why."""

    key: str
    value: object
    evidence: str


def advise(seen: Observed, zone: Zone | None) -> list[Line]:
    """What the events say for a zone of this provider; ``zone``: the settings it had, where they are known."""
    lines = [*_limits(seen), *_patience(seen)]
    if not lines and zone is not None:
        lines += _more_sessions(seen, zone)
    return lines


def _limits(seen: Observed) -> Iterable[Line]:
    if seen.limited < SEEN_LEAST or seen.limited < SHARE_LEAST * seen.transactions:
        return
    said = f"'{_short(seen.said)}': {_of(seen.limited, seen.transactions)}"
    if 2 * seen.limited_sessions >= seen.limited:
        if seen.clean_sessions is not None:
            yield Line(
                "connections_per_domain",
                max(1, int(seen.clean_sessions)),
                f"{said}; 90 % of the minutes without it had at most {seen.clean_sessions:.1f} sessions",
            )
        return
    if seen.clean_per_minute is not None:
        minutes = f"90 % of the minutes without it had at most {seen.clean_per_minute:,.0f}"
        others = seen.limited_per_minute
        yield Line(
            "rate",
            f"{max(1, int(seen.clean_per_minute))}/m",
            f"{said}; {minutes}" + (f", half of those with it {others:,.0f} or more" if others else ""),
        )


def _patience(seen: Observed) -> Iterable[Line]:
    """The first delay: what was enough for nine of ten, on a whole minute; the ladder goes on as before."""
    if seen.greylist_s is None or seen.greylist_through < SEEN_LEAST:
        return
    minutes = max(1, -int(-seen.greylist_s // 60))
    later = [f"{int(delay_s)}s" for delay_s in Retry().delays if delay_s > 60 * minutes]
    yield Line(
        "retry",
        {"delays": [f"{minutes}m", *later]},
        f"{seen.greylisted:,} recipients were greylisted; of {seen.greylist_through:,} that got through later, "
        f"90 % had after {seen.greylist_s:,.0f} s",
    )


def _more_sessions(seen: Observed, zone: Zone) -> Iterable[Line]:
    most = zone.connections_per_domain
    if seen.busiest_sessions >= IN_USE * most and seen.limited == 0:
        yield Line(
            "connections_per_domain",
            2 * most,
            f"up to {seen.busiest_sessions:.1f} of {most} sessions were in use at once, "
            f"and none of {seen.transactions:,} transactions was told to slow down",
        )


def as_yaml(advice: Sequence[tuple[Observed, Sequence[Line]]], title: str) -> str:
    """A part of a configuration: a zone and its routes for each provider, a comment beside each line."""
    lines = [
        f"# {title}",
        "# Nothing is applied by itself: read the evidence, then take what convinces you.",
    ]
    if not advice:
        return "\n".join([*lines, "# These events give no reason to change anything.", ""])
    lines.append("zones:")
    for seen, found in advice:
        lines.append(f"  {zone_name(seen.provider)}:")
        for line in found:
            lines += [f"    # {line.evidence}", f"    {line.key}: {to_json(line.value).decode()}"]
    lines.append("routing:")
    for seen, _ in advice:
        route = '  - {{recipient_domain: "{}", zone: {}}}'
        lines += [route.format(domain, zone_name(seen.provider)) for domain in seen.domains]
    return "\n".join([*lines, ""])


def zone_name(provider: str) -> str:
    """A provider's name as a zone may be called."""
    return re.sub(r"[^a-z0-9_-]", "-", provider.lower())


def _of(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} transactions ({100 * part / whole:.1f} %)"


def _short(text: str) -> str:
    """One line of a reply, fit for a comment."""
    flat = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    return flat if len(flat) <= TEXT_MAX else flat[: TEXT_MAX - 1] + "…"
