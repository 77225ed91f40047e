"""Every table of a report, compared with what DuckDB counts: 500,000 records with repeats, late and damaged segments."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.campaigns import open_log, report
from tests.pipeline.segments import HOUR_BEGINS_MS, HOUR_MS
from zonemta_py.core.codec import to_json
from zonemta_py.events.segments import Segment
from zonemta_py.pipeline.rules.provider import provider_of
from zonemta_py.pipeline.rules.templates import masked

duckdb = pytest.importorskip("duckdb")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = 500_000
FRAME, SEGMENT = 1000, 20_000  # records
REPEATS = 1000  # 0.2 %
NODES = ("abcdef", "fedcba")
DOMAINS = ("gmail.com", "outlook.com", "yahoo.de", "gmx.de", *(f"firm{n}.example" for n in range(400)))
REPLIES = {
    "deferred": [(421, "4.7.0", "Too many connections from 10.0.0.{}"), (451, "4.7.1", "Greylisted, try again in {} s"), (0, "4.4.1", "timeout")],
    "bounced": [(550, "5.1.1", "<user{}@x.example> unknown"), (552, "5.2.2", "mailbox full")],
    "expired": [(451, "4.4.7", "gave up after attempt {}")],
}  # fmt: skip
DIMENSIONS = ("zone", "provider", "domain", "address", "campaign", "tenant")
COUNTS = ", ".join(
    f"count(*) FILTER (event = '{name}') AS {name}" for name in ("delivered", "deferred", "bounced", "expired")
)  # fmt: skip
KINDS = ["delivered"] * 85 + ["deferred"] * 10 + ["bounced"] * 4 + ["expired"]


def record(rng: random.Random, node: str, seq: int) -> dict[str, Any]:
    """One event; one in fifty is no attempt."""
    time_ms = HOUR_BEGINS_MS + rng.randrange(72 * HOUR_MS)
    common = {
        "node": node,
        "seq": seq,
        "position": rng.randrange(3),
        "time_ms": time_ms,
        "message": f"{seq:024x}",
    }
    if rng.random() < 0.02:
        return {
            **common,
            "event": "accepted",
            "recipients": [{"index": 0, "recipient": "r@x.example", "zone": "z"}],
        }
    event = rng.choice(KINDS)
    code, status, text = (250, "2.0.0", "Ok {}") if event == "delivered" else rng.choice(REPLIES[event])
    domain = DOMAINS[min(int(rng.expovariate(1 / 40)), len(DOMAINS) - 1)]
    return {
        **common, "event": event, "index": 0, "recipient": f"u{seq}@{domain}", "zone": f"z{seq % 3}", "domain": domain,
        "sender": "s@example.com", "submitter": "u", "tenant": rng.choice(["", "acme"]), "campaign": rng.choice(["", "june", "july"]),
        "tags": rng.choice([[], ["sale"], ["sale", "shoes"]]), "attempt": 1, "created_ms": time_ms - int(rng.expovariate(1e-5)),
        "phase": "dot", "code": code, "status": status, "reply": text.format(rng.randrange(10_000)), "mx": "m", "mx_ip": "192.0.2.1",
        "source_ip": f"203.0.113.{seq % 4}", "tls": True, "duration_ms": 7,
        "provider": rng.choice(["", "google", f"mx.{domain}"]) if domain.endswith(".example") else "",
    }  # fmt: skip


def write_log(directory: Path) -> list[bytes]:
    """Segments by the relay's own writer; returns the lines that can be read, each once."""
    rng = random.Random(5)
    readable: list[bytes] = []
    for node in NODES:
        for number, first in enumerate(range(1, RECORDS // len(NODES), SEGMENT)):
            frames = [
                [(seq, to_json(record(rng, node, seq)) + b"\n") for seq in range(start, start + FRAME)]
                for start in range(first, first + SEGMENT, FRAME)
            ]
            sealed_ms = (
                HOUR_BEGINS_MS + 72 * HOUR_MS + (number % 4 == 3) * 240 * HOUR_MS
            )  # some come late
            path = write_frames(directory, node, frames, sealed_ms)
            lost = _damage(path, number)
            readable += [line for n, frame in enumerate(frames) if n not in lost for _, line in frame]
            if number == 2:  # again, with two other borders
                again = [frames[1][-REPEATS // 4 :], *frames[2:3]]
                write_frames(directory / "again", node, again, sealed_ms)
                _move_into(directory, directory / "again")
    return readable


def write_frames(directory: Path, node: str, frames: list[list[tuple[int, bytes]]], now_ms: int) -> Path:
    first = frames[0][0][0]
    segment = Segment(directory, node, first, first - 1)
    for frame in frames:
        segment.append(b"".join(line for _, line in frame), frame[-1][0])
    path = segment.seal(now_ms)
    assert path is not None
    return path


def _move_into(directory: Path, other: Path) -> None:
    for path in list(other.rglob("*.jsonl.zst")):
        target = directory / path.relative_to(other)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)


def _damage(path: Path, number: int) -> set[int]:
    """Damage the fifth and the sixth segment of a node; returns which frames cannot be read."""
    content = bytearray(path.read_bytes())
    if number == 5:
        del content[-200:]  # the trailer, and the end of the last frame
        path.write_bytes(content)
        return {SEGMENT // FRAME - 1}
    if number == 6:
        content[100] ^= 0xFF
        path.write_bytes(content)
        return {0}
    return set()


def rows_of(table: Any, *names: str) -> Iterator[tuple[Any, ...]]:
    for row in table.select(*names).collect():
        yield tuple(row)


def test_every_table(spark: "SparkSession", tmp_path: Path) -> None:
    from zonemta_py.pipeline.jobs.report import ReportRequest

    events, output = tmp_path / "events", tmp_path / "report"
    (tmp_path / "unique.jsonl").write_bytes(b"".join(write_log(events)))
    log = open_log(spark, events)
    assert len(log.damaged) == 4
    sums = report(spark, ReportRequest(str(events), (), str(output)))
    connection = duckdb.connect()
    connection.create_function("provider_of", provider_of, ["VARCHAR"], "VARCHAR")
    connection.create_function("masked", masked, ["VARCHAR"], "VARCHAR")
    connection.execute(f"""
        CREATE TABLE attempts AS SELECT * EXCLUDE (provider), coalesce(nullif(provider, ''), provider_of(domain)) AS provider, source_ip AS address,
            time_ms // {HOUR_MS} * {HOUR_MS // 1000} AS hour_s, time_ms // {24 * HOUR_MS} AS day_number
        FROM read_json('{tmp_path}/unique.jsonl', format = 'newline_delimited', union_by_name = true, sample_size = -1)
        WHERE event IN ('delivered', 'deferred', 'bounced', 'expired')
    """)
    counted = connection.execute(f"SELECT {COUNTS} FROM attempts").fetchone()
    assert tuple(sums[name] for name in ("delivered", "deferred", "bounced", "expired")) == counted
    _check_rates(spark.read.parquet(f"{output}/rates"), connection)
    for name, keys in (("hours", "hour_s, zone"), ("days", "day_number, address, provider")):
        expected = connection.execute(
            f"SELECT {keys}, {COUNTS} FROM attempts GROUP BY {keys}"
        ).fetchall()
        table = spark.read.parquet(f"{output}/{name}")
        time = "unix_seconds(hour) AS hour_s" if name == "hours" else "unix_date(day) AS day_number"
        found = table.selectExpr(time, "*")
        assert sorted(
            rows_of(found, *keys.split(", "), "delivered", "deferred", "bounced", "expired")
        ) == sorted(expected)
    keys = "provider, event, phase, code, status, masked(reply) AS kind"
    expected = connection.execute(
        f"SELECT {keys}, count(*) FROM attempts WHERE event <> 'delivered' GROUP BY ALL"
    ).fetchall()
    replies = spark.read.parquet(f"{output}/replies")
    assert sorted(
        rows_of(replies, "provider", "event", "phase", "code", "status", "kind", "count")
    ) == sorted(expected)


def _check_rates(table: Any, connection: Any) -> None:
    """Counts are equal; quantiles differ by the width of a bucket at most."""
    selects = [
        "SELECT 'all' AS dimension, '' AS value, * FROM attempts",
        "SELECT 'tag', unnest(tags), * FROM attempts",
    ]
    selects += [f"SELECT '{name}', {name}, * FROM attempts" for name in DIMENSIONS]
    expected = connection.execute(f"""
        SELECT dimension, value, {COUNTS}, quantile_disc(time_ms - created_ms, [0.5, 0.95, 0.99]) FILTER (event = 'delivered')
        FROM ({" UNION ALL ".join(selects)}) GROUP BY dimension, value
    """).fetchall()
    found = {(row["dimension"], row["value"]): row for row in table.collect()}
    assert len(found) == len(expected)
    for dimension, value, *counts, ages in expected:
        row = found[dimension, value]
        assert [row[name] for name in ("delivered", "deferred", "bounced", "expired")] == counts
        for name, age in zip(("p50_ms", "p95_ms", "p99_ms"), ages or (None,) * 3, strict=True):
            assert row[name] == (age if age is None else pytest.approx(age, rel=1 / 128, abs=1))
