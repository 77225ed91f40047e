"""Point 22: rules of a domain that cannot be mapped; long lines in returned messages."""

import asyncio
import email
import smtplib
from email.policy import SMTP
from pathlib import Path

import pytest

from tests.kit.relay import received, relaying, staged
from zonemta_py.config.imports.kumomta import import_kumomta
from zonemta_py.config.imports.powermta import import_powermta
from zonemta_py.config.providers import load_providers
from zonemta_py.sink.script import Rule, Step
from zonemta_py.smtp.reports.digest import DigestRow, report_digest
from zonemta_py.smtp.reports.dsn import (
    SUBJECTS,
    RecipientReport,
    ReportedMessage,
    ReportHead,
    bounce_report,
    status_report,
)

KNOWN = load_providers(None, shipped=True)
LISTS = """
<smtp-pattern-list slow>
  reply /slow down/ mode=backoff
  reply /gone/ bounce-rcpt
</smtp-pattern-list>
"""


@pytest.mark.parametrize(
    ("domains", "remark"),
    [
        ("<domain lost.rollup>\nsmtp-pattern-list slow\n</domain>", "the rules of <domain lost.rollup> are left out"),
        ("<domain $none>\nsmtp-pattern-list slow\n</domain>", "the rules of <domain $none> are left out"),
        ("<virtual-mta a>\n<domain a.example>\nsmtp-pattern-list slow\n</domain>\n</virtual-mta>", "the rules of this block are left out"),
    ],
)  # fmt: skip
def test_rules_of_an_unknown_domain_are_not_those_of_all(
    tmp_path: Path, domains: str, remark: str
) -> None:
    path = tmp_path / "config"
    path.write_text(f"{domains}\n{LISTS}")
    found = import_powermta(path, KNOWN)
    assert found.rules == []
    assert f"smtp-pattern-list slow: {remark}" in [each.text for each in found.left]
    path.write_text(f"{domains}\n<domain b.example>\nsmtp-pattern-list slow\n</domain>\n{LISTS}")
    rules = import_powermta(path, KNOWN).rules
    assert {tuple(each["provider"]) for each in rules} == {("b_example",)}


@pytest.mark.parametrize("table", ['provider."none"', '"tool"', '"x.internal"', '"-bad.example"'])
def test_rules_of_kumomta_have_a_provider(tmp_path: Path, table: str) -> None:
    path = tmp_path / "shaping.toml"
    path.write_text(
        f'["a.example"]\nconnection_limit = 3\n[{table}]\n[[{table}.automation]]\n'
        'regex = "slow"\naction = "Suspend"\nduration = "1h"\n'
    )
    assert import_kumomta(path, KNOWN).rules == []


HEAD = ReportHead("relay.example", "r1", "me@here.example", "Sat, 21 Nov 2026 08:00:00 +0000")
FAILED = RecipientReport(
    "failed",
    "a@b.example",
    "5.1.1",
    "The server refused it.",
    "550 no " + "x" * 3000,
    "mx.b.example",
    "",
)
HEADER = b"Subject: " + b"word " * 600 + b"end\r\nX-Long: " + b"y" * 5000 + b"\r\nTo: a@b.example\r\n"
BODY = b"short\r\n" + b"z" * 998 + b"\r\n" + b"z" * 999 + b"\r\n" + b"<p>" * 10_000 + b"\r\n.\r\nlast"


@pytest.mark.parametrize("body", [BODY, BODY + "\u00e9".encode(), None])
def test_returned_messages_have_short_lines(body: bytes | None) -> None:
    """Long ones are broken as Postfix breaks them; nothing else changes, and nothing is lost."""
    message = ReportedMessage("m1", "Sat, 21 Nov 2026 07:00:00 +0000", HEADER, body)
    report = status_report(HEAD, message, [FAILED])
    assert max(map(len, report.body.split(b"\r\n"))) <= 998
    *_, returned = email.message_from_bytes(report.header + b"\r\n" + report.body, policy=SMTP).walk()
    if body == BODY:
        inner = returned.as_bytes().replace(b"\r\n", b"\n")
        assert inner.replace(b"\n ", b"").endswith(BODY.replace(b"\r\n", b"\n") + b"\n")
        assert b"z" * 998 + b"\n" + b"z" * 998 + b"\n z\n" in inner
        assert "".join(returned["X-Long"].split()) == "y" * 5000
        assert returned["Subject"].split() == ["word"] * 600 + ["end"]
    else:
        assert returned.get_content_type() == "text/rfc822-headers"
        assert b"yyy" in returned.get_payload(decode=True)


def test_returned_messages_of_qmails_form_have_short_lines() -> None:
    original = HEADER + b"\r\n" + "\u00e9".encode() * 3000 + b"\r\n"
    report = bounce_report(HEAD, [FAILED], sender="me@here.example", original=original, stripped=False)
    lines = report.body.split(b"\r\n")
    assert max(map(len, lines)) <= 998
    assert report.body.replace(b"\r\n ", b"").decode().count("\u00e9") == 3000
    explanation = lines[lines.index(b"<a@b.example>:") + 1 :]
    assert all(not line.startswith(b" ") for line in explanation[: explanation.index(b"")])


LONG = "\u00e9" * 3000


@pytest.mark.parametrize("to", ["me@here.example", "m\u00e9@here.example"])
@pytest.mark.parametrize("action", SUBJECTS)
def test_no_report_has_a_long_line(to: str, action: str) -> None:
    """Whatever servers, clients and the message said; of every kind, in every format."""
    head = ReportHead("relay.example", "r1", to, HEAD.date)
    about = RecipientReport(action, f"{'a' * 300}@b.example", "5.1.1", LONG, LONG, "m" * 255, HEAD.date, HEAD.date, f"rfc822;{LONG}")  # fmt: skip
    original = f"Subject: {LONG}\r\nX-{'n' * 1500}: x\r\n \t{' ' * 1500}x\r\n".encode()
    reports = [
        status_report(head, ReportedMessage("m1", HEAD.date, header, body, "e" * 2000), [about] * 3)
        for header in (HEADER, original)
        for body in (None, BODY, b"\xff" * 3000, b"=" * 3000, b"\t" * 3000 + b"x")
    ]
    reports += [
        bounce_report(
            head, [about], sender=sender, original=original + b"\r\n" + body, stripped=stripped
        )
        for sender in (to, "")
        for body in (BODY, b"\xff" * 3000)
        for stripped in (False, True)
    ]
    row = DigestRow(HEAD.date, "m1", about.recipient, action, LONG, LONG, "m" * 255)
    reports.append(report_digest(head, [row] * 3, 2))
    for report in reports:
        lines = (report.header + b"\r\n" + report.body).split(b"\r\n")
        assert max(map(len, lines)) <= 998
        assert not any(b"\n" in line or b"\r" in line for line in lines)


async def test_reports_of_a_relay_have_short_lines(directory: Path) -> None:
    """A zone for each format and part that is returned, plain messages and one with 8 bits."""
    zones = {
        "full": {"return": "full"},
        "headers": {"return": "headers"},
        "qmail": {"format": "qsbmf", "return": "full"},
        "cut": {"format": "qsbmf", "return": "full", "max_bytes": "12KiB"},
    }
    async with staged(directory) as stage:
        reply = "550 5.1.1 " + "no such user " * 30
        await stage.receiver("a.example", Rule(Step.RCPT, reply=reply))
        homes = {name: await stage.receiver(f"{name}.example") for name in zones}
        config = stage.config(
            zones={name: {"bounce": bounce} for name, bounce in zones.items()},
            routing=[{"sender_domain": f"{name}.example", "zone": name} for name in zones],
        )
        async with relaying(config) as relay:
            host, port = relay.addresses[0]

            def submit(sender: str, body: bytes) -> None:
                with smtplib.SMTP(host, port, "client.example") as client:
                    client.sendmail(sender, ["x@a.example"], HEADER + b"\r\n" + body)

            for name, home in homes.items():
                for count, body in enumerate((BODY, "\u00e9".encode() * 3000), 1):
                    await asyncio.to_thread(submit, f"s@{name}.example", body)
                    report = (await received(home, count))[-1].data
                    assert max(map(len, report.split(b"\r\n"))) <= 998, (name, count)
                    assert b"y" * 900 in report
                    assert b"550 5.1.1 no such user" in report
