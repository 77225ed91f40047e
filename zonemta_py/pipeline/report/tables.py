"""The tables of a report from sums of attempts (``attempt_sums``), by Arrow: they are small beside the events."""

from collections import Counter
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from zonemta_py.config.warmup import WarmupSchedule
from zonemta_py.pipeline.report.attempts import ATTEMPTS, DAY_MS, classes_of, quantiles_ms
from zonemta_py.pipeline.report.replies import templates_of

QUANTILES = (0.5, 0.95, 0.99)
QUANTILE_NAMES = tuple(f"p{round(100 * share)}_ms" for share in QUANTILES)
REPLY_KEYS = ("provider", "event", "phase", "code", "status", "kind")
WARMUP = pa.schema(
    [
        ("day", pa.date32()), ("address", pa.string()), ("provider", pa.string()), ("allowed", pa.int64()), ("sent", pa.int64()),
        ("over", pa.int64()), ("kept", pa.bool_()),
    ]
)  # fmt: skip


def rates_table(sums: pa.Table) -> pa.Table:
    """For each value of each dimension, for each tag, and for ``all``: counts, rates, and quantiles of the time to delivery.

    ``sums``: rows of the part ``rates``, one for each dimension and value.
    """
    rows = sums.sort_by([("dimension", "ascending"), ("value", "ascending")])
    delivered, deferred, bounced, expired = (rows.column(name) for name in ATTEMPTS)
    failed = pc.add(bounced, expired)
    finals = pc.add(delivered, failed)
    attempts = pc.add(finals, deferred)
    columns = {name: rows.column(name) for name in ("dimension", "value", *ATTEMPTS)}
    columns |= {
        "attempts": attempts,
        "delivery_rate": _share(delivered, finals),
        "bounce_rate": _share(failed, finals),
        "deferral_rate": _share(deferred, attempts),
    }
    return pa.table({**columns, **dict(zip(QUANTILE_NAMES, quantiles_ms(rows, QUANTILES), strict=True))})


def _share(part: pa.ChunkedArray, whole: pa.ChunkedArray) -> pa.ChunkedArray:
    """``part`` / ``whole``, null where ``whole`` is 0."""
    return pc.divide(part.cast(pa.float64()), pc.if_else(pc.greater(whole, 0), whole.cast(pa.float64()), None))  # fmt: skip


def hours_table(rows: pa.Table) -> pa.Table:
    """``hour``, ``zone`` and counts, by hour. ``rows``: of the part ``hours``."""
    ordered = rows.sort_by([("at_ms", "ascending"), ("zone", "ascending")])
    hour = pc.multiply(ordered.column("at_ms"), 1000).cast(pa.timestamp("us", "UTC"))
    return pa.table({"hour": hour, **{name: ordered.column(name) for name in ("zone", *ATTEMPTS)}})


def days_table(rows: pa.Table) -> pa.Table:
    """``day``, ``address``, ``provider`` and counts, by day. ``rows``: of the part ``days``."""
    keys = ("address", "provider")
    whole = rows.select(["at_ms", *keys, *ATTEMPTS]).combine_chunks()  # which sorts in half the time
    ordered = whole.sort_by([(name, "ascending") for name in ("at_ms", *keys)])
    day = pc.divide(ordered.column("at_ms"), DAY_MS).cast(pa.int32()).cast(pa.date32())
    return pa.table({"day": day, **{name: ordered.column(name) for name in (*keys, *ATTEMPTS)}})


def replies_table(replies: pa.Table) -> pa.Table:
    """A row for each kind of reply to an attempt that failed, with reason, template and an example; the most frequent first.

    ``replies``: of the part ``replies``, one for each of REPLY_KEYS and the class in the events.
    """
    named = replies.select([*REPLY_KEYS, "count", "example"])
    named = named.append_column("reason", pa.array(classes_of(replies, "example"), pa.string()))
    # Events of earlier versions have no class: theirs may be the same reply.
    summed = named.group_by([*REPLY_KEYS, "reason"]).aggregate([("count", "sum"), ("example", "min")])
    summed = summed.rename_columns(
        [name.removesuffix("_sum").removesuffix("_min") for name in summed.column_names]
    )
    order = [("count", "descending"), *((name, "ascending") for name in (*REPLY_KEYS, "reason"))]
    rows = summed.sort_by(order)
    kinds = rows.column("kind").to_pylist()
    weights: Counter[str | None] = Counter()
    for kind, count in zip(kinds, rows.column("count").to_pylist(), strict=True):
        weights[kind] += count
    templates = templates_of(weights)
    columns = {name: rows.column(name) for name in REPLY_KEYS}
    columns["code"] = rows.column("code").cast(pa.int64())
    return pa.table(
        {
            **columns,
            "reason": rows.column("reason"),
            "template": pa.array([templates.get(kind or "") for kind in kinds], pa.string()),
            "count": rows.column("count"),
            "example": rows.column("example"),
        }
    )


def warmup_table(days: pa.Table, warmups: Iterable[WarmupSchedule]) -> pa.Table:
    """``day``, ``address``, ``provider`` (empty: all), ``allowed``, ``sent``, ``over`` and ``kept`` of each allowance.

    ``days``: rows of ``days_table``. Every attempt counts, because peers count them all.
    """
    allowances: Sequence[tuple[object, str, str, int]] = [
        (day, each.address, each.provider, allowed) for each in warmups for day, allowed in each.days()
    ]
    addresses = pa.array(sorted({address for _, address, _, _ in allowances}), pa.string())
    sent: Counter[tuple[object, str, str]] = Counter()
    for row in days.filter(pc.is_in(days.column("address"), addresses)).to_pylist():
        attempts = sum(row[name] for name in ATTEMPTS)
        for provider in {row["provider"], ""}:
            sent[row["day"], row["address"], provider] += attempts
    rows = []
    for day, address, provider, allowed in allowances:
        done = sent[day, address, provider]
        rows.append((day, address, provider, allowed, done, max(done - allowed, 0), done <= allowed))
    columns = zip(*rows, strict=True) if rows else [()] * len(WARMUP)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, WARMUP, strict=True)],
        schema=WARMUP,
    )
