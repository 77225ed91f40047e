"""Lists in, messages out: rows, merge fields, the journal, and a submission that is cut off."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.config.endpoints import HostPort
from zonemta_py.core.errors import LocalError
from zonemta_py.sink.script import Rule, Script, Step
from zonemta_py.sink.server import Sink
from zonemta_py.submit.client import ListSubmission, SubmissionSettings, SubmissionSummary
from zonemta_py.submit.journal import ACCEPTED, DEFERRED, Journal, digest
from zonemta_py.submit.merge import MergeError, Template
from zonemta_py.submit.recipients import ListRow, read_rows

LETTER = b"From: a@b.example\nTo: {{email}}\nSubject: Dear {{ name }}\n\nHello {{name}}!\n.dot\n"


def test_csv_and_json_lines(directory: Path) -> None:
    """Header names, quotes, UTF-8 with a mark, bad rows that do not stop the others."""
    path = directory / "list.csv"
    path.write_text(
        '\ufeffname,Email,email\n"O\'Neil, Zoë",x,zoë@b.example\nbad,y,nobody\nlast,z,A@B.example\n',
        encoding="utf-8",
    )
    rows = list(read_rows(str(path)))
    assert [(row.address, bool(row.problem)) for row in rows] == [
        ("zoë@b.example", False),
        ("nobody", True),
        ("A@b.example", False),
    ]
    assert rows[0].fields["name"] == "O'Neil, Zoë"
    path.write_text(
        '{"email": "a@b.example", "n": 1}\n\nnonsense\n[1]\n{"email": "c@d.example", "n": null}\n'
    )
    rows = list(read_rows(str(path)))
    assert [(row.number, row.address) for row in rows if not row.problem] == [
        (1, "a@b.example"),
        (5, "c@d.example"),
    ]
    assert [row.fields.get("n") for row in rows] == ["1", None, None, ""] or len(rows) == 4


@pytest.mark.parametrize("header", ["Name,EMAIL", "name,\ufeffEmail ", "Name,Address"])
def test_the_case_of_a_header(directory: Path, header: str) -> None:
    path = directory / "list.csv"
    path.write_text(f"{header}\nA,a@x.example\n", encoding="utf-8")
    assert [row.address for row in read_rows(str(path))] == ["a@x.example"]


def test_no_list(directory: Path) -> None:
    path = directory / "list.csv"
    path.write_text("name,phone\nx,1\n")
    with pytest.raises(
        LocalError, match=r"list\.csv:2: no column email or address or recipient; columns: name, phone"
    ):
        list(read_rows(str(path)))
    assert next(read_rows(str(path), "name")).problem
    with pytest.raises(LocalError, match="No such file"):
        list(read_rows(str(directory / "nope")))
    path.write_bytes(b"email\n\xff\xfe@b.example\n")
    with pytest.raises(LocalError, match="utf-8"):
        list(read_rows(str(path)))
    path.write_text("")
    assert list(read_rows(str(path))) == []


def test_merge() -> None:
    """Values are inserted, line ends become CRLF, and a list cannot inject header fields."""
    template = Template(LETTER)
    assert template.personal
    assert template.fields == ["email", "name"]
    header, body = template.render(
        {"email": "a@b.example", "name": "Bob\r\nBcc: evil@x.example\r\n\r\nhi"}
    )
    assert (
        header == b"From: a@b.example\r\nTo: a@b.example\r\nSubject: Dear Bob Bcc: evil@x.example hi\r\n"
    )
    assert body.startswith(b"Hello Bob\r\nBcc: evil@x.example\r\n\r\nhi!\r\n.dot\r\n")
    header, body = template.render({"email": "e@b.example", "name": "Zoë"})
    assert b"=?utf-8?" in header.lower()
    assert "Hello Zoë!".encode() in body
    assert not Template(b"Subject: x\n\nplain { { }} {{}} text").personal
    with pytest.raises(MergeError, match="no value for 'name'"):
        template.render({"email": "x"})


@given(st.text(max_size=300))
def test_no_value_breaks_out_of_its_header(value: str) -> None:
    """For any value: one header field, lines of a length that mail allows, no bare line ends."""
    value = value.encode("utf-8", "replace").decode()
    header, _ = Template(b"X-Name: {{n}}\nEnd: yes\n\nbody\n").render({"n": value})
    lines = header.split(b"\r\n")
    assert b"\r" not in b"".join(lines) and b"\n" not in b"".join(lines) and b"\0" not in header
    assert lines[-2:] == [b"End: yes", b""]
    assert lines[0].startswith(b"X-Name: ")
    assert all(line.startswith(b" ") for line in lines[1:-2])


def test_template_edges() -> None:
    assert Template(b"\nbody").render({}) == (b"", b"body\r\n")
    assert Template(b"Subject: x\r\n\r\n").render({}) == (b"Subject: x\r\n", b"")
    assert Template(b"Subject: x").render({})[0].startswith(b"Subject: x")


async def test_journal(directory: Path) -> None:
    """Reads what was sent; a truncated last line, another message, a second process."""
    path = directory / "j"
    journal = Journal(path, "s@x.example", "hash")
    await asyncio.gather(*(journal.sent([f"{n}@x.example"]) for n in range(20)))
    await journal.answered(ACCEPTED, ["1@x.example"], "250 ok")
    await journal.answered(DEFERRED, ["2@x.example"], "451 later")
    with pytest.raises(LocalError, match="another submission uses"):
        Journal(path, "s@x.example", "hash")
    journal.close()
    with path.open("ab") as file:
        file.write(b'{"accepted":["3@x.exa')
    again = Journal(path, "s@x.example", "hash")
    assert again.done == {digest("1@x.example")}
    assert digest("3@x.example") in again.uncertain
    assert digest("2@x.example") not in again.uncertain
    await again.answered(ACCEPTED, ["3@x.example"], "250 ok")
    again.close()
    with pytest.raises(LocalError, match="another message or sender"):
        Journal(path, "s@x.example", "other")
    third = Journal(path, "s@x.example", "hash")
    assert digest("3@x.example") in third.done
    third.close()
    (directory / "torn").write_bytes(b'{"journal":1,"fr')
    Journal(directory / "torn", "s", "h").close()
    Journal(directory / "torn", "s", "h").close()
    (directory / "other").write_bytes(b"[1]\n")
    with pytest.raises(LocalError, match="not a journal"):
        Journal(directory / "other", "s", "h")


def _settings(port: int, template: Template, **changes: object) -> SubmissionSettings:
    values: dict[str, Any] = {
        "sender": "s@x.example", "template": template, "relay": HostPort("127.0.0.1", port), "ip": "127.0.0.1",
        "ehlo": "me.example", "tls": "off", "credentials": None, "connections": 4, "recipients_per_message": 10,
        "resend_uncertain": False, **changes,
    }  # fmt: skip
    return SubmissionSettings(**values)


def _rows(count: int) -> Iterator[ListRow]:
    return (
        ListRow(n, f"{n}@d{n % 3}.example", {"email": f"{n}@x", "name": f"N{n}"}) for n in range(count)
    )


async def _submit(
    settings: SubmissionSettings, rows: Iterator[ListRow], journal: Journal | None = None
) -> SubmissionSummary:
    return await ListSubmission(settings, rows, journal, lambda count: None).run()


PLAIN = Template(b"Subject: x\n\nbody\n")


async def test_everyone_once_and_refusals_with_their_reply() -> None:
    sink = Sink(Script([Rule(Step.RCPT, recipient="*5@*", reply="550 5.1.1 no")]), keep=True)
    port = await sink.start()
    rows = iter([*_rows(100), ListRow(101, "bad", {}, "not an address"), *_rows(10)])
    summary = await _submit(_settings(port, PLAIN), rows)
    assert dict(summary.counts) == {"accepted": 90, "refused": 10, "invalid": 1, "duplicate": 10}
    assert ("5@d2.example", "550 5.1.1 no") in summary.refusals
    assert not summary.complete
    assert set(sink.tally.by_recipient.values()) == {1}
    assert max(len(m.recipients) for m in sink.messages) > 1
    await sink.close()


async def test_addresses_are_compared_as_plan_does(directory: Path) -> None:
    """Without regard to case, also with what an earlier run recorded; --case-sensitive distinguishes."""
    sink = Sink(keep=True)
    port = await sink.start()
    given = [
        "Ann@x.example",
        "ann@x.example",
        "ANN@x.example",
        "bob@x.example",
        "Zoë@x.example",
        "ZOË@x.example",
    ]

    def rows() -> Iterator[ListRow]:
        return (ListRow(number, address, {}) for number, address in enumerate(given))

    async def run(**changes: Any) -> dict[str, int]:
        journal = Journal(directory / "j", "s@x.example", "h", **changes)
        try:
            return dict((await _submit(_settings(port, PLAIN, **changes), rows(), journal)).counts)
        finally:
            journal.close()

    assert await run() == {"accepted": 3, "duplicate": 3}
    given = ["ANN@x.example", "BOB@x.example", "cid@x.example"]
    assert await run() == {"before": 2, "accepted": 1}
    assert await run(case_sensitive=True) == {"accepted": 2, "before": 1}
    await sink.close()


async def test_a_personal_message_each() -> None:
    sink = Sink(keep=True)
    port = await sink.start()
    summary = await _submit(_settings(port, Template(LETTER)), _rows(30))
    assert summary.complete
    assert len(sink.messages) == 30
    for message in sink.messages:
        number = message.recipients[0].partition("@")[0]
        assert f"Hello N{number}!\r\n.dot\r\n".encode() in message.data
    with pytest.raises(BaseExceptionGroup):
        await _submit(_settings(port, Template(b"Subject: {{missing}}\n\n")), _rows(3))
    await sink.close()


async def test_the_relays_limit_on_recipients_is_followed() -> None:
    """452 after 3: the remaining recipients are sent in further transactions."""

    class Limit(Script):
        def match(
            self, step: Step, argument: str, sender: str, recipients: object, local: str, session: int
        ) -> Rule | None:
            if step is Step.RCPT and isinstance(recipients, list) and len(recipients) >= 3:
                return Rule(Step.RCPT, reply="452 4.5.3 Too many recipients")
            return None

    sink = Sink(Limit(()), keep=True)
    port = await sink.start()
    summary = await _submit(_settings(port, PLAIN), _rows(50))
    assert summary.counts["accepted"] == 50
    assert max(len(m.recipients) for m in sink.messages) == 3
    await sink.close()


async def test_a_relay_that_drops_and_one_that_is_not_there() -> None:
    """A session lost before the dot loses no recipient; a relay that is down ends the run with an error."""
    sink = Sink(Script([Rule(Step.DATA, drop=True, times=1)]), keep=True)
    port = await sink.start()
    summary = await _submit(_settings(port, PLAIN, connections=2, recipients_per_message=1), _rows(20))
    assert summary.counts["accepted"] == 20
    await sink.close()
    summary = await _submit(_settings(port, PLAIN, connections=1), _rows(20))
    assert not summary.complete
    assert "refused" in summary.failure


async def test_resume_sends_to_no_recipient_twice(directory: Path) -> None:
    """A recipient whose reply was lost is uncertain, and skipped unless --resend-uncertain is given."""
    sink = Sink(
        Script(
            [
                Rule(Step.DOT, drop=True, recipient="7@*", times=1),
                Rule(Step.RCPT, recipient="3@*", reply="451 4.3.0 later", times=1),
            ]
        ),
        keep=True,
    )
    port = await sink.start()

    async def run(**changes: object) -> SubmissionSummary:
        journal = Journal(directory / "j", "s@x.example", "h")
        try:
            return await _submit(
                _settings(port, PLAIN, recipients_per_message=1, **changes), _rows(20), journal
            )
        finally:
            journal.close()

    first = await run()
    assert (first.counts["accepted"], first.counts["uncertain"], first.counts["deferred"]) == (18, 1, 1)
    second = await run()
    assert (second.counts["accepted"], second.counts["before"], second.counts["uncertain"]) == (1, 18, 1)
    third = await run(resend_uncertain=True)
    assert (third.counts["accepted"], third.counts["before"]) == (1, 19)
    fourth = await run()
    assert fourth.counts["before"] == 20
    assert fourth.complete
    assert set(sink.tally.by_recipient.values()) == {1}
    await sink.close()
