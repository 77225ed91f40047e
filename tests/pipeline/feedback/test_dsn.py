"""Reports that came by mail, matched to a ledger; and the addresses that are suppressed for them."""

import base64
import gzip
import mailbox
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.campaigns import no_progress, open_log, suppressed, write_sent_plan
from tests.pipeline.segments import delivered, write_segment
from zonemta_py.core.clock import now_ms
from zonemta_py.core.codec import to_json
from zonemta_py.core.errors import LocalError
from zonemta_py.smtp.reports.dsn import RecipientReport, ReportedMessage, ReportHead, status_report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SENDER = "news@example.com"


def bounce(recipient: str, *, key: str = "", to: str = SENDER, status: str = "5.1.1") -> bytes:
    """A delivery status report in the form of the relay, without a date."""
    failure = RecipientReport(
        "failed", recipient, status, "because", f"550 {status} no", "mx.example", ""
    )
    envid = f"submission-key-{key}" if key else ""
    report = status_report(
        ReportHead("mx.example", "2" * 24, to, ""),
        ReportedMessage("1" * 24, "", b"Subject: x\r\n", b"From here\r\n>From there\r\n", envid),
        [failure],
    )
    return report.header.replace(b"Date: \r\n", b"") + b"\r\n" + report.body


def complaint(about: str) -> bytes:
    return (
        b'Content-Type: multipart/report; report-type=feedback-report; boundary="b"\n\n'
        b"--b\nContent-Type: message/feedback-report\n\nFeedback-Type: abuse\nOriginal-Rcpt-To: "
        + about.encode()
        + b"\n\n--b--\n"
    )


MAIL = [
    bounce("a@x.example", key="k1"),  # by its envelope id
    bounce("moved@elsewhere.example", key="k2"),  # forwarded: the only recipient of its message
    bounce("moved@elsewhere.example", key="k1"),  # forwarded, one of two recipients: no match
    bounce("moved@elsewhere.example", to="news+c@x.example".replace("@", "=") + "@example.com"),
    bounce("A@X.example".replace("A", "b")),  # by its address
    bounce("stranger@x.example", key="unknown"),
    complaint("c@x.example"),
    b"Subject: out of office\n\nFrom now on I am away\n",
]


def ledger_of(spark: "SparkSession", directory: Path) -> str:
    """A plan that was submitted: k1 to a and b, k2 to c."""
    rows = [
        ("june", key, "r:25", f"{name}@x.example", "accepted", 250, "", ["m"], False, 1)
        for key, names in (("k1", "ab"), ("k2", "c"))
        for name in names
    ]
    return write_sent_plan(spark, directory, SENDER, rows)


def as_mbox(directory: Path) -> Path:
    box = mailbox.mbox(str(directory / "bounces.mbox"))
    for message in MAIL:
        box.add(message)
    box.close()
    return directory / "bounces.mbox"


def as_maildirs(directory: Path) -> Path:
    """Two maildirs; the name of one begins with a dot."""
    (directory / "tree").mkdir()
    for n, message in enumerate(MAIL):
        maildir = directory / "tree" / (".bounces" if n % 2 else "inbox")
        box = mailbox.Maildir(str(maildir), create=True)
        box.add(message)
    (directory / "tree" / "inbox" / "tmp" / "half").write_bytes(MAIL[0][:50])
    return directory / "tree"


def as_table(directory: Path) -> Path:
    path = directory / "mail.jsonl"
    path.write_bytes(
        b"".join(to_json({"octets": base64.b64encode(message).decode()}) + b"\n" for message in MAIL)
    )
    return path


@pytest.mark.parametrize("written", [as_mbox, as_maildirs, as_table])
def test_every_report_is_matched(spark: "SparkSession", tmp_path: Path, written: Any) -> None:
    from zonemta_py.pipeline.feedback.reports import DsnRequest, read_matched_reports, read_reports

    plan, output = ledger_of(spark, tmp_path / "plan"), str(tmp_path / "out")
    counts = read_reports(spark, DsnRequest([str(written(tmp_path))], [plan], output), no_progress)
    assert (counts.messages, counts.no_report, counts.unreadable) == (len(MAIL), 1, 0)
    assert counts.kinds == {"failed": 6, "complaint": 1}
    assert counts.matched == {
        "envelope id": 1, "envelope id, its only recipient": 1, "verp": 1, "address": 2, "not matched": 2,
    }  # fmt: skip
    rows = read_matched_reports(spark, output).collect()
    by_method = {(row["matched"], row["address"], row["campaign"]) for row in rows}
    assert by_method == {
        ("envelope id", "a@x.example", "june"),
        ("envelope id, its only recipient", "c@x.example", "june"),
        ("verp", "c@x.example", "june"),
        ("address", "b@x.example", "june"),
        ("address", "c@x.example", "june"),
        ("", "", ""),
    }
    assert {row["reason"] for row in rows if row["kind"] == "failed"} == {"invalid_recipient"}
    with pytest.raises(LocalError, match="exists; choose another directory, or replace it"):
        read_reports(spark, DsnRequest([str(tmp_path / "x.mbox")], [plan], output), no_progress)


def test_a_table_of_reports(spark: "SparkSession", tmp_path: Path) -> None:
    """It has the rows of a directory, and is read by its name; it is replaced only with ``--overwrite``."""
    from zonemta_py.pipeline.feedback.reports import DsnRequest, read_matched_reports, read_reports

    plan, mail = ledger_of(spark, tmp_path / "plan"), str(as_mbox(tmp_path))
    names = ["table:letters.reports", f"{tmp_path}/out"]
    spark.sql(f"CREATE SCHEMA letters LOCATION '{tmp_path}/warehouse'")
    try:
        requests = [DsnRequest([mail], [plan], name) for name in names]
        of_table, of_directory = (read_reports(spark, each, no_progress) for each in requests)
        assert of_table == of_directory
        assert of_table.messages == len(MAIL)
        table, files = (read_matched_reports(spark, name) for name in names)
        assert table.schema.simpleString() == files.schema.simpleString()
        in_both = (sorted(str(row[:-1]) for row in each.collect()) for each in (table, files))
        assert len({tuple(rows) for rows in in_both}) == 1  # the time may be that of the run
        with pytest.raises(LocalError, match=r"table:letters\.reports: exists.*--overwrite"):
            read_reports(spark, requests[0], no_progress)
        assert read_reports(spark, replace(requests[0], overwrite=True), no_progress) == of_table
        with pytest.raises(LocalError, match=r"table:letters\.none: no reports here"):
            read_matched_reports(spark, "table:letters.none")
        received = spark.createDataFrame([(message,) for message in MAIL], "octets binary")
        received.write.saveAsTable("letters.received")
        of_mail = DsnRequest(["table:letters.received"], [plan], f"{tmp_path}/again")
        assert read_reports(spark, of_mail, no_progress) == of_directory
        for name, problem in ("reports", "no column octets"), ("none", "no mail here"):
            with pytest.raises(LocalError, match=rf"table:letters\.{name}: {problem}"):
                read_reports(
                    spark, DsnRequest([f"table:letters.{name}"], [], f"{tmp_path}/x"), no_progress
                )
    finally:
        spark.sql("DROP SCHEMA letters CASCADE")


@pytest.mark.parametrize("kind", ["mbox", "parquet", "jsonl"])
def test_mail_at_a_url(spark: "SparkSession", root: str, tmp_path: Path, kind: str) -> None:
    """Names without a suffix: a file is an mbox, a directory is what is in it, as on a path."""
    from zonemta_py.pipeline.feedback.reports import DsnRequest, read_reports
    from zonemta_py.pipeline.spark.files import write_bytes

    mail = f"{root}/received mail"
    if kind == "mbox":
        write_bytes(spark, mail, as_mbox(tmp_path).read_bytes())
    elif kind == "jsonl":
        write_bytes(spark, f"{mail}/2026/1.jsonl.gz", gzip.compress(as_table(tmp_path).read_bytes()))
        mail += "/2026"
    else:
        rows = spark.createDataFrame([(message,) for message in MAIL], "octets binary")
        rows.write.parquet(mail)
    counts = read_reports(spark, DsnRequest([mail], [], f"{root}/out"), no_progress)
    assert (counts.messages, counts.no_report, counts.unreadable) == (len(MAIL), 1, 0)


def test_maildirs_at_a_url(spark: "SparkSession", tmp_path: Path) -> None:
    """Nothing is read as no mail."""
    from zonemta_py.pipeline.feedback.reports import DsnRequest, read_reports

    request = DsnRequest([f"file://{as_maildirs(tmp_path)}"], [], str(tmp_path / "out"))
    with pytest.raises(LocalError, match="a maildir is read from a local directory only"):
        read_reports(spark, request, no_progress)


def test_no_mail(spark: "SparkSession", tmp_path: Path) -> None:
    from zonemta_py.pipeline.feedback.reports import DsnRequest, read_matched_reports, read_reports

    for path, problem in ((tmp_path, "neither a table nor a maildir"), (tmp_path / "x.mbox", "no mail")):  # fmt: skip
        with pytest.raises(LocalError, match=problem):
            read_reports(spark, DsnRequest([str(path)], [], str(tmp_path / "out")), no_progress)
    with pytest.raises(LocalError, match="no reports here"):
        read_matched_reports(spark, str(tmp_path))


def test_a_file_that_cannot_be_read(spark: "SparkSession", tmp_path: Path) -> None:
    """It is counted as unreadable; the others are read."""
    from zonemta_py.pipeline.feedback.reports import DsnRequest, read_reports

    path = as_maildirs(tmp_path)
    (path / "inbox" / "new" / "gone").symlink_to(tmp_path / "nowhere")
    counts = read_reports(spark, DsnRequest([str(path)], [], str(tmp_path / "out")), no_progress)
    assert (counts.messages, counts.unreadable) == (len(MAIL) + 1, 1)
    assert sum(counts.kinds.values()) == 7


def test_suppressed_addresses(spark: "SparkSession", tmp_path: Path) -> None:
    """Bounces from events and mail, and complaints. A later delivery cancels a bounce, not a complaint.

    A report about an address that is in no ledger does not count: reports are easily forged.
    """
    from zonemta_py.pipeline.events.rows import DAY_MS
    from zonemta_py.pipeline.feedback.bounces import SuppressRequest, make_suppression
    from zonemta_py.pipeline.feedback.reports import DsnRequest, read_reports

    now = now_ms()
    gone = {"event": "bounced", "code": 550, "status": "5.1.1", "reply": "no such user"}
    write_segment(
        tmp_path / "events",
        "a",
        [
            delivered(1, recipient="hard@x.example", time_ms=now - 5, **gone),
            delivered(2, recipient="back@x.example", time_ms=now - 9, **gone),
            delivered(3, recipient="back@x.example", time_ms=now - 5),
            delivered(4, recipient="old@x.example", time_ms=now - 200 * DAY_MS, **gone),
            delivered(
                5,
                recipient="full@x.example",
                time_ms=now,
                **{**gone, "status": "5.2.2", "reply": "full"},
            ),
            delivered(6, recipient="a@x.example", time_ms=now - 1000),
            delivered(7, recipient="c@x.example", time_ms=now + DAY_MS),
        ],
    )
    plan, reports = ledger_of(spark, tmp_path / "plan"), str(tmp_path / "reports")
    read_reports(spark, DsnRequest([str(as_table(tmp_path))], [plan], reports), no_progress)
    path = tmp_path / "suppressed.txt"
    request = SuppressRequest(
        open_log(spark, str(tmp_path / "events")), str(path), reports=[reports], days=30
    )
    assert make_suppression(spark, request, no_progress) == 4
    found = suppressed(path.read_text())
    assert set(found) == {"hard@x.example", "a@x.example", "b@x.example", "c@x.example"}
    assert found["c@x.example"]["reason"].startswith("complained on 20")
    assert found["a@x.example"]["reason"].startswith("bounced 5.1.1 on 20")
    assert (
        make_suppression(
            spark,
            SuppressRequest(open_log(spark, str(tmp_path / "events")), str(path), days=300),
            no_progress,
        )
        == 2
    )
