"""Methods by which a report is matched to a recipient of a ledger."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOTICES = (  # id, recipient, by_verp, key
    (1, "a@x.example", "", "k1"),
    (2, "moved@y.example", "", "k1"),  # two recipients: the key is not enough
    (3, "moved@y.example", "", "k2"),
    (4, "moved@y.example", "c@x.example", ""),
    (5, "b@x.example", "", ""),
    (6, "a@x.example", "c@x.example", "k1"),  # the most reliable method wins
    (7, "stranger@x.example", "", "unknown"),
    (8, "B@x.example", "", "k1"),  # systems report addresses in another case
    (9, "moved@y.example", "C@x.example", ""),
    (10, "B@x.example", "", ""),
    (11, "d@x.example", "", ""),  # its spelling, not the later D
    (12, "D@x.example", "", ""),
)


def test_methods(spark: "SparkSession") -> None:
    from zonemta_py.pipeline.feedback.reports import match_reports
    from zonemta_py.pipeline.spark import tables

    ledger = spark.createDataFrame(
        [
            (campaign, key, "r:25", f"{name}@x.example", "accepted", 250, "", ["m"], False, time_ms, None, 1)
            for campaign, key, names, time_ms in (
                ("june", "k1", "ab", 1), ("june", "k2", "c", 1), ("july", "k3", "b", 2),
                ("july", "k4", "d", 2), ("august", "k5", "D", 3),
            )
            for name in names
        ],
        tables.LEDGER_RUNS,
    )  # fmt: skip
    notices = spark.createDataFrame(
        [
            (notice_id, str(notice_id), "failed", recipient, by_verp, key, "5.1.1", "", "", "", 550, 0)
            for notice_id, recipient, by_verp, key in NOTICES
        ],
        "notice_id long, source string, kind string, recipient string, by_verp string, key string, status string,"
        " diagnostic string, reporter string, reason string, code int, time_ms long",
    )
    rows = notices.transform(match_reports(ledger)).collect()
    found = {int(r["source"]): (r["matched"], r["address"], r["campaign"], r["key"]) for r in rows}
    assert found == {
        1: ("envelope id", "a@x.example", "june", "k1"),
        2: ("", "", "", ""),
        3: ("envelope id, its only recipient", "c@x.example", "june", "k2"),
        4: ("verp", "c@x.example", "june", "k2"),
        5: ("address", "b@x.example", "july", "k3"),
        6: ("envelope id", "a@x.example", "june", "k1"),
        7: ("", "", "", ""),
        8: ("envelope id", "b@x.example", "june", "k1"),
        9: ("verp", "c@x.example", "june", "k2"),
        10: ("address", "b@x.example", "july", "k3"),
        11: ("address", "d@x.example", "july", "k4"),
        12: ("address", "D@x.example", "august", "k5"),
    }


def nested(depth: int) -> bytes:
    """A report whose parts contain each other."""
    first = b"Content-Type: multipart/report; report-type=delivery-status; boundary=b\n\n"
    other = b"--b%d\nContent-Type: multipart/mixed; boundary=b%d\n\n"
    return first.replace(b"=b\n", b"=b0\n") + b"".join(other % (n, n + 1) for n in range(depth))


def test_messages_that_are_not_reports(spark: "SparkSession") -> None:
    from zonemta_py.pipeline.feedback.reports import extract_notices

    mail = spark.createDataFrame(
        [("a", b"Subject: x\n\nhello\n"), ("b", None), ("c", nested(5000))],
        "source string, octets binary",
    )
    rows = mail.transform(extract_notices([])).collect()
    assert {row["source"]: row["kind"] for row in rows} == {
        "a": "no report", "b": "unreadable", "c": "no report",
    }  # fmt: skip
    assert all(row["time_ms"] > 0 for row in rows), "a date is always known"
