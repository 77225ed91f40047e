"""What events say of the replies of providers."""

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from tests.pipeline.campaigns import open_log
from tests.pipeline.segments import delivered, write_segment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINUTE_MS = 60_000
BEGIN_MS = 1_800_000_000_000


def test_replies_by_provider_and_rate(spark: "SparkSession", tmp_path: Path) -> None:
    """Slow minutes are accepted; of 200 attempts in a minute a quarter is deferred as too fast, with ids that differ."""
    from zonemta_py.pipeline.events.rows import read_events
    from zonemta_py.pipeline.simulate.recorded import recorded_replies, reply_models

    about = {"domain": "gmail.com", "provider": "google", "source_ip": "192.0.2.1"}
    events = [delivered(n, **about, time_ms=BEGIN_MS + MINUTE_MS * (n // 4) + n) for n in range(100)]
    fast_ms = BEGIN_MS + 1000 * MINUTE_MS
    events += [delivered(1000 + n, **about, time_ms=fast_ms + n) for n in range(150)]
    too_fast = {"event": "deferred", "code": 421, "status": "4.7.28", "class": "rate_limited"}
    events += [
        delivered(2000 + n, **about, **too_fast, time_ms=fast_ms + n, reply=f"unusual rate {n} gsmtp")
        for n in range(50)
    ]
    events += [
        delivered(3000 + n, domain="d.example", event="bounced", code=550, status="5.1.1", reply="no")
        for n in range(5)
    ]  # of an earlier version: neither class nor provider
    write_segment(tmp_path, "a", events)
    rows = read_events(spark, open_log(spark, tmp_path)).transform(recorded_replies).collect()
    found = [row.asDict() for row in rows]
    assert {row["provider"] for row in found} == {"google", "d.example"}
    [deferred] = [row for row in found if row["event"] == "deferred"]
    assert (deferred["step"], deferred["count"], deferred["of_sender"]) == (7, 50, True)
    models, random = reply_models(found), Random(0)
    google = models["google"]
    assert all(google.of_sender(4.0, random) is None for _ in range(200))
    for rate in (130.0, 1000.0):
        drawn = [google.of_sender(rate, random) for _ in range(2000)]
        replies = {each for each in drawn if each is not None}
        assert 0.2 < (2000 - drawn.count(None)) / 2000 < 0.3
        assert {each.reply_class for each in replies} == {"rate_limited"}
        assert next(iter(replies)).text.startswith("unusual rate ")
    other = models["d.example"]
    assert other.of_sender(100.0, random) is None
    assert other.other("bounced", random)[:4] == ("bounced", "", 550, "5.1.1")


def test_domains_of_events(spark: "SparkSession", tmp_path: Path) -> None:
    from zonemta_py.pipeline.events.rows import read_events
    from zonemta_py.pipeline.simulate.recorded import domain_map, recorded_domains

    events = [delivered(1, domain="a.example", mx="mx2.big.example", provider="big")]
    events += [delivered(2, domain="a.example", mx="mx1.big.example")]
    events += [delivered(3, domain="b.example", mx="", event="deferred", code=0)]
    write_segment(tmp_path, "a", events)
    rows = read_events(spark, open_log(spark, tmp_path)).transform(recorded_domains).collect()
    assert domain_map(row.asDict() for row in rows) == {
        "a.example": ("big", ("mx1.big.example", "mx2.big.example")),
        "b.example": ("b.example", ()),
    }


def test_replies_of_the_sender_are_not_those_of_a_domain(spark: "SparkSession", tmp_path: Path) -> None:
    from zonemta_py.pipeline.events.rows import read_events
    from zonemta_py.pipeline.simulate.job import peer_answers, peer_model

    events = [delivered(n) for n in range(6)]
    events += [delivered(10 + n, event="deferred", code=421, **{"class": "blocked"}) for n in range(10)]
    events += [
        delivered(30 + n, event="deferred", code=452, **{"class": "mailbox_full"}) for n in range(2)
    ]
    write_segment(tmp_path, "a", events)
    rows = read_events(spark, open_log(spark, tmp_path)).transform(peer_answers).collect()
    assert peer_model(rows[1].asDict()).deferred[0] == 0.25
