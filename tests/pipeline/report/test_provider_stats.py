"""Statistics of providers."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.campaigns import open_log
from tests.pipeline.segments import HOUR_BEGINS_MS, delivered, write_segment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINUTE_MS = 60_000


def test_clean_and_limited_minutes(spark: "SparkSession", tmp_path: Path) -> None:
    """A minute with a reply about limits is not clean; recipients of one transaction count once."""
    from zonemta_py.pipeline.events.rows import read_events
    from zonemta_py.pipeline.report.advice import provider_stats

    def attempt(seq: int, minute: int, **changes: Any) -> dict[str, Any]:
        time_ms = HOUR_BEGINS_MS + minute * MINUTE_MS + seq
        return delivered(seq, time_ms=time_ms, duration_ms=30_000, **changes)

    limited = {"event": "deferred", "code": 421, "status": "4.7.0", "reply": "Too many connections"}
    events = [attempt(n, 0) for n in range(4)]
    events += [attempt(10 + n, 1) for n in range(5)] + [attempt(20, 1, **limited)]
    events += [{**attempt(0, 0), "position": 1, "index": 1, "recipient": "second@x.example"}]
    grey = {"recipient": "g@x.example", "message": "g"}
    refused = {"event": "deferred", "code": 450, "status": "4.7.1", "reply": "Greylisted"}
    events += [attempt(30, 0, **grey, **refused), attempt(31, 2, **grey, attempt=2)]
    write_segment(tmp_path, "a", events)
    log = read_events(spark, open_log(spark, str(tmp_path)))
    [found] = log.transform(provider_stats).collect()
    assert (found["provider"], found["domains"], found["zones"]) == ("x.example", ["x.example"], ["default"])  # fmt: skip
    assert (found["transactions"], found["limited"], found["limited_sessions"]) == (12, 1, 1)
    assert found["limit_reply"] == "Too many connections"
    assert found["limited_per_minute"] == 6
    assert 1 < found["clean_per_minute"] <= 5
    assert found["busiest_sessions"] == pytest.approx(3.0), "6 transactions of half a minute"
    assert (found["greylisted"], found["greylist_through"]) == (1, 1)
    assert found["greylist_s"] == pytest.approx(120.001)
