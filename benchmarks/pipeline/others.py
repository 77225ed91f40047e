"""The same tasks with other tools on one machine: DuckDB, polars, plain Python.

    python -m benchmarks.pipeline.others duckdb plan LIST SUPPRESSION OUTPUT
    python -m benchmarks.pipeline.others polars report EVENTS - OUTPUT

``plan``: trim, check, deduplicate, remove suppressed addresses, write Parquet. DuckDB and polars check addresses
by a regular expression, plain Python by the relay's own rule; none routes, packs, or records rejected rows.
``report``: counts, rates and quantiles by zone, provider, domain and address.
"""

import csv
import sys
from collections.abc import Callable
from pathlib import Path

ADDRESS = r"^[A-Za-z0-9._+=-]{1,64}@[a-z0-9-]+(\.[a-z0-9-]+)+$"
DIMENSIONS = ("zone", "domain", "source_ip")


def duckdb_plan(listed: str, suppression: str, output: str) -> None:
    import duckdb

    duckdb.sql(f"""
        COPY (
            WITH entries AS (SELECT column0 AS entry FROM read_csv('{suppression}', header=false, columns={{'column0': 'VARCHAR'}})),
            valid AS (SELECT DISTINCT trim(email) AS address FROM read_csv('{listed}', header=true, all_varchar=true)
                      WHERE regexp_matches(trim(email), '{ADDRESS}'))
            SELECT address FROM valid
            WHERE address NOT IN (SELECT entry FROM entries) AND '@' || split_part(address, '@', 2) NOT IN (SELECT entry FROM entries)
        ) TO '{output}' (FORMAT parquet, COMPRESSION zstd)
    """)  # fmt: skip


def polars_plan(listed: str, suppression: str, output: str) -> None:
    import polars as pl

    entries = pl.scan_csv(suppression, has_header=False, new_columns=["entry"])
    valid = (
        pl.scan_csv(listed, infer_schema=False)
        .select(pl.col("email").str.strip_chars().alias("address"))
        .filter(pl.col("address").str.contains(ADDRESS))
        .unique()
        .with_columns(("@" + pl.col("address").str.split("@").list.get(1)).alias("domain"))
    )
    left = valid.join(entries, left_on="address", right_on="entry", how="anti")
    left = left.join(entries, left_on="domain", right_on="entry", how="anti")
    left.select("address").sink_parquet(output, compression="zstd")


def python_plan(listed: str, suppression: str, output: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from zonemta_py.smtp.address import AddressError, domain_of, normalise

    with Path(suppression).open(encoding="utf-8") as file:
        entries = {line.strip().lstrip("@") for line in file}
    seen: set[str] = set()
    with Path(listed).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            try:
                address = normalise(row["email"].strip())
            except AddressError:
                continue
            if address not in entries and domain_of(address) not in entries:
                seen.add(address)
    pq.write_table(pa.table({"address": pa.array(seen)}), output, compression="zstd")


def duckdb_report(events: str, _: str, output: str) -> None:
    import duckdb

    duckdb.sql(
        f"CREATE TABLE events AS SELECT event, zone, domain, source_ip, time_ms - created_ms AS age_ms"
        f" FROM read_json('{events}/*/*/*.jsonl.zst', format='newline_delimited', compression='zstd')"
    )
    for name in DIMENSIONS:
        duckdb.sql(f"""
            COPY (SELECT {name}, count(*) AS attempts, count(*) FILTER (event = 'delivered') AS delivered,
                  count(*) FILTER (event = 'deferred') AS deferred, count(*) FILTER (event = 'bounced') AS bounced,
                  quantile_cont(age_ms, [0.5, 0.95, 0.99]) FILTER (event = 'delivered') AS ages
                  FROM events GROUP BY {name}) TO '{output}.{name}' (FORMAT parquet)
        """)  # fmt: skip


def polars_report(events: str, _: str, output: str) -> None:
    import io

    import polars as pl
    import zstandard

    parts = []
    for path in sorted(Path(events).glob("*/*/*.jsonl.zst")):
        with path.open("rb") as file:
            text = zstandard.ZstdDecompressor().stream_reader(file).read()
        frame = pl.read_ndjson(io.BytesIO(text))
        age = (pl.col("time_ms") - pl.col("created_ms")).alias("age_ms")
        parts.append(frame.select("event", "zone", "domain", "source_ip", age))
    rows = pl.concat(parts)
    delivered_age = pl.col("age_ms").filter(pl.col("event") == "delivered")
    for name in DIMENSIONS:
        rows.group_by(name).agg(
            pl.len().alias("attempts"),
            *((pl.col("event") == each).sum().alias(each) for each in ("delivered", "deferred", "bounced")),
            *(delivered_age.quantile(share).alias(f"p{share}") for share in (0.5, 0.95, 0.99)),
        ).write_parquet(f"{output}.{name}")  # fmt: skip


WORK: dict[tuple[str, str], Callable[[str, str, str], None]] = {
    ("duckdb", "plan"): duckdb_plan,
    ("polars", "plan"): polars_plan,
    ("python", "plan"): python_plan,
    ("duckdb", "report"): duckdb_report,
    ("polars", "report"): polars_report,
}

if __name__ == "__main__":
    tool, work, *paths = sys.argv[1:]
    WORK[(tool, work)](*paths)
