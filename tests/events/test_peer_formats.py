"""The event log as PowerMTA's accounting and KumoMTA's log: from a relay's own events, and by the command."""

import csv
import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.kit.relay import empty, relaying, send, staged
from zonemta_py.cli.main import main
from zonemta_py.core.codec import to_json
from zonemta_py.events.export import POWERMTA_COLUMNS, kumomta_record, powermta_rows, without_repeats
from zonemta_py.events.log import Extent, write_extent
from zonemta_py.events.segment_reading import by_number, sealed_segments
from zonemta_py.events.segments import Segment
from zonemta_py.sink.script import Rule, Step

TEXT = b'X-Campaign: june\r\nSubject: "a, b"\r\nMessage-ID: <one@news.example>\r\n\r\nx\r\n'
ATTEMPT: dict[str, Any] = {
    "node": "abcdef", "seq": 7, "position": 0, "event": "bounced", "time_ms": 1_795_600_000_123, "created_ms": 1_795_599_990_000,
    "message": "01a212197cf0000001abcdef", "index": 0, "recipient": "x@a.example", "zone": "bulk", "domain": "a.example",
    "sender": "news@sender.example", "submitter": "ann", "tenant": "acme", "campaign": "june", "tags": [], "attempt": 2,
    "phase": "rcpt", "code": 552, "status": "5.2.2", "reply": 'over "quota", sorry', "mx": "mx.a.example",
    "mx_ip": "192.0.2.25", "source_ip": "203.0.113.7", "tls": True, "duration_ms": 12, "class": "mailbox_full",
    "provider": "big", "report": "",
}  # fmt: skip


def exported(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["export", *(str(each) for each in arguments)])


def test_a_bounce() -> None:
    """Every column of it, in both formats."""
    (row,) = powermta_rows(ATTEMPT)
    assert {name: value for name, value in row.items() if value} == {
        "type": "b", "timeLogged": "2026-11-25 09:46:40+0000", "timeQueued": "2026-11-25 09:46:30+0000",
        "orig": "news@sender.example", "rcpt": "x@a.example", "dsnAction": "failed", "dsnStatus": "5.2.2",
        "dsnDiag": 'smtp;552 5.2.2 over "quota", sorry', "dsnMta": "mx.a.example (192.0.2.25)", "bounceCat": "quota-issues",
        "dlvType": "smtp", "dlvSourceIp": "203.0.113.7", "dlvDestinationIp": "192.0.2.25", "vmta": "203.0.113.7",
        "jobId": "june", "queue": "a.example/bulk", "vmtaPool": "bulk",
    }  # fmt: skip
    assert tuple(row) == POWERMTA_COLUMNS
    found = kumomta_record(ATTEMPT)
    assert found == {
        "type": "Bounce", "id": "01a212197cf0000001abcdef", "sender": "news@sender.example", "recipient": "x@a.example",
        "queue": "june:acme@a.example", "site": "203.0.113.7->big", "size": 0,
        "response": {
            "code": 552, "enhanced_code": {"class": 5, "subject": 2, "detail": 2}, "content": 'over "quota", sorry',
            "command": None,
        },
        "peer_address": {"name": "mx.a.example", "addr": "192.0.2.25"},
        "timestamp": 1_795_600_000, "event_time": "2026-11-25T09:46:40.123Z", "created": 1_795_599_990,
        "created_time": "2026-11-25T09:46:30.000Z", "num_attempts": 2, "bounce_classification": "QuotaIssues",
        "egress_pool": "bulk", "egress_source": "203.0.113.7", "source_address": {"address": "203.0.113.7"},
        "feedback_report": None, "meta": {"tenant": "acme", "campaign": "june"}, "headers": {}, "delivery_protocol": "ESMTP",
        "reception_protocol": None, "nodeid": "abcdef", "provider_name": "big",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "powermta", "kumomta"),
    [
        ({"event": "delivered", "class": "", "phase": "dot", "code": 250}, ("d", ""), ("Delivery", "Uncategorized")),
        ({"event": "deferred", "class": "greylisted"}, ("t", "policy-related"), ("TransientFailure", "TransientFailure")),
        ({"event": "expired", "class": "no_answer", "code": 0, "status": "", "mx_ip": ""}, ("b", "no-answer-from-host"), ("Expiration", "NoAnswerFromHost")),
        ({"event": "bounced", "phase": "operator", "class": "other"}, ("b", "other"), ("AdminBounce", "Uncategorized")),
        ({"event": "bounced", "class": "of a later version"}, ("b", "other"), ("Bounce", "Uncategorized")),
    ],
)  # fmt: skip
def test_types_and_classes(
    changed: dict[str, Any], powermta: tuple[str, str], kumomta: tuple[str, str]
) -> None:
    """With their names of the class; a class that this version lacks is no error."""
    record = ATTEMPT | changed
    (row,) = powermta_rows(record)
    assert (row["type"], row["bounceCat"]) == powermta
    found = kumomta_record(record)
    assert found is not None
    assert (found["type"], found["bounce_classification"]) == kumomta


@pytest.mark.parametrize("event", ["held", "shaped", "moved", "uncertain"])
def test_events_that_they_do_not_have(event: str) -> None:
    """No row, whatever the fields are."""
    assert list(powermta_rows({"event": event})) == []
    assert kumomta_record({"event": event}) is None


@pytest.mark.parametrize(
    ("campaign", "tenant", "queue"),
    [("", "", "a.example"), ("", "acme", "acme@a.example"), ("june", "", "june:@a.example"), ("june", "acme", "june:acme@a.example")],
)  # fmt: skip
def test_the_name_of_a_scheduled_queue(campaign: str, tenant: str, queue: str) -> None:
    found = kumomta_record(ATTEMPT | {"campaign": campaign, "tenant": tenant})
    assert found is not None
    assert found["queue"] == queue


def test_repeated_records_are_exported_once() -> None:
    records = [ATTEMPT, ATTEMPT | {"position": 1}, ATTEMPT, ATTEMPT | {"node": "other"}]
    assert [r["position"] for r in without_repeats(records)] == [0, 1, 0]


async def test_the_log_of_a_relay(directory: Path) -> None:
    """Accepted, delivered, deferred and bounced; of these events only some, in a file that is there when it is complete."""
    async with staged(directory) as stage:
        await stage.receiver(
            "a.example",
            Rule(Step.RCPT, recipient="no*", reply="550 5.1.1 no such user, sorry"),
            Rule(Step.RCPT, recipient="full*", reply="552 5.2.2 mailbox full"),
        )
        await stage.receiver("sender.example")
        config = stage.config()
        async with relaying(config) as relay:
            await send(relay, ["ok@a.example", "no@a.example", "full@a.example"], TEXT)
            await empty(relay)
        shown = exported("-c", config.path, "--format", "powermta")
        assert shown.exit_code == 0, shown.output
        rows = list(csv.DictReader(io.StringIO(shown.stdout)))
        by_address = {
            (row["type"], row["rcpt"]): row for row in rows if row["rcpt"].endswith("@a.example")
        }
        assert set(by_address) == {
            ("r", "ok@a.example"), ("r", "no@a.example"), ("r", "full@a.example"),
            ("d", "ok@a.example"), ("b", "no@a.example"), ("b", "full@a.example"),
        }  # fmt: skip
        assert by_address["b", "no@a.example"]["bounceCat"] == "bad-mailbox"
        assert by_address["b", "full@a.example"]["bounceCat"] == "quota-issues"
        assert by_address["b", "no@a.example"]["dsnDiag"] == "smtp;550 5.1.1 no such user, sorry"
        assert {row["jobId"] for row in by_address.values()} == {"june"}
        output = directory / "log.jsonl"
        shown = exported("-c", config.path, "--format", "kumomta", "--event", "bounced", "-o", output)
        assert (shown.exit_code, shown.output) == (0, "")
        found = [json.loads(line) for line in output.read_text().splitlines()]
        assert {(each["type"], each["recipient"], each["bounce_classification"]) for each in found} == {
            ("Bounce", "no@a.example", "InvalidRecipient"), ("Bounce", "full@a.example", "QuotaIssues"),
        }  # fmt: skip
        later = exported("-c", config.path, "--format", "kumomta", "--from", "2099-01-01")
        assert (later.exit_code, later.stdout) == (0, "")
        earlier = exported("-c", config.path, "--format", "kumomta", "--to", "2020-01-01")
        assert (earlier.exit_code, earlier.stdout) == (0, "")


def test_a_damaged_segment_is_named_and_the_others_are_exported(tmp_path: Path) -> None:
    """Exit 1; without an event log there is a hint."""
    events = tmp_path / "events"
    events.mkdir()
    for seq in (1, 2):
        segment = Segment(events, "abcdef", seq, seq - 1)
        record = ATTEMPT | {"seq": seq}
        segment.append(to_json(record) + b"\n", seq)
        segment.seal(1_795_600_000_000)
    first, second = sealed_segments(events)
    first.write_bytes(bytes(len(first.read_bytes())))
    shown = exported("--events", events, "--format", "powermta")
    assert shown.exit_code == 1
    assert len(shown.stdout.splitlines()) == 2, "the header and the bounce of the second"
    assert first.name in shown.stderr
    assert second.name not in shown.stderr
    first.write_bytes(b"")
    assert exported("--events", events, "--format", "powermta").exit_code == 1
    first.unlink()
    shown = exported("--events", events, "--format", "powermta")
    assert (shown.exit_code, "missing" in shown.stderr) == (0, False), (
        "the oldest are removed on purpose"
    )
    missing = exported("--events", tmp_path / "none", "--format", "powermta")
    assert (missing.exit_code, "there is no event log here" in missing.stderr) == (1, True)
    assert exported("--format", "powermta").exit_code == 2
    empty = exported(
        "--events", events, "--format", "powermta", "--from", "2026-02-02", "--to", "2026-02-01"
    )
    assert (empty.exit_code, "--to is not later than --from" in empty.stderr) == (2, True)


def test_a_gap_in_front_of_the_range_is_not_named(tmp_path: Path) -> None:
    """As for ``history``: of three segments, a day apart each, events are missing in front of the second."""
    events = tmp_path / "events"
    events.mkdir()
    for seq, previous, day in ((1, 0, 24), (9, 8, 25), (10, 9, 27)):
        segment = Segment(events, "abcdef", seq, previous)
        segment.append(to_json(ATTEMPT | {"seq": seq}) + b"\n", seq)
        segment.seal(round(datetime(2026, 11, day, tzinfo=UTC).timestamp() * 1000))
    for since, code in (("2026-11-24", 1), ("2026-11-27", 0), ("2026-11-29", 0)):
        shown = exported("--events", events, "--format", "kumomta", "--from", since)
        assert (shown.exit_code, "are missing" in shown.stderr) == (code, bool(code)), since
    write_extent(events, "abcdef", Extent(0, 10))
    assert exported("--events", events, "--format", "kumomta", "--from", "2026-11-29").exit_code == 0
    by_number(sealed_segments(events))[-1].unlink()  # the end of the log is missing
    assert exported("--events", events, "--format", "kumomta", "--from", "2026-11-29").exit_code == 1
