"""Recommends settings for the zone of a provider from its statistics, each with its evidence. Pure.

A limit is recommended only when replies of the provider mention one, a longer first delay only when it
greylists, more connections only when all of them were in use and no reply mentioned a limit.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zonemta_py.config.zones import Retry, Zone
from zonemta_py.core.codec import to_json
from zonemta_py.core.text import one_line

REPLIES_MIN = 20  # fewer replies are not evidence
SHARE_MIN = 0.005  # of a provider's transactions
IN_USE_MIN = 0.9  # of the connections: then our own limit holds mail back, not the peer's
TEXT_MAX = 90


@dataclass(frozen=True, slots=True)
class ProviderStats:
    """Statistics of a provider, from the events. A minute is *clean* when no reply mentioned a limit.

    ``limited``: transactions whose reply mentioned a limit; ``limited_sessions``: a limit of sessions.
    ``limit_reply``: the most frequent of these replies, masked.
    ``clean_per_minute``, ``clean_sessions``: transactions and sessions, 90 % quantile of the clean minutes.
    ``limited_per_minute``: transactions, median of the other minutes. ``busiest_sessions``: maximum of all minutes.
    ``greylisted``: recipients whose first attempt was greylisted; ``greylist_through`` of them were delivered
    later, 90 % of those within ``greylist_s``.
    """

    provider: str
    domains: Sequence[str]
    zones: Sequence[str]
    transactions: int
    limited: int
    limited_sessions: int
    limit_reply: str
    clean_per_minute: float | None
    limited_per_minute: float | None
    clean_sessions: float | None
    busiest_sessions: float
    greylisted: int
    greylist_s: float | None
    greylist_through: int


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A setting of a zone, and the evidence for it."""

    key: str
    value: object
    evidence: str


def advise(stats: ProviderStats, zone: Zone | None) -> list[Recommendation]:
    """Recommendations for a zone of this provider; ``zone``: the settings that were in force, if known."""
    found = [*_limits(stats), *_first_delay(stats)]
    if not found and zone is not None:
        found += _more_connections(stats, zone)
    return found


def _limits(stats: ProviderStats) -> Iterable[Recommendation]:
    if stats.limited < REPLIES_MIN or stats.limited < SHARE_MIN * stats.transactions:
        return
    reply = f"'{_short(stats.limit_reply)}': {_share_of(stats.limited, stats.transactions)}"
    if 2 * stats.limited_sessions >= stats.limited:
        if stats.clean_sessions is not None:
            yield Recommendation(
                "connections_per_domain",
                max(1, int(stats.clean_sessions)),
                f"{reply}; 90 % of the minutes without it had at most {stats.clean_sessions:.1f} sessions",
            )
        return
    if stats.clean_per_minute is not None:
        minutes = f"90 % of the minutes without it had at most {stats.clean_per_minute:,.0f}"
        others = stats.limited_per_minute
        yield Recommendation(
            "rate",
            f"{max(1, int(stats.clean_per_minute))}/m",
            f"{reply}; {minutes}" + (f", half of those with it {others:,.0f} or more" if others else ""),
        )


def _first_delay(stats: ProviderStats) -> Iterable[Recommendation]:
    """The first delay: enough for 90 % of the recipients, in whole minutes; later delays stay as they are."""
    if stats.greylist_s is None or stats.greylist_through < REPLIES_MIN:
        return
    minutes = max(1, -int(-stats.greylist_s // 60))
    later = [f"{int(delay_s)}s" for delay_s in Retry().delays if delay_s > 60 * minutes]
    yield Recommendation(
        "retry",
        {"delays": [f"{minutes}m", *later]},
        f"{stats.greylisted:,} recipients were greylisted; of the {stats.greylist_through:,} that were delivered "
        f"later, 90 % were within {stats.greylist_s:,.0f} s",
    )


def _more_connections(stats: ProviderStats, zone: Zone) -> Iterable[Recommendation]:
    limit = zone.connections_per_domain
    if stats.busiest_sessions >= IN_USE_MIN * limit and stats.limited == 0:
        yield Recommendation(
            "connections_per_domain",
            2 * limit,
            f"up to {stats.busiest_sessions:.1f} of {limit} sessions were in use at once, "
            f"and no reply to {stats.transactions:,} transactions mentioned a limit",
        )


def as_yaml(advice: Sequence[tuple[ProviderStats, Sequence[Recommendation]]], title: str) -> str:
    """Part of a configuration: a zone and its routes for each provider, the evidence above each setting."""
    lines = [
        f"# {title}",
        "# Nothing is applied automatically: read the evidence, then copy the settings that you want.",
    ]
    if not advice:
        return "\n".join([*lines, "# The events give no reason to change a setting.", ""])
    lines.append("zones:")
    for stats, found in advice:
        lines.append(f"  {zone_name(stats.provider)}:")
        for each in found:
            lines += [f"    # {each.evidence}", f"    {each.key}: {to_json(each.value).decode()}"]
    lines.append("routing:")
    for stats, _ in advice:
        route = '  - {{recipient_domain: "{}", zone: {}}}'
        lines += [route.format(domain, zone_name(stats.provider)) for domain in stats.domains]
    return "\n".join([*lines, ""])


def zone_name(provider: str) -> str:
    """A valid zone name for a provider."""
    return re.sub(r"[^a-z0-9_-]", "-", provider.lower())


def _share_of(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} transactions ({100 * part / whole:.1f} %)"


def _short(text: str) -> str:
    """A reply as one printable line of at most TEXT_MAX characters, for a comment."""
    flat = one_line(" ".join(text.split()), "?")
    return flat if len(flat) <= TEXT_MAX else flat[: TEXT_MAX - 1] + "…"
