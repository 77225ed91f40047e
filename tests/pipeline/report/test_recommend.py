"""Recommendations from events."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.pipeline.campaigns import no_progress, open_log
from tests.pipeline.segments import delivered, write_segment
from zonemta_py.config.load import parse_config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


BEGIN_MS = 1_800_000_000_000 // 60_000 * 60_000


def minutes(rates: list[tuple[int, int]], reply: str, first: int, provider: str) -> list[dict[str, Any]]:
    """``rates``: deliveries and deferrals (with the reply ``reply``) of each minute; a transaction takes one second."""
    events = []
    for minute, (good, bad) in enumerate(rates):
        for n in range(good + bad):
            seq = first + 1000 * minute + n
            late = {"event": "deferred", "code": 421, "status": "4.7.0", "reply": reply}
            events.append(
                delivered(
                    seq,
                    time_ms=BEGIN_MS + 60_000 * minute + n,
                    domain=provider,
                    recipient=f"r{seq}@{provider}",
                    duration_ms=1000,
                    **(late if n >= good else {}),
                )
            )
    return events


def test_from_events(spark: "SparkSession", tmp_path: Path) -> None:
    """One provider limits the rate, one limits sessions, one greylists, one has no limits."""
    from zonemta_py.pipeline.report.advice import RecommendRequest, recommend

    rates = [(100, 0)] * 9 + [(300, 60)] * 3
    records = minutes(rates, "Rate limit exceeded, 5551234", 0, "fast.example")
    records += minutes(rates, "Too many concurrent connections", 100_000, "narrow.example")
    records += minutes([(50, 0)] * 3, "", 200_000, "calm.example")
    for n in range(40):
        message = {"message": f"g{n}", "recipient": f"g{n}@grey.example", "domain": "grey.example"}
        refused = {"event": "deferred", "code": 450, "status": "4.7.1", "reply": "Greylisted"}
        records.append(delivered(300_000 + n, time_ms=BEGIN_MS + n, **message, **refused))
        records.append(delivered(400_000 + n, time_ms=BEGIN_MS + 200_000 + n, attempt=2, **message))
    # Several recipients of a transaction count once.
    records += [{**record, "position": 1, "index": 1, "recipient": "b" + record["recipient"]} for record in records]  # fmt: skip
    write_segment(tmp_path / "events", "a", records)
    path = tmp_path / "r.yaml"
    found = recommend(
        spark, RecommendRequest(open_log(spark, str(tmp_path / "events")), str(path)), no_progress
    )
    values = {provider: {line.key: line.value for line in lines} for provider, lines in found.items()}
    assert values == {
        "fast.example": {"rate": "100/m"},
        "narrow.example": {"connections_per_domain": 1},
        "grey.example": {"retry": {"delays": ["4m", "300s", "420s", "480s", "1500s", "4500s", "7200s", "14400s"]}},
    }  # fmt: skip
    text = path.read_text()
    assert "'Rate limit exceeded, <n>': 180 of 1,980 transactions (9.1 %)" in text
    assert "half of those with it 360 or more" in text
    assert parse_config(text, path).zones["narrow-example"].connections_per_domain == 1
