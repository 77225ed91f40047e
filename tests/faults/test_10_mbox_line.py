"""10. A header that does not begin, or ends early: what is not for the recipients is never shown as body."""

import smtplib
from pathlib import Path

import aiohttp
import pytest

from tests.kit.dkim import write_key
from tests.kit.relay import http_port, received, relaying, send, staged
from zonemta_py.core.errors import NotAccepted
from zonemta_py.intake.http import PATH
from zonemta_py.relay.relay import Relay
from zonemta_py.smtp.reply import RECIPIENT_FIELD, SENDER_FIELD, encode_address, read_reply

FIRST_LINES = [
    b"From a1b2c3d4 Mon Sep 17 00:00:00 2001",
    b"From a1b2c3d4 Mon",  # no valid date
    b"From a1b2c3d4",
    b"From a1b2c3d4 Mon: the 17th",
    b"From\ta1b2c3d4",
    b"from a1b2c3d4 Mon Sep 17 00:00:00 2001",
    b">From a1b2c3d4 Mon Sep 17 00:00:00 2001",
    b">>From\ta1b2c3d4\r\nFrom a1b2c3d4 Mon",
]
MESSAGE = (
    b"From: Ann <ann@acme.example>\r\n"
    b"To: list@lists.example\r\n"
    b"Bcc: hidden@other.example\r\n"
    b"Subject: a change\r\n"
    b"X-Submission-Key: change-%d-%d\r\n"
    b"\r\n"
    b"text\r\n"
)
SECRETS = (b"hidden@other", b"change-", b"Bcc", b"a1b2c3d4")
EARLY = [
    b"Subject: x\r\nno field\r\nBcc: hidden@other.example\r\n\r\ntext\r\n",
    b" folded\r\nX-Submission-Key: change-1\r\n\r\ntext\r\n",
    b"From a Mon\r\n\tfolded\r\nbcc : hidden@other.example\r\n\r\ntext\r\n",
    b"Subject: x\r\n\xc3\xa9: y\r\nX-Campaign: june\r\n\r\ntext\r\n",
]


async def post(relay: Relay, recipient: str, message: bytes) -> str:
    headers = {
        SENDER_FIELD: encode_address("s@acme.example"), RECIPIENT_FIELD: encode_address(recipient),
        "Content-Type": "message/rfc822",
    }  # fmt: skip
    url = f"http://127.0.0.1:{http_port(relay)}{PATH}"
    async with (
        aiohttp.ClientSession() as client,
        client.post(url, data=message, headers=headers) as answer,
    ):
        return str(read_reply(answer.headers["X-Smtp-Reply"]))


@pytest.mark.parametrize("processes", [0, 2])
async def test_a_line_of_an_mbox_file(directory: Path, processes: int) -> None:
    """By SMTP, by HTTP and by the library: the header is a header, it is signed, and nothing else is shown."""
    write_key(directory / "key.pem", "ed25519")
    async with staged(directory) as stage:
        sinks = [await stage.receiver(f"{name}.example") for name in ("one", "two", "three")]
        config = stage.config(
            admin={"address": "127.0.0.1:0", "mail": True, "mail_without_token": True},
            dkim={"keys": [{"domain": "acme.example", "selector": "s", "key_file": "key.pem"}]},
            processes={"receivers": processes, "senders": processes},
        )
        async with relaying(config) as relay:
            for number, first in enumerate(FIRST_LINES):
                messages = [first + b"\r\n" + MESSAGE % (number, way) for way in range(3)]
                await send(relay, ["a@one.example"], messages[0])
                assert (await post(relay, "a@two.example", messages[1])).startswith("250")
                await relay.enqueue(
                    "s@acme.example", ["a@three.example"], messages[2].replace(b"\r\n", b"\n")
                )
            for sink in sinks:
                for got in await received(sink, len(FIRST_LINES)):
                    header, _, body = got.data.partition(b"\r\n\r\n")
                    assert body == b"text\r\n"
                    assert b"\r\nSubject: a change\r\n" in header + b"\r\n"
                    assert b"DKIM-Signature: " in header
                    assert not any(secret in got.data for secret in SECRETS)


async def test_a_header_that_ends_early(directory: Path) -> None:
    """It is refused if what follows is not for the recipients, else it is the body as before."""
    async with staged(directory) as stage:
        sink = await stage.receiver("one.example")
        config = stage.config(admin={"address": "127.0.0.1:0", "mail": True, "mail_without_token": True})
        async with relaying(config) as relay:
            for message in EARLY:
                with pytest.raises(smtplib.SMTPDataError, match="behind it would be shown"):
                    await send(relay, ["a@one.example"], message)
                with pytest.raises(NotAccepted, match=r"^550 5\.6\.0 .* behind it would be shown"):
                    await relay.enqueue("s@acme.example", ["a@one.example"], message)
                assert (await post(relay, "a@one.example", message)).startswith("550 5.6.0")
            await send(relay, ["a@one.example"], b"Subject: x\r\nno field\r\nTo: y\r\n\r\nBcc: z\r\n")
            (got,) = await received(sink, 1)
            assert got.data.endswith(b"\r\n\r\nno field\r\nTo: y\r\n\r\nBcc: z\r\n")
