"""Hostile receiving servers and name servers: bounded in time and memory, never a wrong verdict."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.attacks import Handler, Victim, answering, attacked, item, receiver
from tests.kit.deadlines import scaled, time_limit, until
from tests.kit.listener import certificate
from tests.kit.relay import logged_events, send
from zonemta_py.queue.format.keys import DEFERRED, end_of
from zonemta_py.sink.nameserver import SERVFAIL
from zonemta_py.sink.script import Rule, Step

EHLO = b"250-mx\r\n250 PIPELINING\r\n"
OK = b"250 ok\r\n"
SHORT = {phase: time_limit(1) for phase in ("connect", "command", "data", "dot")}
ZONES = {"default": {"retry": {"delays": ["1h"]}, "timeouts": SHORT}}


async def outcome(victim: Victim, directory: Path, domain: str = "evil.example") -> dict[str, Any]:
    """Send one message there; what the ledger says of it when the relay has stopped."""
    await send(victim.relay, [f"x@{domain}"])
    store = victim.relay.queue.store

    def over() -> bool:
        return any(store.keys(DEFERRED, end_of(DEFERRED))) or not any(
            store.keys(b"message/", b"message/\xff")
        )

    await until(over, "an outcome")
    await victim.relay.stop(1)
    found = [f for name in ("delivered", "deferred", "bounced") for f in logged_events(directory, name)]
    return next(f for f in found if f["recipient"] == f"x@{domain}")


def then(*more: bytes, greeting: bytes = b"220 mx\r\n", close: bool = False) -> Handler:
    """EHLO answered well, then ``more`` a line each."""
    return answering(EHLO, *more, greeting=greeting, then="close" if close else "wait")


CASES: dict[str, tuple[Handler, str, str]] = {
    "greeting 554": (answering(greeting=b"554 go away\r\n"), "deferred", "554"),
    "greeting garbage": (answering(greeting=b"\xff\xfe\0\r\n"), "deferred", ""),
    "greeting endless": (answering(greeting=b"220-x\r\n" * 100_000), "deferred", ""),
    "greeting never": (answering(greeting=b""), "deferred", ""),
    "greeting and more": (answering(EHLO, greeting=b"220 x\r\n250-fake\r\n250 SIZE 5\r\n"), "deferred", "data after its greeting"),
    "closes at once": (answering(greeting=b"", then="close"), "deferred", ""),
    "ehlo 10 MB": (answering(b"250-" + b"x" * 10_000_000 + b"\r\n250 ok\r\n"), "deferred", ""),
    "mail 10 MB line": (then(b"250 " + b"x" * 10_000_000), "deferred", ""),
    "mail without end": (then(b"250-x\r\n" * 1000), "deferred", ""),
    "mail garbage": (then(b"hello?\r\n"), "deferred", "not an SMTP reply"),
    "mail 421": (then(b"421 4.3.2 closing\r\n", close=True), "deferred", "closing"),
    "mail 3xx": (then(b"354 huh\r\n" * 3), "deferred", ""),
    "mail 199": (then(b"199 what\r\n"), "deferred", ""),
    "rcpt nul": (then(OK + b"550 5.1.1 n\0o\x1b[31m\r\n503 no\r\n"), "bounced", "n o"),
    "rcpt 8-bit": (then(OK + b"550 5.1.1 nicht m\xf6glich\r\n503 no\r\n"), "bounced", "nicht"),
    "rcpt 3xx": (then(OK + b"354 huh\r\n354 go\r\n", OK), "deferred", "huh"),
    "rcpt mixed codes": (then(OK + b"250-5.1.5 yes\r\n550 5.1.1 no\r\n503 no\r\n"), "bounced", "no"),
    "rcpt all refused, 354": (then(OK + b"550 5.1.1 no\r\n354 go on\r\n", b"", b"", b"", b"", OK), "bounced", "no"),
    "data 250": (then(OK * 3), "deferred", "unexpected answer to DATA"),
    "data 550": (then(OK * 2 + b"550 5.7.1 no\r\n"), "bounced", "no"),
    "250 before the dot": (then(OK * 2 + b"354 go\r\n250 already\r\n"), "deferred", ""),
    "550 before the dot": (then(OK * 2 + b"354 go\r\n550 5.6.0 no\r\n"), "bounced", "no"),
    "unasked replies": (then(OK * 50), "deferred", ""),
    "closes after mail": (then(OK, close=True), "deferred", ""),
    "closes after data": (then(OK * 2 + b"354 go\r\n", close=True), "deferred", ""),
    "never answers the dot": (then(OK * 2 + b"354 go\r\n"), "deferred", "no answer to the final dot"),
}  # fmt: skip


@item(23)
@pytest.mark.parametrize("case", CASES)
async def test_receivers(directory: Path, case: str) -> None:
    """One verdict each, in time; the connection is closed, whatever the peer does about it."""
    handler, fate, text = CASES[case]
    async with (
        attacked(directory, zones=ZONES) as victim,
        receiver(victim.stage, "evil.example", handler) as open_now,
    ):
        event = await outcome(victim, directory)
        assert (event["event"], text in f"{event['code']} {event['reply']}") == (fate, True), event
        assert not event["reply"] or event["reply"].isprintable()
        assert len(event["reply"]) <= 1024
        await until(lambda: open_now[0] == 0, "the connection to be closed")


@item(11, 23)
async def test_a_receiver_that_drips(directory: Path) -> None:
    """One byte at a time does not keep a connection beyond its time."""

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mx\r\n")
        await reader.readline()
        for _ in range(1000):
            writer.write(b"2")
            await writer.drain()
            await asyncio.sleep(0.1)  # the pace of the attack

    async with attacked(directory, zones=ZONES) as victim, receiver(victim.stage, "evil.example", drip):
        assert (await outcome(victim, directory))["event"] == "deferred"


@item(8)
@pytest.mark.parametrize("mode", ["opportunistic", "required"])
async def test_starttls_stripped_or_injected(directory: Path, mode: str) -> None:
    """Replies in plain text behind the 220 are not believed; a missing STARTTLS is not accepted when required."""
    injected = answering(
        b"250-mx\r\n250 STARTTLS\r\n", b"220 go\r\n250-mx\r\n250 injected\r\n250 ok\r\n250 ok\r\n354 go\r\n250 stolen\r\n"
    )  # fmt: skip
    zones = {"default": {**ZONES["default"], "tls": mode}}
    async with (
        attacked(directory, zones=zones) as victim,
        receiver(victim.stage, "evil.example", injected),
    ):
        event = await outcome(victim, directory)
        assert event["event"] == "deferred"
        assert "stolen" not in event["reply"]
    (directory / "strip").mkdir()
    if mode == "required":
        async with (
            attacked(directory / "strip", zones=zones) as victim,
            receiver(victim.stage, "evil.example", then(OK * 3)),
        ):
            event = await outcome(victim, directory / "strip")
            assert event["event"] in ("bounced", "deferred")
            assert "TLS" in event["reply"]


@item(8, 23)
async def test_a_certificate_that_lies(directory: Path) -> None:
    """With tls: required a certificate for another name is a deferral, and nothing is sent."""
    cert, key, _ = certificate(directory)
    import ssl

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mx\r\n")
        await reader.readline()
        writer.write(b"250-mx\r\n250 STARTTLS\r\n")
        await reader.readline()
        writer.write(b"220 go\r\n")
        await writer.start_tls(context)
        await reader.read(1000)

    zones = {"default": {**ZONES["default"], "tls": "required"}}
    async with (
        attacked(directory, zones=zones) as victim,
        receiver(victim.stage, "evil.example", handler),
    ):
        event = await outcome(victim, directory)
        assert (event["event"], event["code"]) == ("deferred", 0)


@item(20)
async def test_content_the_receiver_cannot_take(directory: Path) -> None:
    """SMTPUTF8 without the peer's offer: bounced with the code that says so. 8-bit content is converted."""
    async with attacked(directory, zones=ZONES) as victim:
        plain = await victim.stage.receiver("plain.example", extensions=("PIPELINING",))
        await send(
            victim.relay,
            ["x@plain.example"],
            "Subject: s\r\n\r\nzoë\r\n".encode(),
            sender="a@good.example",
        )
        await send(victim.relay, ["zoë@plain.example"], sender="a@good.example")
        await until(lambda: len(victim.got()) == 1, "the report")
        assert b"5.6.7" in victim.got()[0].data
        await until(lambda: plain.messages, "the converted message")
        assert plain.messages[0].data.endswith(b"\r\n\r\nzo=C3=AB\r\n")


@item(4)
async def test_nothing_ambiguous_is_sent(directory: Path) -> None:
    """What leaves has no bare CR or LF, every dot doubled, and one end."""
    seen = bytearray()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mx\r\n")
        await reader.readline()
        writer.write(EHLO)
        await reader.readuntil(b"DATA\r\n")
        writer.write(OK * 2 + b"354 go\r\n")
        seen.extend(await reader.readuntil(b"\r\n.\r\n"))
        writer.write(OK)
        await reader.read()

    body = b"Subject: s\r\n\r\n.\r\n..\r\n.x\r\n\r\n.\r\nRCPT TO:<e@good.example>\r\n"
    async with attacked(directory) as victim, receiver(victim.stage, "evil.example", handler):
        await send(victim.relay, ["x@evil.example"], body)
        await victim.settled()
    assert seen.count(b"\r") == seen.count(b"\n") == seen.count(b"\r\n")
    assert seen.endswith(b"\r\n..\r\n...\r\n..x\r\n\r\n..\r\nRCPT TO:<e@good.example>\r\n.\r\n")


@item(24)
@pytest.mark.parametrize(
    ("records", "fate", "status"),
    [
        ({"MX": ["0 ."]}, "bounced", "5.1.10"), ({"MX": ["10 evil.example."], "A": ["10.1.2.3"]}, "deferred", "4.4.4"),
        ({"A": ["127.0.0.1"]}, "deferred", "4.4.4"), ({"A": ["::1"][:0], "AAAA": ["::1"]}, "deferred", "4.4.4"),
        ({"AAAA": ["::ffff:127.0.0.1"]}, "deferred", "4.4.4"), ({"AAAA": ["64:ff9b:1::1"]}, "deferred", "4.4.4"),
        ({"MX": ["10 relay.example."]}, "bounced", "5.4.6"), (SERVFAIL, "deferred", "4.4.3"), (None, "bounced", "5.1.2"),
        ({"MX": [f"10 h{n}.evil.example." for n in range(300)]}, "deferred", "4.4"), ({"CNAME": ["evil.example."]}, "", ""),
    ],
    ids=["null", "private", "loopback", "loopback6", "mapped", "nat64", "ourselves", "servfail", "missing", "many", "loop"],
)  # fmt: skip
async def test_name_servers(directory: Path, records: Any, fate: str, status: str) -> None:
    """Null MX, private and own addresses, loops, thousands of names: one verdict, quickly, no connection inside."""
    async with attacked(directory, allow_private_destinations=False, zones=ZONES) as victim:
        victim.has_neighbour = False  # it is private, too
        if records is not None:
            hosts = {f"h{n}.evil.example": {"A": ["10.0.0.1"]} for n in range(300)}
            hosts["relay.example"] = {"A": ["192.0.2.1"]}
            victim.stage.names.records = {**hosts, "evil.example": records}
        event = await outcome(victim, directory)
        assert event["event"] == fate or (not fate and event["event"] in ("deferred", "bounced"))
        assert event["status"].startswith(status)


@item(24)
async def test_a_host_of_thousands_of_addresses(directory: Path) -> None:
    """Few of them are kept, few are tried."""
    async with attacked(directory, allow_private_destinations=False, zones=ZONES) as victim:
        victim.has_neighbour = False
        many = [f"10.{n // 250}.{n % 250}.1" for n in range(1500)]
        victim.stage.names.records = {"evil.example": {"A": many}}
        (host,) = await victim.relay._delivery._sending._look_ups.resolve("evil.example")
        assert len(host.ips) <= 16


@item(26)
async def test_replies_in_the_log(directory: Path) -> None:
    """Line ends, escapes, separators and quotes of a reply stay inside one JSON line."""
    evil = 'no "x",\x1b[2J\u2028\u202e|<script>'.encode()
    async with (
        attacked(directory, zones=ZONES) as victim,
        receiver(victim.stage, "evil.example", then(OK + b"451 4.0.0 " + evil + b"\r\n503 x\r\n")),
    ):
        event = await outcome(victim, directory)
    assert event["reply"].isprintable()
    assert '"x"' in event["reply"]
    assert json.loads(json.dumps(event)) == event


@item(25)
def test_replies_made_for_slow_patterns() -> None:
    from zonemta_py.core.clock import monotonic_s
    from zonemta_py.smtp.reply import Reply, ReplyReader

    began_s = monotonic_s()
    for text in (b"5.1." + b"1" * 8000, b"5" * 8000, b" " * 8000, b"5.1.1 " * 1300):
        replies = list[Reply]()
        ReplyReader().feed(b"550 " + text + b"\r\n", replies)
        assert replies
    assert monotonic_s() - began_s < scaled(2)


@item(22)
async def test_a_neighbour_does_not_wait_for_a_tarpit(directory: Path) -> None:
    """A domain that never greets holds one connection (decision 65), and mail for another flows."""
    zones = {
        "default": {
            **ZONES["default"],
            "timeouts": {"connect": time_limit(30)},
            "connections_per_domain": 2,
        }
    }
    async with (
        attacked(directory, zones=zones, shutdown_grace="100ms") as victim,
        receiver(victim.stage, "evil.example", answering(greeting=b"")) as open_now,
    ):
        for n in range(6):
            await send(victim.relay, [f"{n}@evil.example"])
        await until(lambda: open_now[0] == 1, "the tarpit to have its connection")
        await victim.unharmed()
        assert open_now[0] == 1


def _numbers(directory: Path) -> Iterator[int]:
    import re

    for path in directory.glob("test_*.py"):
        for match in re.finditer(r"@item\(([\d, ]+)\)", path.read_text()):
            yield from map(int, match[1].split(","))


def test_every_number_of_the_catalogue_is_played() -> None:
    assert set(_numbers(Path(__file__).parent)) == set(range(1, 35))


@item(18, 23)
async def test_a_receiver_that_hangs_up_on_reports(directory: Path) -> None:
    """A receiver that hangs up on reports keeps none of them: they are retried like other mail."""
    async with attacked(directory) as victim:
        await victim.stage.receiver("no.example", Rule(Step.RCPT, reply="550 5.1.1 no"))
        await victim.stage.receiver("home.example", Rule(Step.DOT, drop=True, times=2))
        await send(victim.relay, ["x@no.example"], sender="s@home.example")
        await until(lambda: victim.stage.sinks["home.example"].messages, "the report")
        await victim.settled()
