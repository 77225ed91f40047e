"""The main job, end to end: in over SMTP, out by MX, every outcome in the ledger."""

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import replace
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any, cast

import pytest

from tests.kit.deadlines import time_limit, until
from tests.kit.queue import everything
from tests.kit.relay import empty, ledger, logged_events, received, relaying, send, sound, staged
from tests.kit.servers import queue_settings
from tests.kit.smtp_client import RawClient
from zonemta_py.admin.operation import Operations
from zonemta_py.admin.registry import run_operation
from zonemta_py.admin.relay_port import RunningRelay
from zonemta_py.admin.requests import (
    FlushRequest,
    HoldRequest,
    ListRequest,
    ReleaseRequest,
    UnreachableClearRequest,
    UnreachableRequest,
)
from zonemta_py.core.clock import monotonic_s
from zonemta_py.core.errors import ConfigError
from zonemta_py.queue.format import keys
from zonemta_py.schedule.unreachable import APART_S, AddressPair
from zonemta_py.sink.nameserver import SERVFAIL
from zonemta_py.sink.script import Rule, Script, Step
from zonemta_py.sink.server import Sink


async def test_delivered_byte_for_byte(directory: Path) -> None:
    """What was submitted arrives: stamps in front, dots and long lines whole, several chunks too."""
    body = (
        b"first\r\n.\r\n..two\r\n"
        + bytes(range(32, 127))
        + b"\r\n"
        + (b"." + b"x" * 900 + b"\r\n") * 200
    )
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        async with relaying(stage.config()) as relay:
            await send(relay, ["x@a.example"], b"Subject: bytes\r\n\r\n" + body)
            message = (await received(sink, 1))[0]
            await empty(relay)
            header, _, got = message.data.partition(b"\r\n\r\n")
            assert got == body
            assert header.startswith(b"Received: from client.example ([127.0.0.1])")
            assert b"Subject: bytes" in header
            assert (message.sender, message.recipients, message.helo) == (
                "s@sender.example",
                ["x@a.example"],
                "relay.example",
            )
        account = ledger(directory)
        assert account.total("delivered") == account.total("accepted") == 1


async def test_recipients_share_a_transaction_and_split_by_domain(directory: Path) -> None:
    async with staged(directory) as stage:
        a, b = await stage.receiver("a.example"), await stage.receiver("b.example")
        async with relaying(stage.config(zones={"default": {"recipients_per_transaction": 3}})) as relay:
            await send(relay, [f"{n}@a.example" for n in range(5)] + ["x@b.example", "0@a.example"])
            await empty(relay)
            assert sorted(len(m.recipients) for m in a.messages) == [2, 3]
            assert [m.recipients for m in b.messages] == [["x@b.example"]]
            assert sorted(a.tally.by_recipient.values()) == [1] * 5


@pytest.mark.parametrize("store", ["memory", "filesystem", "redis", "s3"])
async def test_other_stores_run_the_relay(directory: Path, store: str) -> None:
    """Several chunks, a deferral, a bounce with its report, an empty store."""
    body = b"a line of text\r\n" * 10_000
    async with staged(directory) as stage:
        rules = [
            Rule(Step.RCPT, recipient="no@*", reply="550 5.1.1 no"),
            Rule(Step.RCPT, recipient="later@*", reply="451 4.7.1 later", times=1),
        ]
        a, s = await stage.receiver("a.example", *rules), await stage.receiver("sender.example")
        config = stage.config()
        shared = queue_settings(directory, store)
        queue = replace(
            config.queue, store=store, redis=shared.redis, s3=shared.s3, shared=shared.shared
        )
        config = replace(config, queue=queue)
        async with relaying(config) as relay:
            await send(
                relay, ["x@a.example", "no@a.example", "later@a.example"], b"Subject: s\r\n\r\n" + body
            )
            await empty(relay)
            assert all(m.data.endswith(body) for m in a.messages)
            assert set(a.tally.by_recipient) == {"x@a.example", "later@a.example"}
            assert len(s.messages) == 1
        assert ledger(directory).queued("default") == 0


async def test_mixed_verdicts_and_one_report(directory: Path) -> None:
    """One delivered, one refused, one deferred once, in one transaction; one report to the sender."""
    rules = [
        Rule(Step.RCPT, recipient="no@*", reply="550 5.1.1 No such user here"),
        Rule(Step.RCPT, recipient="later@*", reply="451 4.7.1 Greylisted", times=1),
    ]
    async with staged(directory) as stage:
        a, home = await stage.receiver("a.example", *rules), await stage.receiver("sender.example")
        async with relaying(
            stage.config(zones={"default": {"bounce": {"aggregate": "attempt"}}})
        ) as relay:
            await send(relay, ["yes@a.example", "no@a.example", "later@a.example"])
            report = (await received(home, 1))[0]
            await empty(relay)
            assert sorted(a.tally.by_recipient) == ["later@a.example", "yes@a.example"]
            assert (report.sender, report.recipients) == ("", ["s@sender.example"])
            parsed = message_from_bytes(report.data, policy=policy.SMTP)
            parts: list[Any] = list(parsed.iter_parts())
            fields = parts[1].get_payload()[1]
            assert fields["Final-Recipient"] == "rfc822; no@a.example"
            assert fields["Diagnostic-Code"] == "smtp; 550 5.1.1 No such user here"
            assert fields["Remote-MTA"] == "dns; mx.a.example"
            assert parts[2].get_content()["Subject"] == "hi"
        account = ledger(directory)
        assert (account.total("accepted"), account.total("delivered"), account.total("bounced")) == (
            4,
            3,
            1,
        )
        assert account.queued("default") == 0
        bounced = logged_events(directory, "bounced")[0]
        reported = [f for f in logged_events(directory, "accepted") if f["message"] == bounced["report"]]
        assert reported[0]["report_for"] == bounced["message"]


async def test_a_report_that_fails_is_not_reported(directory: Path) -> None:
    async with staged(directory) as stage:
        await stage.receiver("a.example", Rule(Step.RCPT, reply="550 5.1.1 no"))
        await stage.receiver("sender.example", Rule(Step.DOT, reply="554 5.7.1 no reports please"))
        async with relaying(stage.config()) as relay:
            await send(relay, ["x@a.example"])
            await empty(relay)
        assert [f["recipient"] for f in logged_events(directory, "bounced")] == [
            "x@a.example",
            "s@sender.example",
        ]
        assert ledger(directory).total("accepted") == 2


async def test_too_old_expires_with_a_report(directory: Path) -> None:
    """Deferred until the time is over; the report says so."""
    async with staged(directory) as stage:
        await stage.receiver("a.example", Rule(Step.RCPT, reply="451 4.2.1 busy"))
        home = await stage.receiver("sender.example")
        zones = {
            "default": {
                "retry": {
                    "delays": ["100ms"],
                    "give_up_after": time_limit(1),
                    "warn_after": time_limit(0.3),
                }
            }
        }
        async with relaying(stage.config(zones=zones)) as relay:
            await send(relay, ["x@a.example"])
            reports = await received(home, 2)
            await empty(relay)
            delayed, failed = (message_from_bytes(m.data, policy=policy.SMTP) for m in reports)
            assert "Delayed" in delayed["Subject"]
            about_delayed, about_failed = (
                cast(Any, list(each.iter_parts())[1]).get_payload()[1] for each in (delayed, failed)
            )
            assert about_delayed["Action"] == "delayed"
            assert (about_failed["Action"], about_failed["Status"]) == ("failed", "4.4.7")
        assert len(logged_events(directory, "expired")) == 1
        assert len(logged_events(directory, "deferred")) >= 3


async def test_zones_pools_and_routes(directory: Path) -> None:
    """Two zones by header and by sender, each from its own address with its own name."""
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        config = stage.config(
            zones={"bulk": {"pool": "bulk"}},
            pools={
                "default": [{"address": "127.0.0.3"}],
                "bulk": [{"address": "127.0.0.2", "ehlo": "out2.example"}],
            },
            routing=[{"header": "X-Sending-Zone"}, {"sender_domain": "news.example", "zone": "bulk"}],
        )
        async with relaying(config) as relay:
            await send(relay, ["1@a.example"])
            await send(relay, ["2@a.example"], b"X-Sending-Zone: bulk\r\n\r\nx\r\n")
            await send(relay, ["3@a.example"], sender="n@news.example")
            await empty(relay)
            seen = {m.recipients[0][0]: (m.peer, m.helo) for m in sink.messages}
            assert seen == {
                "1": ("127.0.0.3", "relay.example"),
                "2": ("127.0.0.2", "out2.example"),
                "3": ("127.0.0.2", "out2.example"),
            }
            assert b"X-Sending-Zone" not in b"".join(m.data for m in sink.messages)
        assert ledger(directory).counts["bulk"]["delivered"] == 2


async def test_a_zone_that_there_is_not(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The next rule decides, which the log says once for all messages of a minute."""
    async with staged(directory) as stage:
        await stage.receiver("a.example")
        routing = [{"header": "X-Sending-Zone"}, {"recipient_domain": "a.example", "zone": "bulk"}]
        async with relaying(stage.config(routing=routing, zones={"bulk": {}})) as relay:
            for zone in ("blk", "blk", "bulk"):
                await send(relay, ["u@a.example"], f"X-Sending-Zone: {zone}\r\n\r\nb\r\n".encode())
            await empty(relay)
            assert relay.queue.unusable_fields.unknown_zones == 2
            assert relay.queue.traffic.accepted["bulk"] == 3
    found = [each for each in caplog.messages if "there is no zone 'blk'" in each]
    loggers = {each.name for each in caplog.records if "there is no zone" in each.getMessage()}
    assert loggers == {"zonemta_py.queue.queue"}
    assert len(found) == 2
    assert found[0].endswith("of 127.0.0.1 names: it goes to bulk")
    assert found[1].startswith("repeated 1 more times within a minute")


async def test_a_blocked_domain_delays_no_other(directory: Path) -> None:
    """One receiver stalls every greeting, another refuses connections; mail for the third flows."""
    async with staged(directory) as stage:
        await stage.receiver("stall.example", Rule(Step.CONNECT, stall_s=60))
        stage.names.records["dead.example"] = {"A": ["127.0.2.1"]}
        good = await stage.receiver("good.example")
        async with relaying(
            stage.config(zones={"default": {"connections": 10, "connections_per_domain": 3}})
        ) as relay:
            for n in range(20):
                await send(relay, [f"{n}@stall.example", f"{n}@dead.example"])
            for n in range(20):
                await send(relay, [f"{n}@good.example"])
            await received(good, 20)
            assert sound(relay)


async def test_next_mx_and_the_rest_of_a_dead_destination(directory: Path) -> None:
    """The first MX refuses connections, the second takes it. With none, the rest waits unattempted."""
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        stage.names.records["two.example"] = {"MX": ["5 dead.example.", "10 mx.a.example."]}
        stage.names.records["dead.example"] = {"A": ["127.0.2.1"]}
        async with relaying(stage.config(zones={"default": {"connections_per_domain": 1}})) as relay:
            await send(relay, ["x@two.example"])
            await received(sink, 1)
            assert sink.messages[0].recipients == ["x@two.example"]
            for n in range(5):
                await send(relay, [f"{n}@dead.example"])
            await until(
                lambda: relay._delivery.zones["default"].describe("dead.example"),
                "the destination to rest",
            )
            assert "refused" in relay._delivery.zones["default"].describe("dead.example")
            back = Sink(keep=True)
            await back.start("127.0.2.1", stage.port)
            try:
                await received(back, 5)
                await empty(relay)
            finally:
                await back.close()
        attempts = [f["recipient"] for f in logged_events(directory, "deferred")]
        assert len(attempts) < 50


@pytest.mark.parametrize(
    ("domain", "records", "event", "status"),
    [
        ("null.example", {"MX": ["0 ."]}, "bounced", "5.1.10"),
        ("missing.example", None, "bounced", "5.1.2"),
        ("broken.example", SERVFAIL, "deferred", "4.4.3"),
        ("private.example", {"A": ["10.1.2.3"]}, "deferred", "4.4.4"),
    ],
)
async def test_dns_verdicts(directory: Path, domain: str, records: Any, event: str, status: str) -> None:
    async with staged(directory) as stage:
        if records is not None:
            stage.names.records[domain] = records
        config = stage.config(
            allow_private_destinations=False, zones={"default": {"retry": {"delays": ["1h"]}}}
        )
        async with relaying(config) as relay:
            await send(relay, [f"x@{domain}"], sender="")
            if event == "bounced":
                await empty(relay)
            else:
                await until(
                    lambda: any(k.startswith(keys.DEFERRED) for k in everything(relay.queue.store)),
                    "a deferral",
                )
        assert [f["status"] for f in logged_events(directory, event)] == [status]


async def test_what_a_peer_cannot_take(directory: Path) -> None:
    """SIZE and SMTPUTF8 missing: refused here with the right status, not sent broken. 8BITMIME: converted."""
    async with staged(directory) as stage:
        old = await stage.receiver("old.example", extensions=("SIZE 2000",))
        new = await stage.receiver("new.example")
        async with relaying(stage.config()) as relay:
            await send(
                relay,
                ["big@old.example", "big@new.example"],
                b"Subject: x\r\n\r\n" + b"y" * 70 * 100 + b"\r\n",
                sender="",
            )
            await send(
                relay,
                ["eight@old.example", "eight@new.example"],
                b"Subject: x\r\n\r\n\xfc\r\n",
                sender="",
            )
            await send(relay, ["zoë@old.example", "zoë@new.example"], sender="")
            await send(relay, ["plain@old.example"], sender="")
            await empty(relay)
            assert [m.recipients[0] for m in old.messages] == ["eight@old.example", "plain@old.example"]
            assert old.messages[0].data.endswith(b"\r\n\r\n=FC\r\n")
            assert sorted(m.recipients[0][:3] for m in new.messages) == ["big", "eig", "zoë"]
            parameters = {m.recipients[0][:3]: m.parameters for m in new.messages}
            assert "BODY=8BITMIME" in parameters["eig"]
            assert "SMTPUTF8" in parameters["zoë"]
        assert {f["recipient"][:3]: f["status"] for f in logged_events(directory, "bounced")} == {
            "big": "5.3.4",
            "zoë": "5.6.7",
        }


async def test_smarthost_takes_all_domains_in_one_transaction(directory: Path) -> None:
    async with staged(directory) as stage:
        sink = Sink(keep=True)
        port = await sink.start()
        try:
            async with relaying(
                stage.config(
                    zones={"default": {"smarthost": f"127.0.0.1:{port}"}},
                    allow_private_destinations=False,
                )
            ) as relay:
                await send(relay, ["a@one.example", "b@two.example", "c@three.example"])
                await empty(relay)
                assert [len(m.recipients) for m in sink.messages] == [3]
        finally:
            await sink.close()


async def test_sessions_are_reused_and_bounded(directory: Path) -> None:
    """One session for many messages, up to the count; a stale one costs no message a retry."""
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        zones = {"default": {"connections_per_domain": 1, "messages_per_connection": 5}}
        async with relaying(stage.config(zones=zones)) as relay:
            for n in range(12):
                await send(relay, [f"{n}@a.example"])
                await received(sink, n + 1)
            assert sink.tally.sessions == 3
            for session in list(sink.connections):
                session.abort()
            await send(relay, ["again@a.example"])
            await received(sink, 13)
        assert logged_events(directory, "deferred") == []


async def test_a_rate_is_kept(directory: Path) -> None:
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        async with relaying(stage.config(zones={"default": {"rate": "20/s"}})) as relay:
            began_s = monotonic_s()
            for n in range(22):
                await send(relay, [f"{n}@a.example"])
            await received(sink, 22)
            # From the submission, not from the first delivery: that may be late on a busy machine.
            assert sink.tally.last_s - began_s >= 0.75


async def test_a_lost_answer_is_named(directory: Path) -> None:
    """The receiver takes it and hangs up: sent again, and the ledger says uncertain."""
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example", Rule(Step.DOT, drop=True, times=1))
        async with relaying(stage.config()) as relay:
            await send(relay, ["x@a.example"])
            await received(sink, 1)
            await empty(relay)
        assert [f["uncertain"] for f in logged_events(directory, "deferred")] == [True]


async def test_opportunistic_tls_falls_back(directory: Path) -> None:
    """A server whose STARTTLS is broken still gets its mail, and one that works is encrypted."""
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example", extensions=("PIPELINING", "STARTTLS"))
        async with relaying(stage.config()) as relay:
            await send(relay, ["x@a.example"])
            await received(sink, 1)
            await empty(relay)
        assert [f["tls"] for f in logged_events(directory, "delivered")] == [False]
    assert ssl.OPENSSL_VERSION


async def test_a_restart_keeps_what_waits_and_wakes_it_on_time(directory: Path) -> None:
    rules = [Rule(Step.RCPT, reply="451 4.7.1 later", times=1)]
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example", *rules)
        config = stage.config(zones={"default": {"retry": {"delays": ["1s"]}}})
        async with relaying(config) as relay:
            await send(relay, ["x@a.example"])
            await until(
                lambda: any(k.startswith(keys.DEFERRED) for k in everything(relay.queue.store)),
                "a deferral",
            )
        async with relaying(config) as relay:
            await received(sink, 1)
            await empty(relay)
            await empty(relay)
        delivered, deferred = (
            logged_events(directory, "delivered")[0],
            logged_events(directory, "deferred")[0],
        )
        assert delivered["attempt"] == 2
        assert delivered["time_ms"] >= deferred["due_ms"]


async def test_a_zone_that_is_gone(directory: Path) -> None:
    """Refused at start, unless the configuration says where its mail goes."""
    async with staged(directory) as stage:
        old = stage.config(zones={"old": {}}, routing=[{"recipient_domain": "a.example", "zone": "old"}])
        stage.names.records["a.example"] = SERVFAIL
        async with relaying(old) as relay:
            await send(relay, ["x@a.example"])
            await until(
                lambda: any(k.startswith(keys.DEFERRED) for k in everything(relay.queue.store)),
                "a deferral",
            )
        with pytest.raises(ConfigError, match="recipients wait in zone 'old'"):
            async with relaying(stage.config()):
                pass
        sink = await stage.receiver("a.example")
        async with relaying(stage.config(zone_removed="default")) as relay:
            await received(sink, 1)
            await empty(relay)
        account = ledger(directory)
        assert account.queued("old") == account.queued("default") == 0


async def test_flush_ends_rests(directory: Path) -> None:
    """An operator who repaired a destination does not wait for the next probe."""
    async with staged(directory) as stage:
        stage.names.records["dead.example"] = {"A": ["127.0.2.2"]}
        zones = {"default": {"retry": {"delays": ["1h"]}, "connections_per_domain": 1}}
        async with relaying(stage.config(zones=zones)) as relay:
            for n in range(3):
                await send(relay, [f"{n}@dead.example"])
            await until(
                lambda: relay._delivery.zones["default"].describe("dead.example"),
                "the destination to rest",
            )
            back = Sink(keep=True)
            await back.start("127.0.2.2", stage.port)
            try:
                operations = Operations(relay.queue, RunningRelay(relay._delivery.views))
                rows = [
                    row async for row in run_operation(operations, FlushRequest(domain="dead.example"))
                ]
                assert rows[0]["woken"] >= 1
                await received(back, 3)
                await empty(relay)
            finally:
                await back.close()


async def test_ipv6(directory: Path) -> None:
    """An AAAA record alone leads there, from an address of the same family."""
    async with staged(directory) as stage:
        sink = Sink(keep=True)
        await sink.start("::1", stage.port)
        stage.names.records["six.example"] = {"AAAA": ["::1"]}
        pools = {"default": [{"address": "127.0.0.2"}, {"address": "::1", "ehlo": "six.relay.example"}]}
        try:
            async with relaying(stage.config(pools=pools)) as relay:
                await send(relay, ["x@six.example"])
                assert (await received(sink, 1))[0].helo == "six.relay.example"
                await empty(relay)
        finally:
            await sink.close()


async def test_a_peer_that_limits_sessions(directory: Path) -> None:
    """421 to the third session: two go on, and no recipient is deferred for it."""

    class TwoAtMost(Script):
        def match(
            self,
            step: Step,
            argument: str,
            sender: str,
            recipients: Sequence[str],
            local: str,
            session: int,
        ) -> Rule | None:
            if step is Step.CONNECT and len(sink.connections) > 2:
                return Rule(Step.CONNECT, reply="421 4.7.0 Too many connections")
            return Rule(Step.DOT, stall_s=0.02) if step is Step.DOT else None

    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        sink.script = TwoAtMost(())
        async with relaying(stage.config(zones={"default": {"retry": {"delays": ["1h"]}}})) as relay:
            await send(relay, ["first@a.example"])
            await received(sink, 1)
            await asyncio.gather(*(send(relay, [f"{n}@a.example"]) for n in range(40)))
            await received(sink, 41)
            await empty(relay)
        assert logged_events(directory, "deferred") == []


async def test_reload(directory: Path) -> None:
    """SIGHUP: a new zone and a new route work at once; a bad file changes nothing."""
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        async with relaying(
            stage.config(pools={"default": [{}], "two": [{"address": "127.0.0.2"}]})
        ) as relay:
            await send(relay, ["1@a.example"])
            await received(sink, 1)
            changed = stage.config(
                pools={"default": [{}], "two": [{"address": "127.0.0.2"}]},
                zones={"new": {"pool": "two"}},
                routing=[{"recipient_domain": "a.example", "zone": "new"}],
            )
            assert {"zones.new", "routing[0].recipient_domain"} <= set(await relay.reload(changed))
            assert await relay.reload() == []
            Path(changed.path).write_text("nonsense")
            with pytest.raises(ConfigError, match="nonsense"):
                await relay.reload()
            with pytest.raises(ConfigError, match=r"queue\.directory.*: a change needs a restart"):
                await relay.reload(stage.config(queue={"directory": "elsewhere"}))
            await send(relay, ["2@a.example"])
            await received(sink, 2)
            assert [m.peer for m in sink.messages] == ["127.0.0.1", "127.0.0.2"]


async def test_a_reload_removes_the_zone_of_a_message_that_arrives(directory: Path) -> None:
    """It was routed by the rules at DATA: it is sent by the default zone, and no start or reload is refused for it."""
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        routing = [{"header": "X-Sending-Zone"}]
        async with relaying(stage.config(zones={"old": {}}, routing=routing)) as relay:
            client = await RawClient.connect(relay.addresses[0].port)
            await client.ehlo()
            assert (await client.envelope("x@a.example")).startswith("354")
            await relay.reload(stage.config(routing=routing))
            await client.send(b"X-Sending-Zone: old\r\n\r\nhello\r\n.\r\n")
            assert (await client.reply()).startswith("250")
            client.close()
            await received(sink, 1)
            await empty(relay)
        [moved] = logged_events(directory, "moved")
        assert (moved["zone"], moved["new_zone"], moved["recipients"]) == ("old", "default", [0])
        account = ledger(directory)
        assert account.queued("old") == account.queued("default") == 0


@pytest.mark.parametrize(("first", "second"), [("smtp", "dequeue"), ("dequeue", "smtp")])
async def test_a_zone_that_is_back_with_another_transport(
    directory: Path, first: str, second: str
) -> None:
    """Its workers, or its programs, are there since it was removed: mail for a program must not go to the MX."""
    async with (
        staged(directory) as stage,
        relaying(stage.config(zones={"x": {"transport": first}})) as relay,
    ):
        await relay.reload(stage.config(zones={}))
        with pytest.raises(ConfigError, match=r"zones\.x\.transport: .* needs a restart"):
            await relay.reload(stage.config(zones={"x": {"transport": second}}))
        await relay.reload(stage.config(zones={"x": {"transport": first}}))


async def test_many_at_once(directory: Path) -> None:
    """Four domains, forty clients, a thousand messages: each arrives once."""
    async with staged(directory) as stage:
        domains = [f"d{n}.example" for n in range(4)]
        sinks = [await stage.receiver(domain) for domain in domains]
        async with relaying(stage.config()) as relay:

            async def client(number: int) -> None:
                for n in range(25):
                    await send(relay, [f"c{number}-{n}@{domains[(number + n) % 4]}"])

            await asyncio.gather(*(client(number) for number in range(40)))
            await until(lambda: sum(len(s.messages) for s in sinks) >= 1000, "all")
            await empty(relay)
        counts = [count for sink in sinks for count in sink.tally.by_recipient.values()]
        assert counts == [1] * 1000
        account = ledger(directory)
        assert account.total("accepted") == account.total("delivered") == 1000


async def test_dead_addresses_are_skipped(directory: Path) -> None:
    """An MX that times out twice is left alone: the next one is asked at once; listed and cleared."""
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        records = dict(stage.names.records)
        records["a.example"] = {"MX": ["1 dead.a.example.", "10 mx.a.example."]}
        records["dead.a.example"] = {"A": ["127.0.2.99"]}
        stage.names.records = records
        async with relaying(stage.config()) as relay:
            dead = relay._delivery.unreachable
            for moment in (-APART_S, 0.0):
                pair, now_s = AddressPair("", "127.0.2.99", stage.port), monotonic_s() + moment
                dead.timed_out(pair, "a.example", now_s, [600.0], 0)
            await send(relay, ["x@a.example"])
            await received(sink, 1)
            rows = [
                row
                async for row in run_operation(
                    Operations(relay.queue, RunningRelay(unreachable=dead)), UnreachableRequest()
                )
            ]
            assert [row["ip"] for row in rows] == ["127.0.2.99"], "it was not even tried"
            cleared = [
                row
                async for row in run_operation(
                    Operations(relay.queue, RunningRelay(unreachable=dead)),
                    UnreachableClearRequest("all"),
                )
            ]
            assert cleared == [{"cleared": 1}]
            await send(relay, ["y@a.example"])
            await received(sink, 2)
            await empty(relay)


async def test_hold_and_release(directory: Path) -> None:
    """A held message waits through flushes, restarts and time; released, it goes at once; others never wait."""
    async with staged(directory) as stage:
        sink = await stage.receiver(
            "a.example", Rule(Step.RCPT, recipient="x@*", reply="451 4.7.1 later", times=1)
        )
        config = stage.config(zones={"default": {"retry": {"delays": ["1h"]}}})
        async with relaying(config) as relay:
            await send(relay, ["x@a.example"])
            store = relay.queue.store
            await until(lambda: any(store.keys(keys.DEFERRED, keys.end_of(keys.DEFERRED))), "a deferral")
            await until(lambda: not relay.queue.deferral._expected, "the end of its commit")
            message = keys.parse_recipient(next(store.keys(keys.DEFERRED, keys.end_of(keys.DEFERRED))))[
                1
            ]
            operations = Operations(relay.queue)
            assert [row async for row in run_operation(operations, HoldRequest(message))] == [
                {"held": 1, "in_flight": 0}
            ]
            assert [row async for row in run_operation(operations, HoldRequest(message))] == [
                {"held": 0, "in_flight": 0}
            ]
            await relay.flush()
            await send(relay, ["y@a.example"])
            await received(sink, 1)
        async with relaying(config) as relay:
            await relay.flush()
            rows = [
                row async for row in run_operation(Operations(relay.queue), ListRequest(state="held"))
            ]
            assert [(row["recipient"], row["due_ms"]) for row in rows] == [("x@a.example", 0)]
            assert sound(relay)
            run = run_operation(Operations(relay.queue), ReleaseRequest(message))
            assert [row async for row in run] == [{"released": 1}]
            await received(sink, 2)
            await empty(relay)
    assert [
        f["event"] for f in (*logged_events(directory, "held"), *logged_events(directory, "released"))
    ] == [
        "held",
        "released",
    ]
