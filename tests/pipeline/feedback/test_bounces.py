"""Addresses to suppress, from outcomes and complaints."""

from typing import TYPE_CHECKING, Any

from tests.pipeline.segments import delivered, write_segment

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

DAY_MS = 86_400_000


def test_hard_bounces(spark: "SparkSession") -> None:
    """Only recent bounces with a hard reason count, at least the required number, and no later delivery."""
    from zonemta_py.pipeline.feedback.bounces import hard_bounces

    gone = ("5.1.1", "invalid_recipient")
    outcomes = spark.createDataFrame(
        [
            ("twice@x.example", "bounced", 20 * DAY_MS, *gone),
            ("Twice@x.example", "bounced", 21 * DAY_MS, *gone),
            ("once@x.example", "bounced", 21 * DAY_MS, *gone),
            ("old@x.example", "bounced", 9 * DAY_MS, *gone),
            ("full@x.example", "bounced", 21 * DAY_MS, "5.2.2", "mailbox_full"),
            ("back@x.example", "bounced", 20 * DAY_MS, *gone),
            ("BACK@x.example", "delivered", 21 * DAY_MS, "2.0.0", ""),
        ],
        "recipient string, event string, time_ms long, status string, reason string",
    )
    rows = outcomes.transform(hard_bounces(10 * DAY_MS, 1, 30)).orderBy("entry").collect()
    assert [(row["entry"], row["reason"], row["until"]) for row in rows] == [
        ("once@x.example", "bounced 5.1.1 on 1970-01-22", "1970-02-21"),
        ("twice@x.example", "bounced 5.1.1 on 1970-01-22", "1970-02-21"),
    ]
    rows = outcomes.transform(hard_bounces(10 * DAY_MS, 2, 30)).collect()
    assert [row["entry"] for row in rows] == ["twice@x.example"]


def test_reports_to_senders_suppress_no_sender(spark: "SparkSession", tmp_path: "Path") -> None:
    """The report of a bounce failed: its recipient is who sends the list."""
    from zonemta_py.pipeline.events.log import open_log
    from zonemta_py.pipeline.events.rows import read_events
    from zonemta_py.pipeline.feedback.bounces import delivery_outcomes

    refused = {"event": "bounced", "code": 550, "status": "5.1.1", "reply": "no such user"}
    events = [
        delivered(1, recipient="r@x.example", **refused),
        delivered(2, recipient="news@example.com", sender="", **refused),
        delivered(3, recipient="news@example.com", sender=""),
    ]
    write_segment(tmp_path, "s1", events)
    found = delivery_outcomes(read_events(spark, open_log(spark, str(tmp_path)))).orderBy("time_ms")
    assert [(row["recipient"], row["event"]) for row in found.collect()] == [
        ("r@x.example", "bounced"),
        ("news@example.com", "delivered"),
    ]


def test_the_class_of_the_event_decides(spark: "SparkSession", tmp_path: "Path") -> None:
    """That of the event, else that of the relay's classifier; a reply to MAIL is about the sender."""
    from zonemta_py.pipeline.events.log import open_log
    from zonemta_py.pipeline.events.rows import read_events
    from zonemta_py.pipeline.feedback.bounces import delivery_outcomes, hard_bounces

    replies: dict[str, dict[str, Any]] = {
        "own-rule": {"class": "policy", "status": "5.1.1", "reply": "no such user"},
        "gone": {"class": "invalid_recipient", "status": "5.4.1", "reply": "Recipient address rejected: Access denied"},
        "old-gone": {"status": "", "reply": "#5.1.0 Address rejected"},
        "old-sender": {"status": "5.1.8", "reply": "Sender address rejected: Domain not found"},
        "old-account": {"status": "5.7.1", "reply": "Your account is disabled for sending"},
        "early": {"class": "invalid_recipient", "status": "5.1.1", "reply": "no such user", "phase": "mail"},
        "no-domain": {"class": "bad_domain", "status": "5.1.2", "reply": "", "phase": "connect", "code": 0},
    }  # fmt: skip
    common: dict[str, Any] = {"event": "bounced", "code": 550, "phase": "rcpt"}
    events = [
        delivered(n, **{**common, **each, "recipient": f"{name}-{part}@x.example"})
        for part in range(2)
        for n, (name, each) in enumerate(replies.items(), 1 + 10 * part)
    ]
    write_segment(tmp_path, "s1", events)
    found = delivery_outcomes(read_events(spark, open_log(spark, str(tmp_path))))
    entries = [row["entry"] for row in found.transform(hard_bounces(0, 1, 30)).collect()]
    assert sorted(entries) == sorted(
        f"{name}-{part}@x.example" for name in ("gone", "old-gone", "no-domain") for part in range(2)
    )


def test_complaints_and_reported_failures(spark: "SparkSession") -> None:
    """Only reports that match a ledger count, and no bounce twice: the relay reports it to the sender, too."""
    from zonemta_py.pipeline.feedback.bounces import complaints, reported_failures

    reports = spark.createDataFrame(
        [
            ("complaint", "a@x.example", 20 * DAY_MS, "", ""),
            ("complaint", "", 20 * DAY_MS, "", ""),
            ("complaint", "old@x.example", DAY_MS, "", ""),
            ("failed", "b@x.example", 20 * DAY_MS, "5.1.1", "invalid_recipient"),
            ("failed", "", 20 * DAY_MS, "5.1.1", "invalid_recipient"),
            ("failed", "Here@x.example", 20 * DAY_MS + 60_000, "5.1.1", "invalid_recipient"),
            ("failed", "here@x.example", 22 * DAY_MS, "5.1.1", "invalid_recipient"),
            ("failed", "here@x.example", 19 * DAY_MS, "5.1.1", "invalid_recipient"),
            ("delayed", "c@x.example", 20 * DAY_MS, "4.4.1", "no_answer"),
        ],
        "kind string, address string, time_ms long, status string, reason string",
    )
    outcomes = spark.createDataFrame(
        [
            (address, event, 20 * DAY_MS, "", "")
            for address, event in (("here@x.example", "bounced"), ("b@x.example", "delivered"))
        ],
        "recipient string, event string, time_ms long, status string, reason string",
    )
    [row] = reports.transform(complaints(10 * DAY_MS, 10)).collect()
    assert tuple(row) == ("a@x.example", "complained on 1970-01-21", "1970-01-31")
    found = reports.transform(reported_failures(outcomes)).orderBy("recipient", "time_ms").collect()
    assert [tuple(row) for row in found] == [
        ("b@x.example", "bounced", 20 * DAY_MS, "5.1.1", "invalid_recipient"),
        ("here@x.example", "bounced", 19 * DAY_MS, "5.1.1", "invalid_recipient"),
        ("here@x.example", "bounced", 22 * DAY_MS, "5.1.1", "invalid_recipient"),
    ]
