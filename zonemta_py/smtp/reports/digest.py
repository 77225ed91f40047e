"""One message instead of many reports: counts, and a table of the recipients as an attachment. Pure."""

import csv
from base64 import encodebytes
from collections import Counter
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import NamedTuple

from zonemta_py.smtp.address import domain_of
from zonemta_py.smtp.reports.dsn import Report, ReportHead, plain_header

COLUMNS = ("time", "message", "recipient", "action", "status", "reply", "host")
SHOWN_MAX = 20  # of the most frequent statuses and domains


class DigestRow(NamedTuple):
    """One recipient in COLUMNS; ``time`` is a date of RFC 5322, ``message`` a queue id."""

    time: str
    message: str
    recipient: str
    action: str
    status: str
    reply: str
    host: str


def report_digest(head: ReportHead, rows: Sequence[DigestRow], reports: int) -> Report:
    """The digest of ``reports`` reports on ``rows``, 1 or more. All of it is ASCII."""
    boundary = f"{head.report_id}.digest"
    header = plain_header(head, f"{reports} delivery reports") + (
        f'MIME-Version: 1.0\r\nContent-Type: multipart/mixed;\r\n\tboundary="{boundary}"\r\n'
    )
    table = StringIO()
    writer = csv.writer(table, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    writer.writerows(rows)
    base64 = "Content-Transfer-Encoding: base64\r\n"
    parts = [
        f"Content-Type: text/plain; charset=utf-8\r\n{base64}\r\n"
        + _encoded(_summary(head, rows, reports)),
        f"Content-Type: text/csv; charset=utf-8; name=reports.csv\r\n{base64}"
        "Content-Disposition: attachment; filename=reports.csv\r\n\r\n" + _encoded(table.getvalue()),
    ]
    body = "".join(f"--{boundary}\r\n{part}" for part in parts) + f"--{boundary}--\r\n"
    return Report(header.encode(), body.encode("ascii"))


def _encoded(text: str) -> str:
    return encodebytes(text.encode()).decode("ascii").replace("\n", "\r\n")


def _summary(head: ReportHead, rows: Sequence[DigestRow], reports: int) -> str:
    lines = [
        f"This is the mail relay at {head.hostname}.",
        "",
        f"More reports on your mail were due in this hour than are sent one by one: {reports} of them, about "
        f"{len(rows)} recipients, are in the table reports.csv.",
    ]
    counts = (
        ("By result", (row.action for row in rows)),
        ("By status", (row.status for row in rows)),
        ("By domain", (domain_of(row.recipient) for row in rows)),
    )
    for title, values in counts:
        lines += ["", f"{title}:", *_most_frequent(values)]
    return "".join(f"{line}\r\n" for line in lines)


def _most_frequent(values: Iterable[str]) -> list[str]:
    counted = Counter(values)
    shown = [f"{count:>8}  {value}" for value, count in counted.most_common(SHOWN_MAX)]
    rest = counted.total() - sum(count for _, count in counted.most_common(SHOWN_MAX))
    return [*shown, f"{rest:>8}  others"] if rest else shown
