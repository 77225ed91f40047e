"""Point 4: merge fields in encoded parts and fields; the same message by `submit` and by `pipeline send`."""

import asyncio
import csv
import email
import html
import io
import re
import sys
from asyncio.subprocess import PIPE, STDOUT
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner, Result

from zonemta_py.cli.main import main
from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.send.submission import (
    ACCEPTED,
    REFUSED,
    EnvelopeSubmitter,
    PlannedEnvelope,
    SubmitOptions,
)
from zonemta_py.sink.server import Sink

LETTER = b"""\
From: News <news@sender.example>
To: {{name}} <{{email}}>
Subject: For {{name}}
MIME-Version: 1.0
Content-Type: text/html; charset=utf-8
Content-Transfer-Encoding: quoted-printable

<a href=3D"https://shop.example/?t=3D{{token}}">{{name}}</a>
"""
LIST = """\
email,name,token
ann@dest.example,"Smith, Ann",id=41f3=42
bob@dest.example,Dept: Sales; North,YWJjZA==
zoe@dest.example,Zoë <zoe@other.example>,=3D=
"""
ENCODED = b"""\
From: News <news@sender.example>
To: =?utf-8?q?{{name=7Cfriend}}?= <{{email}}>
Subject: =?utf-8?B?SGVsbG8ge3tuYW1lfX0h?=
MIME-Version: 1.0
Content-Type: text/html; charset=utf-8
Content-Transfer-Encoding: base64

PGEgaHJlZj0iaHR0cHM6Ly9zaG9wLmV4YW1wbGUvP3Q9e3t0b2tlbn19Ij57e25hbWV9fTwvYT4K
"""
UNREACHABLE = LETTER + b"<script>track('{{token}}')</script>\n"


def zonemta(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


async def submit(*arguments: object) -> tuple[int | None, str]:
    """Exit code and output of the command, in a process of its own: it sets a signal handler."""
    command = [sys.executable, "-m", "zonemta_py", "submit", *map(str, arguments)]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=STDOUT)
    output, _ = await process.communicate()
    return process.returncode, output.decode()


def rows() -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(LIST)))


def check(messages: list[Any], subject: str) -> None:
    """Each row has its message, as a mail program shows it."""
    read = {each.recipients[0]: email.message_from_bytes(each.data, policy=default) for each in messages}
    assert len(messages) == len(read) == 3
    for row in rows():
        message = read[row["email"]]
        assert isinstance(message, EmailMessage)
        (found,) = message["to"].addresses
        assert (found.addr_spec, found.display_name) == (row["email"], row["name"])
        assert message["subject"] == subject.format(**row)
        link = re.search(r'<a href="(.*)">(.*)</a>', message.get_content())
        assert link is not None
        assert html.unescape(link[2]) == row["name"]
        assert parse_qs(urlsplit(html.unescape(link[1])).query) == {"t": [row["token"]]}


@pytest.mark.parametrize(("letter", "subject"), [(LETTER, "For {name}"), (ENCODED, "Hello {name}!")])
async def test_a_reader_sees_the_values_of_his_row(tmp_path: Path, letter: bytes, subject: str) -> None:
    (tmp_path / "list.csv").write_text(LIST, encoding="utf-8")
    (tmp_path / "letter.eml").write_bytes(letter)
    sink = Sink(keep=True)
    port = await sink.start()
    arguments = [tmp_path / "list.csv", "--message", tmp_path / "letter.eml", "--from", "news@sender.example"]  # fmt: skip
    checked = await asyncio.to_thread(zonemta, "submit", *arguments, "--relay", "127.0.0.1:1", "--check")
    assert "merge" not in checked.output
    assert (await submit(*arguments, "--relay", f"127.0.0.1:{port}"))[0] == 0
    check(sink.messages, subject)
    sink.messages.clear()
    submitter = EnvelopeSubmitter(SubmitOptions("news@sender.example", letter, (f"127.0.0.1:{port}",)))
    found = await submitter.send(
        PlannedEnvelope(f"k{number}", [(row["email"], row)]) for number, row in enumerate(rows())
    )
    await submitter.aclose()
    assert {result.state for result in found} == {ACCEPTED}
    check(sink.messages, subject)
    await sink.close()


async def test_what_cannot_be_reached_is_named_before_the_first_message(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text(LIST, encoding="utf-8")
    (tmp_path / "letter.eml").write_bytes(UNREACHABLE)
    sink = Sink(keep=True)
    port = await sink.start()
    arguments = [tmp_path / "list.csv", "--message", tmp_path / "letter.eml", "--from", "news@sender.example",
                 "--relay", f"127.0.0.1:{port}"]  # fmt: skip
    code, output = await submit(*arguments)
    problem = "{{token}}: a place in text/html where no value can be written"
    assert code == 1
    assert problem in output
    for found in (
        await asyncio.to_thread(zonemta, "submit", *arguments, "--check"),
        await asyncio.to_thread(zonemta, "lint", tmp_path / "letter.eml"),
    ):
        assert found.exit_code == 1
        assert f"error: merge: {problem}" in found.output
    with pytest.raises(LocalError, match="cannot be merged"):
        EnvelopeSubmitter(SubmitOptions("news@sender.example", UNREACHABLE, (f"127.0.0.1:{port}",)))
    assert sink.messages == []
    await sink.close()


async def test_a_value_that_cannot_stand_in_its_place_stops_no_other(tmp_path: Path) -> None:
    """A row without an address for Reply-To; a column that the list does not have, beside one."""
    letter = LETTER.replace(b"Subject:", b"Reply-To: {{token}}\nX-Note: {{nmae|x}}\nSubject:")
    (tmp_path / "list.csv").write_text(
        "email,name,token\na@dest.example,A,r@x.example\nb@dest.example,B,none\n"
    )
    (tmp_path / "letter.eml").write_bytes(letter)
    sink = Sink(keep=True)
    port = await sink.start()
    arguments = [tmp_path / "list.csv", "--message", tmp_path / "letter.eml", "--from", "news@sender.example",
                 "--relay", f"127.0.0.1:{port}"]  # fmt: skip
    output = (await submit(*arguments))[1]
    assert "1 accepted" in output
    assert "line 3 b@dest.example: Reply-To cannot have the address 'none'" in output
    checked = await asyncio.to_thread(zonemta, "submit", *arguments, "--check")
    assert "warning: merge: no row has a value for 'nmae': the default is used" in checked.output
    submitter = EnvelopeSubmitter(SubmitOptions("news@sender.example", letter, (f"127.0.0.1:{port}",)))
    row = {"email": "b@dest.example", "name": "B", "token": "none"}
    (found,) = await submitter.settle([PlannedEnvelope("k", [("b@dest.example", row)])])
    assert (found.state, found.code) == (REFUSED, 0)
    assert "Reply-To" in found.reply
    await submitter.aclose()
    assert len(sink.messages) == 1
    await sink.close()
