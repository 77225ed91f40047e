"""Zones that deliver without SMTP, through a whole relay."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit.deadlines import until
from tests.kit.relay import ONE_PROCESS, empty, http_port, logged_events, relaying, send, staged
from zonemta_py.config.load import parse_config
from zonemta_py.core.errors import ConfigError

ME = "me@sender.example"
PROGRAM = "import sys; body = sys.stdin.read(); open(sys.argv[1], 'w').write(body); sys.exit(67 if 'gone' in sys.argv[2] else 0)"


def zones(directory: Path) -> dict[str, Any]:
    command = [sys.executable, "-c", PROGRAM, str(directory / "piped"), "{recipient}"]
    return {
        "local": {"transport": "maildir", "maildir": {"path": "mail/{domain}/{user}", "create": True}},
        "program": {"transport": "pipe", "pipe": {"command": command}},
        "nowhere": {"transport": "blackhole"},
        "function": {"transport": "python", "python": {"function": f"{__name__}.routine"}},
    }


def routine(parcel: Any) -> None:
    """Delivers everything."""


ROUTES = [
    {"recipient_domain": "local.example", "zone": "local"},
    {"recipient_domain": "program.example", "zone": "program"},
    {"recipient_domain": "nowhere.example", "zone": "nowhere"},
    {"recipient_domain": "function.example", "zone": "function"},
]


async def test_every_transport(directory: Path) -> None:
    """One message for all of them: each has it its way, failures are reported, and the queue is empty."""
    async with staged(directory) as stage:
        home = await stage.receiver("sender.example")
        config = stage.config(zones=zones(directory), routing=ROUTES)
        async with relaying(config) as relay:
            to = [
                "joe+news@local.example",
                "x@program.example",
                "y@nowhere.example",
                "z@function.example",
            ]
            text = b"Subject: x\r\n\r\nhello\r\n"
            await send(relay, to, text, ME)
            await empty(relay)
            await send(relay, ["gone@program.example"], text, ME)
            await until(lambda: home.tally.messages == 1, "the report")
            await empty(relay)
        assert b"5.1.1" in home.messages[0].data
    [stored] = (directory / "mail" / "local.example" / "joe" / "new").iterdir()
    found = stored.read_bytes()
    assert found.startswith(b"Return-Path: <me@sender.example>\nDelivered-To: joe+news@local.example\n")
    assert found.endswith(b"Subject: x\n\nhello\n")
    assert "hello" in (directory / "piped").read_text()
    assert {event["zone"] for event in logged_events(directory, "delivered")} == {
        "local", "program", "nowhere", "function", "default",
    }  # fmt: skip


async def test_delivery_is_reported_as_delivery(directory: Path) -> None:
    """NOTIFY=SUCCESS: a maildir is the end of the way, so the report says delivered."""
    async with staged(directory) as stage:
        home = await stage.receiver("sender.example")
        config = stage.config(zones=zones(directory), routing=ROUTES)
        async with relaying(config) as relay:

            def submit() -> None:
                import smtplib

                address = relay.addresses[0]
                with smtplib.SMTP(address.host, address.port) as client:
                    client.sendmail(
                        ME, ["joe@local.example"], b"Subject: x\r\n\r\nhi\r\n", rcpt_options=["NOTIFY=SUCCESS"]
                    )  # fmt: skip

            await asyncio.to_thread(submit)
            await until(lambda: home.tally.messages == 1, "the report")
        assert b"Action: delivered" in home.messages[0].data


async def test_large_and_small_through_a_pipe(directory: Path) -> None:
    """A body of many chunks arrives whole."""
    async with staged(directory) as stage:
        config = stage.config(zones=zones(directory), routing=ROUTES)
        async with relaying(config) as relay:
            text = b"Subject: x\r\n\r\n" + b"a line of text\r\n" * 100_000
            await send(relay, ["x@program.example"], text, ME)
            await empty(relay)
    assert (directory / "piped").read_text().count("a line of text\n") == 100_000


@pytest.mark.parametrize(
    ("zone", "problem"),
    [
        ("transport: lmtp", "needs a smarthost"),
        ("transport: maildir", "needs a path"),
        ("transport: maildir, maildir: {path: '/m/{usr}'}", "placeholders: "),
        ("transport: pipe", "needs either a command or a preset"),
        (
            "transport: pipe, pipe: {command: [x], preset: maildrop}",
            "needs either a command or a preset",
        ),
        ("transport: pipe, pipe: {command: [x, '{0}']}", "placeholders: "),
        ("transport: pipe, pipe: {command: [x, '{sender.x}']}", "placeholders: "),
        ("transport: python", "needs a function"),
        ("transport: http", "expected http:// or https://"),
        ("tls: dane", "not available in this version"),
    ],
)
def test_a_transport_that_cannot_be(zone: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_config(f"zones: {{default: {{{zone}}}}}", Path("z.yaml"))


def test_what_is_not_on_this_machine(directory: Path) -> None:
    from zonemta_py.relay.preflight import verify

    text = "zones: {default: {transport: python, python: {function: no.such.thing}}}"
    with pytest.raises(ConfigError, match=r"zones\.default\.python: no function"):
        verify(parse_config(text, directory / "z.yaml"))


async def test_mail_from_relay_to_relay_by_http_16(directory: Path) -> None:
    """What one posts the other takes; its refusal is the recipient's, and its words are in the report."""
    async with staged(directory) as stage:
        sink = await stage.receiver("d.example")
        home = await stage.receiver("sender.example")
        inner = stage.config(
            admin={"address": "127.0.0.1:0", "mail": True, "mail_without_token": True},
            listeners=[{"address": "127.0.0.1:0", "max_message_size": "100KiB"}],
            queue={"directory": "inner", "min_free_disk": "1MiB"},
            events={"directory": "inner-events"},
            processes=ONE_PROCESS,
        )
        async with relaying(inner) as behind:
            zone = {
                "transport": "http",
                "http": {"url": f"http://127.0.0.1:{http_port(behind)}/mail"},
            }
            routes = [{"recipient_domain": "d.example", "zone": "web"}]
            async with relaying(stage.config(zones={"web": zone}, routing=routes)) as relay:
                await send(relay, ["u@d.example", "v@d.example"], b"Subject: x\r\n\r\nhi\r\n", ME)
                await until(lambda: sink.tally.messages == 2, "both")
                await send(relay, ["u@d.example"], b"Subject: x\r\n\r\n" + b"line\r\n" * 30_000, ME)
                await until(lambda: home.tally.messages == 1, "the report")
                await empty(relay)
                await empty(behind)
        assert b"5.3.4" in home.messages[0].data
        assert b"Message size exceeds the limit" in home.messages[0].data
