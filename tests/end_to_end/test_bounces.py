"""What the sender hears: RFC 3464 and QSBMF, per attempt and per message, double and triple bounces, DSN, VERP."""

import asyncio
import smtplib
from collections.abc import Sequence
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any, cast

from tests.kit.deadlines import until
from tests.kit.relay import Stage, empty, ledger, logged_events, received, relaying, send, staged
from zonemta_py.queue.upkeep.operator import Operator
from zonemta_py.relay.relay import Relay
from zonemta_py.sink.script import Rule, Step
from zonemta_py.sink.server import EXTENSIONS, Received, Sink

NO = Rule(Step.RCPT, recipient="no*", reply="550 5.1.1 no such user")
LATER = Rule(Step.RCPT, recipient="later*", reply="451 4.7.1 later", times=1)
NEVER = Rule(Step.RCPT, recipient="never*", reply="451 4.7.1 not now")


def parsed(message: Received) -> EmailMessage:
    return message_from_bytes(message.data, policy=policy.SMTP)


def groups(message: Received) -> list[dict[str, str]]:
    """The fields of a delivery-status part: of the message, then of each recipient."""
    machine = next(
        p for p in parsed(message).walk() if p.get_content_type() == "message/delivery-status"
    )
    return [dict(part.items()) for part in cast(Sequence[EmailMessage], machine.get_payload())]


async def submit(
    relay: Relay,
    recipients: Sequence[tuple[str, Sequence[str]]],
    mail_options: Sequence[str] = (),
    sender: str = "s@sender.example",
    body: bytes = b"body\r\n",
) -> None:
    """Submit with parameters for each recipient."""
    host, port = relay.addresses[0]

    def dialogue() -> None:
        with smtplib.SMTP(host, port, "client.example") as client:
            client.ehlo()
            client.mail(sender, list(mail_options))
            for recipient, options in recipients:
                assert client.rcpt(recipient, list(options))[0] == 250
            assert client.data(b"Subject: original\r\n\r\n" + body)[0] == 250

    await asyncio.to_thread(dialogue)


async def stage_of(stage: Stage, *rules: Rule, **options: Any) -> tuple[Sink, Sink]:
    """A receiver and the sender's own server."""
    return await stage.receiver("a.example", *rules, **options), await stage.receiver("sender.example")


def zone(**bounce: Any) -> dict[str, Any]:
    return {"zones": {"default": {"bounce": bounce}}}


async def test_one_report_per_message(directory: Path) -> None:
    """Failures of several transactions, times and domains: one report when no recipient is left."""
    async with staged(directory) as stage:
        _, home = await stage_of(stage, NO, LATER)
        await stage.receiver("b.example", NO)
        async with relaying(stage.config(**zone(aggregate="message"))) as relay:
            await send(relay, ["no1@a.example", "no2@b.example", "later@a.example", "ok@b.example"])
            await empty(relay)
            (report,) = home.messages
            failed = {g["Final-Recipient"]: g["Action"] for g in groups(report)[1:]}
            assert failed == {"rfc822; no1@a.example": "failed", "rfc822; no2@b.example": "failed"}
            assert report.sender == ""
        assert ledger(directory).queued("default") == 0


async def test_noted_failures_survive_a_restart_and_a_deletion(directory: Path) -> None:
    """The notes are on disk: the next run reports them, also when an operator removes the last recipient."""
    async with staged(directory) as stage:
        _, home = await stage_of(stage, NO, NEVER)
        config = stage.config(
            zones={"default": {"bounce": {"aggregate": "message"}, "retry": {"delays": ["1h"]}}}
        )
        async with relaying(config) as relay:
            await send(relay, ["no1@a.example", "never@a.example"])
            from tests.kit.deadlines import until
            from zonemta_py.queue.format import keys

            store = relay.queue.store
            await until(lambda: any(store.keys(keys.BOUNCE, keys.end_of(keys.BOUNCE))), "a note")
            await until(lambda: any(store.keys(keys.DEFERRED, keys.end_of(keys.DEFERRED))), "a deferral")
        assert home.messages == []
        async with relaying(config) as relay:
            message = keys.parse_recipient(
                next(relay.queue.store.keys(keys.DEFERRED, keys.end_of(keys.DEFERRED)))
            )[1]
            assert await Operator(relay.queue).delete(message) == (1, 0)
            (report,) = await received(home, 1)
            assert [g.get("Final-Recipient") for g in groups(report)[1:]] == ["rfc822; no1@a.example"]
            await empty(relay)


async def test_qsbmf(directory: Path) -> None:
    """Two failures, one success: one report in qmail's format, with the whole message."""
    async with staged(directory) as stage:
        _, home = await stage_of(stage, NO)
        async with relaying(stage.config(**zone(format="qsbmf", aggregate="message"))) as relay:
            await send(
                relay, ["no1@a.example", "no2@a.example", "ok@a.example"], b"Subject: hi\r\n\r\nbody\r\n"
            )
            (report,) = await received(home, 1)
            await empty(relay)
    header, _, body = report.data.partition(b"\r\n\r\n")
    assert b"Subject: failure notice" in header
    assert report.sender == ""
    paragraphs, _, copy = body.partition(b"--- Below this line is a copy of the message.\r\n\r\n")
    first, *failures = paragraphs.decode().replace("\r\n", "\n").strip().split("\n\n")
    assert first.startswith("Hi. This is the")
    assert [f.split("\n")[0] for f in failures] == ["<no1@a.example>:", "<no2@a.example>:"]
    assert all("550 5.1.1 no such user" in f and "(#5.1.1)" in f for f in failures)
    assert copy.startswith(b"Return-Path: <s@sender.example>\r\n")
    assert copy.endswith(b"\r\n\r\nbody\r\n")


async def test_how_much_of_the_message_goes_back(directory: Path) -> None:
    body = b"x" * 70 + b"\r\n"
    async with staged(directory) as stage:
        _, home = await stage_of(stage, NO)
        async with relaying(stage.config(**zone(format="qsbmf", max_bytes=1000))) as relay:
            await send(relay, ["no@a.example"], b"Subject: hi\r\n\r\n" + body * 200)
            (report,) = await received(home, 1)
    copy = report.data.partition(b"Return-Path: <s@sender.example>\r\n")[2]
    original = copy.removesuffix(b"\r\n\r\n--- End of message stripped.\r\n")
    assert original.endswith(body)
    assert 1000 - len(body) < len(original) <= 1000
    async with staged(directory / "again") as stage:
        (directory / "again").mkdir()
        _, home = await stage_of(stage, NO)
        async with relaying(stage.config(zones={"default": {"bounce": {"return": "headers"}}})) as relay:
            await submit(relay, [("no@a.example", [])])
            await submit(relay, [("no@a.example", [])], ["RET=FULL"])
            reports = await received(home, 2)
    kinds = [[part.get_content_type() for part in parsed(r).iter_parts()][2] for r in reports]
    assert sorted(kinds) == ["message/rfc822", "text/rfc822-headers"]


async def test_double_and_triple_bounces(directory: Path) -> None:
    """A report that fails goes to double_bounce_to from #@[]; when that fails too, only the ledger knows."""
    async with staged(directory) as stage:
        await stage.receiver("a.example", NO)
        boss = await stage.receiver(
            "boss.example", Rule(Step.DOT, sender="#@[[]]", reply="550 5.7.1 no", times=1)
        )
        gone = Rule(Step.RCPT, reply="550 5.1.1 gone")
        await stage.receiver("sender.example", gone)
        config = stage.config(**zone(format="qsbmf", double_bounce_to="postmaster@boss.example"))
        async with relaying(config) as relay:
            await send(relay, ["no@a.example"])
            await empty(relay)
            await send(relay, ["no@a.example"])
            (double,) = await received(boss, 1)
            await empty(relay)
    assert double.sender == "#@[]"
    assert b"but the bounce bounced!" in double.data
    assert b"--- Below this line is the original bounce." in double.data
    assert [f["reason"] for f in logged_events(directory, "discarded")] == ["triple bounce"]
    assert ledger(directory).queued("default") == 0


async def test_an_unwanted_double_bounce(directory: Path) -> None:
    async with staged(directory) as stage:
        await stage.receiver("a.example", NO)
        async with relaying(stage.config()) as relay:
            await send(relay, ["no@a.example"], sender="")
            await empty(relay)
    assert [(f["reason"], f["recipients"]) for f in logged_events(directory, "discarded")] == [
        ("double bounce", [0])
    ]


async def test_notify_is_honoured(directory: Path) -> None:
    """NEVER and SUCCESS alone hear nothing of failures; ENVID and ORCPT come back decoded."""
    async with staged(directory) as stage:
        _, home = await stage_of(stage, NO)
        async with relaying(stage.config()) as relay:
            await submit(
                relay,
                [
                    ("no1@a.example", ["NOTIFY=NEVER"]),
                    ("no2@a.example", ["NOTIFY=SUCCESS,DELAY"]),
                    ("no3@a.example", ["NOTIFY=FAILURE", "ORCPT=rfc822;first+2Bone@old.example"]),
                ],
                ["RET=HDRS", "ENVID=QQ+3D1"],
            )
            (report,) = await received(home, 1)
            await empty(relay)
    of_message, *of_recipients = groups(report)
    assert of_message["Original-Envelope-Id"] == "QQ=1"
    assert [(g["Final-Recipient"], g["Original-Recipient"]) for g in of_recipients] == [
        ("rfc822; no3@a.example", "rfc822;first+one@old.example")
    ]
    assert [part.get_content_type() for part in parsed(report).iter_parts()][2] == "text/rfc822-headers"


async def test_success_is_reported_or_passed_on(directory: Path) -> None:
    """A peer without DSN: we say relayed. One with DSN: it gets the parameters and the duty."""
    async with staged(directory) as stage:
        _, home = await stage_of(stage)
        knows = await stage.receiver("dsn.example", extensions=(*EXTENSIONS, "DSN"))
        async with relaying(stage.config()) as relay:
            recipients = [
                ("x@a.example", ["NOTIFY=SUCCESS"]),
                ("y@dsn.example", ["NOTIFY=SUCCESS,FAILURE", "ORCPT=rfc822;y@old.example"]),
                ("z@a.example", []),
            ]
            await submit(relay, recipients, ["RET=HDRS", "ENVID=abc"])
            (report,) = await received(home, 1)
            await empty(relay)
    assert [(g["Final-Recipient"], g["Action"], g["Status"]) for g in groups(report)[1:]] == [
        ("rfc822; x@a.example", "relayed", "2.0.0")
    ]
    assert "RET=HDRS" in knows.messages[0].parameters
    assert "ENVID=abc" in knows.messages[0].parameters


async def test_one_warning_per_message(directory: Path) -> None:
    """However many recipients in however many domains are late, the sender is warned once."""
    async with staged(directory) as stage:
        _, home = await stage_of(stage, NEVER)
        await stage.receiver("b.example", NEVER)
        retry = {"delays": ["200ms"], "warn_after": "1ms", "give_up_after": "1h"}
        async with relaying(stage.config(zones={"default": {"retry": retry}})) as relay:
            await send(relay, ["never1@a.example", "never2@a.example", "never3@b.example"])
            await until(lambda: len(home.messages) >= 1, "a warning")
            before = attempts(stage)
            await until(lambda: attempts(stage) >= before + 6, "more attempts")
            assert len(home.messages) == 1
            actions = {g["Action"] for g in groups(home.messages[0])[1:]}
            assert actions == {"delayed"}


def attempts(stage: Stage) -> int:
    return sum(sink.tally.refused for sink in stage.sinks.values())


async def test_verp(directory: Path) -> None:
    """Each recipient has a transaction and a sender of its own; qmail's form expands by itself."""
    async with staged(directory) as stage:
        a = await stage.receiver("a.example")
        async with relaying(stage.config(zones={"default": {"sender_verp": True}})) as relay:
            await send(relay, ["x@a.example", "y@a.example"], sender="news@lists.example")
            await empty(relay)
    assert sorted((m.sender, m.recipients) for m in a.messages) == [
        ("news+x=a.example@lists.example", ["x@a.example"]),
        ("news+y=a.example@lists.example", ["y@a.example"]),
    ]
    (directory / "again").mkdir()
    async with staged(directory / "again") as stage:
        a = await stage.receiver("a.example", NO)
        home = await stage.receiver("lists.example")
        async with relaying(stage.config()) as relay:
            await submit(
                relay, [("x@a.example", []), ("no@a.example", [])], sender="owner-@lists.example-@[]"
            )
            await empty(relay)
    assert [m.sender for m in a.messages] == ["owner-x=a.example@lists.example"]
    assert [m.recipients for m in home.messages] == [["owner-@lists.example"]]
