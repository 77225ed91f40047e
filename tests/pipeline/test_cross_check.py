"""Every table of a report, compared with what DuckDB counts: 500,000 records with repeats, late and damaged segments."""

import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.campaigns import no_progress, open_log, report, sorted_rows, write_sent_plan
from tests.pipeline.cross_check_log import UNUSUAL_HOURS, write_log
from tests.pipeline.feedback.test_dsn import complaint
from tests.pipeline.segments import HOUR_BEGINS_MS, HOUR_MS
from zonemta_py.config.warmup import WarmupSchedule
from zonemta_py.pipeline.events.replies import WILD, masked
from zonemta_py.pipeline.events.rows import provider_of

duckdb = pytest.importorskip("duckdb")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from zonemta_py.pipeline.report.job import ReportRequest

EVENTS = ("delivered", "deferred", "bounced", "expired")
COUNTS = ", ".join(f"count(*) FILTER (event = '{name}') AS {name}" for name in EVENTS)
DIMENSIONS = ("zone", "provider", "domain", "address", "campaign", "tenant")
BEGINS = datetime.fromtimestamp(HOUR_BEGINS_MS / 1000, UTC)
WARMUPS = (
    WarmupSchedule("203.0.113.1", BEGINS.date(), (1000, 30_000, 100_000, 5)),
    WarmupSchedule("203.0.113.2", BEGINS.date(), (10, 100_000), "google"),
)
REASONS = {  # of the replies of the log
    (421, "4.7.0"): "connection_limited", (451, "4.7.1"): "greylisted", (0, "4.4.1"): "no_answer",
    (550, "5.1.1"): "invalid_recipient", (552, "5.2.2"): "mailbox_full", (451, "4.4.7"): "expired",
}  # fmt: skip
PLANNED, COMPLAINED = 3000, 300  # recipients of a campaign of their own; of these, who complain
UNUSUAL = f"""
    WITH hours AS (
        SELECT provider, hour_s, count(*) AS attempts, {COUNTS} FROM attempts GROUP BY ALL HAVING count(*) >= 50
    ), rates AS (
        SELECT provider, hour_s, attempts, 'deferral' AS measure, deferred / attempts AS rate FROM hours
        UNION ALL SELECT provider, hour_s, attempts, 'bounce', (bounced + expired) / attempts FROM hours
    ), before AS (
        SELECT *, list(rate) OVER (PARTITION BY provider, measure ORDER BY hour_s ROWS BETWEEN 168 PRECEDING AND 1 PRECEDING) AS history FROM rates
    ), medians AS (
        SELECT *, list_sort(history)[(len(history) - 1) // 2 + 1] AS usual FROM before WHERE len(history) >= 24
    ), deviations AS (
        SELECT *, list_sort(list_transform(history, lambda each: abs(each - usual)))[(len(history) - 1) // 2 + 1] AS mad FROM medians
    ), scores AS (
        SELECT *, (rate - usual) / greatest(1.4826 * mad, sqrt(usual * (1 - usual) / attempts), 0.01) AS score FROM deviations
    ) SELECT provider, hour_s, measure, attempts, rate, usual, score FROM scores WHERE abs(score) >= 4 ORDER BY ALL
"""


@dataclass(frozen=True, slots=True)
class CrossCheck:
    """An event log, what DuckDB has read of it, and the complete report, with a plan and the complaints ``about`` it."""

    request: "ReportRequest"
    connection: Any
    sums: dict[str, Any]
    about: list[str]

    @property
    def output(self) -> str:
        return self.request.output

    def counted(self, query: str) -> list[tuple[Any, ...]]:
        return sorted(self.connection.execute(query).fetchall())


@pytest.fixture(scope="module")
def checked(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> CrossCheck:
    """The log is written by the relay's own writer. Messages in the ledger of a plan have its campaign."""
    from zonemta_py.pipeline.report.job import ReportRequest

    directory = tmp_path_factory.mktemp("cross-check")
    events = directory / "events"
    (directory / "unique.jsonl").write_bytes(b"".join(write_log(events)))
    assert len(open_log(spark, events).damaged) == 4
    connection = duckdb.connect()
    connection.create_function("provider_of", provider_of, ["VARCHAR"], "VARCHAR")
    connection.create_function("masked", masked, ["VARCHAR"], "VARCHAR")
    connection.execute(f"""
        CREATE TABLE attempts AS SELECT * EXCLUDE (provider), coalesce(nullif(provider, ''), provider_of(domain)) AS provider, source_ip AS address,
            time_ms // {HOUR_MS} * {HOUR_MS // 1000} AS hour_s, time_ms // {24 * HOUR_MS} AS day_number
        FROM read_json('{directory}/unique.jsonl', format = 'newline_delimited', union_by_name = true, sample_size = -1)
        WHERE event IN {EVENTS}
    """)
    plan, dsn, about = complaints_of_a_plan(spark, directory, connection)
    request = ReportRequest(
        str(events), plans=[plan], output=f"{directory}/report", warmups=WARMUPS, reports=[dsn]
    )
    return CrossCheck(request, connection, report(spark, request), about)


def complaints_of_a_plan(
    spark: "SparkSession", directory: Path, connection: Any
) -> tuple[str, str, list[str]]:
    """A plan that has sent some of the messages, the output of ``dsn`` of complaints, and the addresses that they are about."""
    from zonemta_py.pipeline.feedback.reports import DsnRequest, read_reports

    connection.execute(f"""
        CREATE TABLE planned AS SELECT message, min(recipient) AS recipient, arg_min(domain, recipient) AS domain
        FROM attempts GROUP BY message ORDER BY message LIMIT {PLANNED}
    """)
    sent = connection.execute("SELECT message, recipient FROM planned ORDER BY ALL").fetchall()
    plan = directory / "plan"
    rows = [
        ("planned", f"k{n}", "r:25", to, "accepted", 250, "", [message], False, 1)
        for n, (message, to) in enumerate(sent)
    ]
    write_sent_plan(spark, plan, "s@example.com", rows)
    about = [to for _, to in sent[:COMPLAINED]]
    mail = directory / "mail" / "new"
    mail.mkdir(parents=True)
    date = f"Date: {format_datetime(BEGINS)}\n".encode()
    for n, to in enumerate([*about, "stranger@nowhere.example"]):
        (mail / str(n)).write_bytes(date + complaint(to))
    dsn = str(directory / "dsn")
    read_reports(spark, DsnRequest([str(mail.parent)], [str(plan)], dsn), no_progress)
    return str(plan), dsn, about


def rows_of(table: Any, *names: str) -> Iterator[tuple[Any, ...]]:
    for row in table.select(*names).collect():
        yield tuple(row)


def test_rates(spark: "SparkSession", checked: CrossCheck) -> None:
    """Counts are equal; quantiles differ by the width of a bucket at most."""
    counted = checked.connection.execute(f"SELECT {COUNTS} FROM attempts").fetchone()
    assert tuple(checked.sums[name] for name in EVENTS) == counted
    campaign = "CASE WHEN message IN (SELECT message FROM planned) THEN 'planned' ELSE campaign END"
    selects = [
        "SELECT 'all' AS dimension, '' AS value, * FROM attempts",
        "SELECT 'tag', unnest(tags), * FROM attempts",
    ]
    columns = {name: name for name in DIMENSIONS} | {"campaign": campaign}
    selects += [f"SELECT '{name}', {column}, * FROM attempts" for name, column in columns.items()]
    expected = checked.connection.execute(f"""
        SELECT dimension, value, {COUNTS}, quantile_disc(time_ms - created_ms, [0.5, 0.95, 0.99]) FILTER (event = 'delivered')
        FROM ({" UNION ALL ".join(selects)}) GROUP BY dimension, value
    """).fetchall()
    found = {
        (row["dimension"], row["value"]): row
        for row in spark.read.parquet(f"{checked.output}/rates").collect()
    }
    assert len(found) == len(expected)
    for dimension, value, *counts, ages in expected:
        row = found[dimension, value]
        assert [row[name] for name in EVENTS] == counts
        for name, age in zip(("p50_ms", "p95_ms", "p99_ms"), ages or (None,) * 3, strict=True):
            assert row[name] == (age if age is None else pytest.approx(age, rel=1 / 128, abs=1))


def test_hours_and_days(spark: "SparkSession", checked: CrossCheck) -> None:
    for name, keys in (("hours", "hour_s, zone"), ("days", "day_number, address, provider")):
        time = "unix_seconds(hour) AS hour_s" if name == "hours" else "unix_date(day) AS day_number"
        found = spark.read.parquet(f"{checked.output}/{name}").selectExpr(time, "*")
        expected = checked.counted(f"SELECT {keys}, {COUNTS} FROM attempts GROUP BY {keys}")
        assert sorted(rows_of(found, *keys.split(", "), *EVENTS)) == expected


def test_replies(spark: "SparkSession", checked: CrossCheck) -> None:
    keys = "provider, event, phase, code, status, masked(reply) AS kind"
    expected = checked.counted(
        f"SELECT {keys}, count(*) FROM attempts WHERE event <> 'delivered' GROUP BY ALL"
    )
    found = spark.read.parquet(f"{checked.output}/replies")
    names = ("provider", "event", "phase", "code", "status", "kind", "count")
    assert sorted(rows_of(found, *names)) == expected
    examples = set(checked.counted("SELECT DISTINCT provider, event, code, status, reply FROM attempts"))
    for row in found.collect():
        assert (
            *(row[name] for name in names[:2]),
            row["code"],
            row["status"],
            row["example"],
        ) in examples
        assert masked(row["example"]) == row["kind"]
        assert row["reason"] == REASONS[row["code"], row["status"]]
        assert fits(row["template"], row["kind"])


def fits(template: str, kind: str) -> bool:
    """Whether the words of a reply are those of its template, where that has words."""
    pairs = zip(template.split(), kind.split(), strict=True)
    return all(one in (WILD, other) for one, other in pairs)


def test_anomalies(spark: "SparkSession", checked: CrossCheck) -> None:
    """The two hours in which a provider defers half, and whatever chance made unusual."""
    expected = checked.counted(UNUSUAL)
    found = spark.read.parquet(f"{checked.output}/anomalies").selectExpr(
        "unix_seconds(hour) AS hour_s", "*"
    )
    names = ("provider", "hour_s", "measure", "attempts", "rate", "usual", "score")
    rows = sorted(rows_of(found, *names))
    assert [row[:4] for row in rows] == [row[:4] for row in expected]
    for row, other in zip(rows, expected, strict=True):
        assert row[4:] == pytest.approx(other[4:])
    named = {(row[1] - HOUR_BEGINS_MS // 1000) // 3600 for row in rows if row[2] == "deferral"}
    assert named >= set(UNUSUAL_HOURS)
    for row in found.collect():
        events = {"deferral": ("deferred",), "bounce": ("bounced", "expired")}[row["measure"]]
        query = f"SELECT code, status, count(*) FROM attempts WHERE provider = '{row['provider']}' AND hour_s = {row['hour_s']} AND event IN {events} GROUP BY ALL"
        by_reason: Counter[str] = Counter()
        for code, status, count in checked.counted(query.replace(",)", ")")):
            by_reason[REASONS[code, status]] += count
        shown: Counter[str] = Counter()
        for each in row["replies"] or ():
            shown[each["reason"]] += each["count"]
        assert shown == by_reason


def test_warmup(spark: "SparkSession", checked: CrossCheck) -> None:
    expected = []
    for schedule in WARMUPS:
        of_provider = f"AND provider = '{schedule.provider}'" if schedule.provider else ""
        for day, allowed in schedule.days():
            sent = checked.connection.execute(
                f"SELECT count(*) FROM attempts WHERE address = '{schedule.address}' AND day_number = DATE '{day}' - DATE '1970-01-01' {of_provider}"
            ).fetchone()[0]
            over = max(0, sent - allowed)
            expected.append(
                (day, schedule.address, schedule.provider, allowed, sent, over, sent <= allowed)
            )
    found = spark.read.parquet(f"{checked.output}/warmup")
    names = ("day", "address", "provider", "allowed", "sent", "over", "kept")
    assert sorted(rows_of(found, *names)) == sorted(expected)
    assert {row[-1] for row in expected} == {True, False}


def test_complaints(spark: "SparkSession", checked: CrossCheck) -> None:
    """They are counted by provider, only those that match the ledger."""
    checked.connection.execute("CREATE TABLE complained (recipient VARCHAR)")
    checked.connection.executemany("INSERT INTO complained VALUES (?)", [(to,) for to in checked.about])
    expected = checked.counted("""
        WITH counts AS (SELECT domain, provider, count(*) AS n FROM attempts GROUP BY ALL),
        names AS (SELECT domain, provider, row_number() OVER (PARTITION BY domain ORDER BY n DESC, provider) AS nth FROM counts)
        SELECT provider, count(*) FROM planned SEMI JOIN complained USING (recipient) JOIN names USING (domain) WHERE nth = 1 GROUP BY provider
    """)
    found = spark.read.parquet(f"{checked.output}/complaints")
    assert sorted(rows_of(found, "day", "campaign", "provider", "complaints")) == [
        (BEGINS.date(), "planned", *row) for row in expected
    ]


def test_an_update_and_compacted_events_give_the_same(
    spark: "SparkSession", checked: CrossCheck, tmp_path: Path
) -> None:
    """Segments read in two runs of ``--update``, and the output of ``compact``."""
    from zonemta_py.pipeline.events.compact import CompactRequest, compact
    from zonemta_py.pipeline.report.job import update_report

    events, later = tmp_path / "events", tmp_path / "later"
    shutil.copytree(checked.request.events, events)
    for path in sorted(events.rglob("*.jsonl.zst"))[::2]:
        target = later / path.relative_to(events)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    updated = replace(checked.request, events=str(events), output=f"{tmp_path}/updated")
    update_report(spark, updated, None, no_progress)
    shutil.copytree(later, events, dirs_exist_ok=True)
    update_report(spark, updated, None, no_progress)
    lake = CompactRequest(checked.request.events, str(tmp_path / "lake"))
    compact(spark, lake, no_progress)
    compacted = replace(checked.request, events=lake.lake, output=f"{tmp_path}/compacted")
    report(spark, compacted)
    for name in ("rates", "hours", "days", "replies", "anomalies", "warmup", "complaints"):
        whole = sorted_rows(spark.read.parquet(f"{checked.output}/{name}").drop("example"))
        for made in (updated, compacted):
            other = spark.read.parquet(f"{made.output}/{name}").drop("example")
            assert sorted_rows(other) == whole, (name, made)
