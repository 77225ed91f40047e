"""The metrics of sending: what is used of the limits of providers, and how far warm-ups are. Pure.

Of paths from an address to a provider those PATHS_MAX that need most attention, then have most attempts, so that neither
the mail nor the number of providers decides how many series there are.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from zonemta_py.admin.paths import is_lowered, level
from zonemta_py.admin.requests import Row

PATHS_MAX = 500
RATES_MAX = 1000
CLASSES_MAX = 1000
WARMUPS_MAX = 500
PATH_LABELS = ("provider", "address")
WARMUP = ("address", "provider")

Values = list[tuple[tuple[str, ...], float]]  # of labels, and the number


class SeriesFamily(NamedTuple):
    """A gauge with its series."""

    name: str
    help_text: str
    labels: tuple[str, ...]
    values: Values


def shaping_series(rows: Sequence[Row], warmups: Sequence[Row]) -> Iterator[SeriesFamily]:
    """All of them."""
    first = sorted(rows, key=lambda row: (level(row), -row["attempts"]))[:PATHS_MAX]
    paths = {(row["provider"], row["address"]): row for row in first}
    yield SeriesFamily(
        "zonemta_provider_sessions", "Sessions with a provider that are in use.", PATH_LABELS,
        [(path, row["sessions"]) for path, row in paths.items()],
    )  # fmt: skip
    yield SeriesFamily(
        "zonemta_provider_sessions_max", "As many as there may be, where there is a limit.", PATH_LABELS,
        [(path, row["sessions_max"]) for path, row in paths.items() if row["sessions_max"] is not None],
    )  # fmt: skip
    yield SeriesFamily(
        "zonemta_provider_rate_used_ratio", "How much of a rate is used, from 0 to 1.", (*PATH_LABELS, "rate"),
        [each for path, row in paths.items() for each in _rates(path, row)][:RATES_MAX],
    )  # fmt: skip
    yield SeriesFamily(
        "zonemta_provider_paused", "1 while nothing is sent: paused by replies, or suspended by an operator.", PATH_LABELS,
        [(path, int(bool(row["paused_until_ms"] or row["suspended"]))) for path, row in paths.items()],
    )  # fmt: skip
    yield SeriesFamily(
        "zonemta_provider_pace_ratio", "The messages a minute to which sending is lowered, of those of the limits.", PATH_LABELS,
        [
            (path, row["pace_per_min"] / max(1, row["full_per_min"]))
            for path, row in paths.items() if is_lowered(row)
        ],
    )  # fmt: skip
    yield SeriesFamily(
        "zonemta_provider_refused_recent",
        "Replies of the last interval of the controller that refuse or defer mail for reasons of the sender.", PATH_LABELS,
        [(path, row["refused"]) for path, row in paths.items()],
    )  # fmt: skip
    yield SeriesFamily(
        "zonemta_provider_last_refusals", "The last five refusals and deferrals, by their class.", (*PATH_LABELS, "class"),
        [each for path, row in paths.items() for each in _classes(path, row)][:CLASSES_MAX],
    )  # fmt: skip
    yield SeriesFamily(
        "zonemta_provider_waiting", "Destinations that wait for a limit.", ("provider",),
        [((name,), count) for name, count in {row["provider"]: row["waiting"] for row in paths.values()}.items()],
    )  # fmt: skip
    yield from _warmup_series(warmups)


def _classes(path: tuple[str, str], row: Row) -> Iterator[tuple[tuple[str, ...], float]]:
    counts: Counter[str] = Counter(row["last_classes"])
    for name, count in sorted(counts.items()):
        yield (*path, name), count


def _rates(path: tuple[str, str], row: Row) -> Iterator[tuple[tuple[str, ...], float]]:
    for kind, name in (("", "rates"), ("connect ", "connect_rates")):
        for each in row[name]:
            yield (*path, kind + each["rate"]), each["used"] / each["of"]


def _warmup_series(warmups: Sequence[Row]) -> Iterator[SeriesFamily]:
    known = [((row["address"], row["provider"]), row) for row in warmups]
    known.sort(key=lambda item: (item[1]["allowed"] is None, -item[1]["late_days"], -item[1]["sent"]))
    del known[WARMUPS_MAX:]
    yield SeriesFamily(
        "zonemta_warmup_sent", "Recipients of today (UTC) from an address with a warm-up.", WARMUP,
        [(path, row["sent"]) for path, row in known],
    )  # fmt: skip
    yield SeriesFamily(
        "zonemta_warmup_allowed", "As many as the warm-up allows today, until its last day.", WARMUP,
        [(path, row["allowed"]) for path, row in known if row["allowed"] is not None],
    )  # fmt: skip
    yield SeriesFamily(
        "zonemta_warmup_late_days", "By how many days the warm-up is late.", WARMUP,
        [(path, row["late_days"]) for path, row in known if row["allowed"] is not None],
    )  # fmt: skip
