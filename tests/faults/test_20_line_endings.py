"""20. ``line_endings: normalise``: bare LF becomes CRLF for who may relay; what only looks like the end of data is refused as before."""

import asyncio
import base64
import re
import smtplib
from email.message import EmailMessage
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hostile.test_submitted_messages import ENDS, SMUGGLED
from tests.kit.listener import users_file
from tests.kit.relay import empty, received, relaying, staged
from tests.kit.smtp_client import RawClient
from zonemta_py.intake.message import LINE_MAX
from zonemta_py.smtp.transparency import DotDecoder, DotEncoder, LineCheck, LineNormaliser

ONE, MANY = {"receivers": 0, "senders": 0}, {"receivers": 2, "senders": 2}
NORMALISE = {"address": "127.0.0.1:0", "line_endings": "normalise"}
BARE = re.compile(rb"(?<!\r)\n|\r(?!\n)")


def python_message() -> EmailMessage:
    message = EmailMessage()
    message["Subject"], message["From"], message["To"] = "hi", "s@sender.example", "a@a.example"
    message.set_content("one\n.\n..two\n.three\n\nlast\n")
    return message


def take(wire: bytes, cuts: list[int]) -> tuple[bytes, bool, bytes]:
    """What a session stores of ``wire``, whether it refuses it, and what it takes for commands."""
    decoder, check = DotDecoder(), LineCheck(LINE_MAX)
    normaliser: LineNormaliser | None = None
    out, last = b"", b""
    ends = [*sorted(cuts), len(wire)]
    for at, end in zip([0, *ends], ends, strict=False):
        if decoder.done:
            decoder.trailing += wire[at:end]
            continue
        data = decoder.feed(wire[at:end])
        check.feed(data)
        if check.bare and normaliser is None:
            normaliser = LineNormaliser(after_cr=last == b"\r")
        last = data[-1:] or last
        out += data if normaliser is None else normaliser.feed(data)
    check.finish()
    if normaliser is not None:
        out += normaliser.feed(b"", final=True)
    refused = check.bare_cr or decoder.lookalike or (normaliser is not None and normaliser.lookalike)
    return out, refused or not decoder.done, decoder.trailing


lines = st.lists(st.sampled_from([b"", b".", b"..", b".x", b"x", b"y" * 70]), max_size=12)


@given(lines, st.lists(st.integers(0, 200), max_size=6))
def test_what_python_sends(text: list[bytes], cuts: list[int]) -> None:
    """``sendmail(…, message.as_bytes())``: smtplib doubles the dot after each LF, and ends with CRLF, dot, CRLF."""
    body = b"".join(line + b"\n" for line in text)
    wire = re.sub(rb"(?m)^\.", b"..", body)
    wire += (b"" if wire.endswith(b"\r\n") else b"\r\n") + b".\r\n"
    out, refused, rest = take(wire, [min(cut, len(wire)) for cut in cuts])
    assert not refused
    assert rest == b""
    assert out == body.replace(b"\n", b"\r\n") + b"\r\n"


PIECES = [b"\r", b"\n", b"\r\n", b".", b"x"]


@given(st.lists(st.sampled_from(PIECES), max_size=14), st.lists(st.integers(0, 40), max_size=5))
def test_no_stored_message_is_two(pieces: list[bytes], cuts: list[int]) -> None:
    """Whatever comes is refused, or has only CRLF and is one message for every receiver; cuts change nothing."""
    wire = b"".join(pieces) + b"\r\n.\r\n"
    out, refused, rest = take(wire, [])
    assert take(wire, [min(cut, len(wire)) for cut in cuts]) == (out, refused, rest)
    if refused:
        return
    assert not BARE.search(out)
    encoder = DotEncoder()
    sent = encoder.feed(out) + encoder.finish()
    assert re.split(rb"\r\n|\r|\n", sent).count(b".") == 1  # with any notion of a line end
    assert sent.endswith(b"\r\n.\r\n") or sent == b".\r\n"


@pytest.mark.parametrize("end", ENDS, ids=repr)
def test_look_alikes_are_refused(end: bytes) -> None:
    """Each published look-alike of the end of data; the commands behind it are part of the refused message."""
    out, refused, rest = take(b"Subject: s\r\n\r\nfirst" + end + SMUGGLED, [])
    assert refused or b"\0" in out  # NUL is refused, too
    assert rest == b""


@pytest.mark.parametrize("processes", [ONE, MANY], ids=["0/0", "2/2"])
async def test_python_and_smugglers(directory: Path, processes: dict[str, int]) -> None:
    """A trusted and an authenticated client may send bare LF; neither may smuggle; the second listener refuses both."""
    users = str(users_file(directory))
    stranger = {**NORMALISE, "trusted_networks": [], "senders": "any",
                "auth": {"users_file": users, "require_tls": False}}  # fmt: skip
    async with staged(directory) as stage:
        sinks = [await stage.receiver("a.example"), await stage.receiver("b.example")]
        config = stage.config(
            processes=processes, listeners=[NORMALISE, {"address": "127.0.0.1:0"}, stranger],
            zones={"second": {}}, routing=[{"recipient_domain": "b.example", "zone": "second"}],
        )  # fmt: skip
        async with relaying(config) as relay:
            normalising, strict, guarded = (port for _, port in relay.addresses)
            data = python_message().as_bytes()
            to = ["u@a.example", "u@b.example"]

            def submit(port: int, password: str = "") -> str:
                with smtplib.SMTP("127.0.0.1", port, "client.example") as client:
                    if password:
                        client.login("news", password)
                    try:
                        client.sendmail("s@sender.example", to, data)
                    except smtplib.SMTPResponseException as exc:
                        return f"{exc.smtp_code} {exc.smtp_error!r}"
                    return "250"

            assert await asyncio.to_thread(submit, normalising) == "250"
            assert await asyncio.to_thread(submit, guarded, "secret") == "250"
            assert (await asyncio.to_thread(submit, guarded)).startswith("530")
            assert (await asyncio.to_thread(submit, strict)).startswith("554")
            login = "AUTH PLAIN " + base64.b64encode(b"\0news\0secret").decode()
            for port in (normalising, strict, guarded):
                for end in ENDS:
                    async with await RawClient.connect(port) as raw:
                        await raw.ehlo()
                        if port == guarded:
                            assert (await raw.command("MAIL FROM:<s@x.example>")).startswith("530")
                            assert (await raw.command(login)).startswith("235")
                        reply = await raw.message(
                            b"Subject: s\r\n\r\nfirst" + end + SMUGGLED, "x@a.example"
                        )
                        assert reply.startswith("554"), (end, reply)
                        assert (await raw.command("NOOP")).startswith("250")
            await empty(relay)
            expected = data.partition(b"\n\n")[2].replace(b"\n", b"\r\n")
            for sink in sinks:
                for message in await received(sink, 2):
                    assert not BARE.search(message.data)
                    assert message.data.partition(b"\r\n\r\n")[2].rstrip() == expected.rstrip()
            assert [sink.tally.messages for sink in sinks] == [2, 2]
