"""Hours in which a rate of a provider deviates from its own history, and the replies that explain it, from sums of attempts.

Robust statistics without training: the rate of an hour is compared with the median of the hours before it,
in units of their median absolute deviation times 1.4826 (the standard deviation, for a normal distribution), or
of the standard error of a rate of that number of attempts, whichever is larger.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from zonemta_py.pipeline.events.log import EventLog
from zonemta_py.pipeline.events.replies import templates_of
from zonemta_py.pipeline.events.rows import ATTEMPTS, HOUR_MS, classes_of
from zonemta_py.pipeline.report.attempts import part_of
from zonemta_py.pipeline.report.sums import attempt_sums
from zonemta_py.pipeline.spark.output import RowsOutput, locks_output
from zonemta_py.pipeline.spark.session import spark_errors
from zonemta_py.pipeline.spark.tables import Progress

MEASURES = {"deferral": ("deferred",), "bounce": ("bounced", "expired")}
MAD_TO_SIGMA = 1.4826
DEVIATION_MIN = 0.01  # for a rate that was nearly constant
TEMPLATES_SHOWN = 3  # with each hour
_REPLIES = pa.list_(
    pa.struct(
        [("nth", pa.int32()), ("count", pa.int64()), ("reason", pa.string()), ("template", pa.string())]
    )
)
ANOMALY = pa.schema(
    [
        ("provider", pa.string()), ("hour", pa.timestamp("us", "UTC")), ("measure", pa.string()), ("rate", pa.float64()),
        ("usual", pa.float64()), ("score", pa.float64()), ("attempts", pa.int64()), ("replies", _REPLIES),
    ]
)  # fmt: skip
Rates = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class AnomalyThresholds:
    """An anomaly is an hour of at least ``attempts``, at least ``score`` deviations away from the median.

    The median is of the last ``history_max`` such hours before it, at least ``history``.
    """

    score: float = 4.0
    attempts: int = 50
    history: int = 24
    history_max: int = 168


@dataclass(frozen=True, slots=True)
class AnomalyRequest:
    """``output``: for the rows, see ``RowsOutput``."""

    log: EventLog
    thresholds: AnomalyThresholds
    output: str | None = None
    overwrite: bool = False


@locks_output
def find_anomalies(
    spark: SparkSession, request: AnomalyRequest, progress: Progress
) -> list[dict[str, Any]]:
    """The anomalies, latest first. Raises LocalError."""
    output = RowsOutput(spark, request.output, overwrite=request.overwrite)
    progress("comparing hours")
    with spark_errors(request.log.path):
        sums = attempt_sums(spark, request.log)
    unusual = unusual_hours(part_of(sums, "provider_hours"), request.thresholds)
    found = explained(unusual, part_of(sums, "replies"))
    output.write(found)
    output.keep_damage(request.log.damage)
    rows: list[dict[str, Any]] = found.to_pylist()
    rows.sort(key=lambda row: (row["provider"], row["measure"]))
    return sorted(rows, key=lambda row: row["hour"], reverse=True)


class UnusualHour(NamedTuple):
    """``at_ms``: its begin. ``usual``: the median of the hours before it."""

    provider: str
    at_ms: int
    measure: str
    rate: float
    usual: float
    score: float
    attempts: int


def unusual_hours(hours: pa.Table, thresholds: AnomalyThresholds) -> list[UnusualHour]:
    """The anomalies by provider, hour and measure. ``hours``: rows of the part ``provider_hours`` of the sums, one for each key."""
    attempts = sum(hours.column(name).to_numpy() for name in ATTEMPTS)
    enough = hours.filter(pa.array(np.asarray(attempts) >= thresholds.attempts, pa.bool_()))
    ordered = enough.sort_by([("provider", "ascending"), ("at_ms", "ascending")])
    providers = ordered.column("provider").combine_chunks().dictionary_encode()
    codes = providers.indices.to_numpy()
    ends = np.flatnonzero(np.diff(codes, append=-1)) + 1
    found: list[UnusualHour] = []
    begin = 0
    for end in map(int, ends):
        rows = ordered.slice(begin, end - begin)
        if rows.num_rows > thresholds.history:
            found += _of_provider(providers.dictionary[codes[begin]].as_py(), rows, thresholds)
        begin = end
    return sorted(found)


def _of_provider(provider: str, rows: pa.Table, thresholds: AnomalyThresholds) -> Iterator[UnusualHour]:
    """``rows``: the hours of one provider, in order."""
    counts = {name: rows.column(name).to_numpy() for name in ATTEMPTS}
    attempts, at_ms = sum(counts.values()), rows.column("at_ms").to_numpy()
    for measure, events in MEASURES.items():
        rates = sum(counts[event] for event in events) / np.asarray(attempts)
        for n, usual, score in unusual_rates(rates, np.asarray(attempts), thresholds):
            yield UnusualHour(
                provider=provider, at_ms=int(at_ms[n]), measure=measure, rate=float(rates[n]), usual=usual, score=score,
                attempts=int(attempts[n]),
            )  # fmt: skip


def unusual_rates(
    rates: Rates, attempts: npt.NDArray[np.int64], thresholds: AnomalyThresholds
) -> Iterator[tuple[int, float, float]]:
    """The number, the usual rate and the score of each hour that deviates by ``thresholds.score`` or more."""
    first, most = thresholds.history, thresholds.history_max
    if len(rates) <= first:
        return
    usual = np.full(len(rates), np.nan)
    for n in range(first, min(most, len(rates))):
        usual[n] = _median(rates[:n])
    if len(rates) > most:
        windows = np.lib.stride_tricks.sliding_window_view(rates, most)[:-1]
        middle = (most - 1) // 2
        usual[most:] = np.partition(windows, middle, axis=1)[:, middle]
    least = np.maximum(np.sqrt(usual * (1 - usual) / attempts), DEVIATION_MIN)
    # The deviation is at least this, so that few hours need their own.
    for n in map(int, np.flatnonzero(np.abs(rates - usual) / least >= thresholds.score)):
        history = rates[max(0, n - most) : n]
        mad = _median(np.abs(history - usual[n]))
        score = (rates[n] - usual[n]) / max(MAD_TO_SIGMA * mad, least[n])
        if abs(score) >= thresholds.score:
            yield n, float(usual[n]), float(score)


def _median(values: Rates) -> float:
    """The lower median."""
    return float(np.sort(values)[(len(values) - 1) // 2])


def explained(unusual: list[UnusualHour], replies: pa.Table) -> pa.Table:
    """Rows of ANOMALY. ``replies``: rows of the part ``replies`` of the sums, with those of these hours."""
    shown = _explanations(unusual, replies)
    rows = [
        (
            each.provider, each.at_ms * 1000, each.measure, each.rate, each.usual, each.score, each.attempts,
            shown.get((each.provider, each.at_ms, each.measure)),
        )
        for each in unusual
    ]  # fmt: skip
    columns = zip(*rows, strict=True) if rows else [()] * len(ANOMALY)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, ANOMALY, strict=True)],
        schema=ANOMALY,
    )


def hours_of(unusual: list[UnusualHour]) -> pa.Array:
    """The begins of these hours, each once."""
    return pa.array(sorted({each.at_ms // HOUR_MS * HOUR_MS for each in unusual}), pa.int64())


def _explanations(
    unusual: list[UnusualHour], replies: pa.Table
) -> dict[tuple[str, int, str], list[dict[str, object]]]:
    """The most frequent templates of each hour."""
    keys = {each[:3] for each in unusual}
    near = replies.filter(pc.is_in(replies.column("at_ms"), hours_of(unusual)))
    measure_of = {event: measure for measure, events in MEASURES.items() for event in events}
    counted: Counter[tuple[tuple[str, int, str], str, str | None]] = Counter()
    rows = near.select(["provider", "at_ms", "event", "kind", "count"]).to_pylist()
    weights: Counter[str | None] = Counter()
    for row, reason in zip(rows, classes_of(near, "example"), strict=True):
        key = (row["provider"], row["at_ms"], measure_of.get(row["event"], ""))
        if key in keys:
            counted[key, reason, row["kind"]] += row["count"]
            weights[row["kind"]] += row["count"]
    templates = templates_of(weights)
    by_hour: defaultdict[tuple[str, int, str], Counter[tuple[str, str | None]]] = defaultdict(Counter)
    for (key, reason, kind), count in counted.items():
        by_hour[key][reason, templates.get(kind or "")] += count
    return {key: _most(together) for key, together in by_hour.items()}


def _most(together: Counter[tuple[str, str | None]]) -> list[dict[str, object]]:
    ordered = sorted(together.items(), key=lambda item: (-item[1], item[0][1] or "", item[0][0]))
    return [
        {"nth": n, "count": count, "reason": reason, "template": template}
        for n, ((reason, template), count) in enumerate(ordered[:TEMPLATES_SHOWN], 1)
    ]
