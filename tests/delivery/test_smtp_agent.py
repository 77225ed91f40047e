"""Transactions of an agent with scripted receivers: sessions, retries on a new one, refusals, attempts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.delivery.agents import HEADER, Context, request
from tests.kit.deadlines import until
from tests.kit.dkim import verified, write_key
from tests.kit.relay import Stage, staged
from zonemta_py.config.endpoints import Smarthost
from zonemta_py.config.schema import Dkim, DkimKey
from zonemta_py.config.tenants import Tenants
from zonemta_py.config.zones import Zone
from zonemta_py.core import clock, codec
from zonemta_py.core.errors import DestinationFailed, QueueCorrupt, QueueUnavailable
from zonemta_py.delivery.dkim import Key, Signer, load_keys
from zonemta_py.delivery.dns import MxResolver
from zonemta_py.delivery.endpoints import Endpoint, EndpointResolver
from zonemta_py.delivery.outcome import verdict_of
from zonemta_py.delivery.request import DeliveryResult
from zonemta_py.delivery.session_opener import Peers, SmtpResources
from zonemta_py.delivery.session_pool import SessionPool
from zonemta_py.delivery.smtp_agent import MessageForm, MessageForms, SmtpAgent
from zonemta_py.delivery.sts_policies import StsPolicies
from zonemta_py.egress.paths import EgressOrder
from zonemta_py.schedule.unreachable import AddressPair, UnreachableHosts
from zonemta_py.sink.nameserver import SERVFAIL, Records
from zonemta_py.sink.script import Rule, Step
from zonemta_py.sink.server import Sink, SinkSession
from zonemta_py.smtp.verdict import Verdict
from zonemta_py.transports.session import DsnOptions, SmtpSession

BOUNDARY = 'Content-Type: multipart/mixed; boundary="é"\r\n'.encode()
PLAIN = ("PIPELINING", "8BITMIME", "SMTPUTF8", "ENHANCEDSTATUSCODES")


class Sending:
    """An agent for the receivers of a stage."""

    def __init__(self, stage: Stage, signer: Signer, zone: Zone | None = None) -> None:
        config = stage.config()
        self.stage = stage
        self.unreachable = UnreachableHosts()
        resolver = MxResolver(config.resolver)
        endpoints = EndpointResolver(config, "relay.example", resolver, StsPolicies(resolver), Random(1))
        self.closed: list[str] = []
        self.pool = SessionPool(lambda destination, idle, *_: self.closed.append(destination))
        resources = SmtpResources(
            "relay.example", endpoints, Peers({}), signer, self.unreachable, Random(1)
        )
        self.agent = SmtpAgent(zone or config.zones["default"], resources, self.pool)

    async def deliver(
        self, *recipients: str, context: Context | None = None, **changes: Any
    ) -> DeliveryResult:
        return await self.agent.deliver(request(*recipients, **changes), context or Context())


@asynccontextmanager
async def sending(directory: Path, *rules: Rule, **options: Any) -> AsyncIterator[Sending]:
    """An agent, and a receiver for a.example."""
    signer = options.pop("signer", None) or Signer(Dkim(), {}, Tenants({}))
    async with staged(directory) as stage:
        await stage.receiver("a.example", *rules, **options)
        made = Sending(stage, signer)
        try:
            yield made
        finally:
            made.agent.close()
            signer.close()


def codes(result: DeliveryResult) -> list[int | None]:
    return [attempt.code if attempt is not None else None for attempt in result.attempts]


# ---- transactions


@pytest.mark.parametrize("chunk_bytes", [0, 7])
async def test_a_transaction(directory: Path, chunk_bytes: int) -> None:
    """The message arrives, and the attempt says by which way and how."""
    async with sending(directory) as made:
        context = Context(b".dots\r\n..\r\n", chunk_bytes)
        result = await made.deliver("x@a.example", "y@a.example", context=context)
        [message] = made.stage.sinks["a.example"].messages
        assert message.recipients == ["x@a.example", "y@a.example"]
        assert message.data == HEADER + b"\r\n.dots\r\n..\r\n"
        assert message.helo == "relay.example"
        attempt, other = result.attempts
        assert attempt is other, "one answer, one attempt"
        assert attempt is not None
        assert (attempt.phase, attempt.code, attempt.status) == ("dot", 250, "2.0.0")
        assert (attempt.mx, attempt.mx_ip, attempt.tls) == ("mx.a.example", "127.0.1.1", False)
        assert (attempt.uncertain, attempt.dsn) == (False, False)
        assert context.opened == 1
        assert made.pool.count("a.example") == 1


async def test_every_recipient_has_its_answer(directory: Path) -> None:
    rule = Rule(Step.RCPT, recipient="no@*", reply="550 5.1.1 no such user")
    async with sending(directory, rule) as made:
        result = await made.deliver("x@a.example", "no@a.example", "y@a.example")
        assert codes(result) == [250, 550, 250]
        assert result.attempts[1] is not None
        assert result.attempts[1].phase == "rcpt"


async def test_a_limit_on_recipients_is_learned(directory: Path) -> None:
    """Those beyond it have no attempt; the session asks for no more in its next transaction."""
    rule = Rule(Step.RCPT, recipient="3@*", reply="452 4.5.3 too many recipients")
    async with sending(directory, rule) as made:
        addresses = [f"{number}@a.example" for number in range(1, 5)]
        assert codes(await made.deliver(*addresses))[:3] == [250, 250, None]
        result = await made.deliver("5@a.example", "6@a.example", "7@a.example")
        assert [each is None for each in result.attempts] == [False, False, True]


async def test_dsn_options_only_for_a_peer_that_offers_dsn(directory: Path) -> None:
    dsn = DsnOptions(" RET=HDRS", [" NOTIFY=SUCCESS"])
    async with sending(directory) as made:
        result = await made.deliver("x@a.example", dsn=dsn)
        assert made.stage.sinks["a.example"].messages[0].parameters.find("RET") < 0
        assert result.attempts[0] is not None
        assert not result.attempts[0].dsn
    async with sending(directory, extensions=(*PLAIN, "DSN")) as made:
        result = await made.deliver("x@a.example", dsn=dsn)
        assert "RET=HDRS" in made.stage.sinks["a.example"].messages[0].parameters
        assert result.attempts[0] is not None
        assert result.attempts[0].dsn


@pytest.mark.parametrize(
    ("extensions", "changes", "status"),
    [
        ((*PLAIN, "SIZE 1000"), {"size_bytes": 1001}, "5.3.4"),
        (("PIPELINING",), {"header": HEADER + BOUNDARY, "eight_bit": True}, "5.6.3"),
        (("PIPELINING",), {"sender": "ü@sender.example"}, "5.6.7"),
        (("PIPELINING",), {"header": HEADER + "X: é\r\n".encode(), "smtputf8": True}, "5.6.7"),
    ],
)
async def test_what_the_peer_cannot_accept(
    directory: Path, extensions: tuple[str, ...], changes: dict[str, Any], status: str
) -> None:
    """Refused before MAIL, and the session is kept."""
    async with sending(directory, extensions=extensions) as made:
        [attempt] = (await made.deliver("x@a.example", **changes)).attempts
        assert attempt is not None
        assert (attempt.phase, attempt.code, attempt.status) == ("mail", 0, status)
        assert made.stage.sinks["a.example"].messages == []
        assert made.pool.count("a.example") == 1


class _Picky(Sink):
    """It refuses commands with a parameter that it offers. ``ends``: and closes the connection."""

    def __init__(
        self, *arguments: Any, refused: dict[str, str], ends: bool = False, **options: Any
    ) -> None:
        extensions = (*PLAIN, "SIZE 100000", "DSN")
        super().__init__(*arguments, extensions=options.pop("extensions", extensions), **options)
        self.refused, self.ends = refused, ends
        self.commands: list[str] = []

    def session(self) -> SinkSession:
        return _PickySession(self)


class _PickySession(SinkSession):
    def _command(self, line: str) -> None:
        sink = self._sink
        assert isinstance(sink, _Picky)
        sink.commands.append(line)
        is_named = line.startswith(("MAIL", "RCPT"))
        reply = next((r for name, r in sink.refused.items() if is_named and name in line), "")
        if not reply:
            return super()._command(line)
        self._reply(reply)
        if sink.ends:
            self._close()


def mails(made: Sending) -> list[str]:
    """The parameters of each MAIL."""
    sink = made.stage.sinks["a.example"]
    assert isinstance(sink, _Picky)
    return [each.partition("> ")[2] for each in sink.commands if each.startswith("MAIL")]


DSN = DsnOptions(" RET=HDRS", [" NOTIFY=FAILURE"])
EIGHT_BIT = {"header": HEADER + "X: é\r\n".encode(), "eight_bit": True}
PICKY = [  # what is refused with, other than usual, what MAIL has then
    ({"SIZE": "501 5.5.4 SIZE parameter not supported"}, {}, ["SIZE=44", ""]),
    ({"SIZE": "555 5.5.4 Unsupported option: SIZE=44"}, {}, ["SIZE=44", ""]),
    ({"SIZE": "501 Syntax error in parameters"}, {"dsn": DSN}, ["SIZE=44 RET=HDRS", ""]),
    ({"SIZE": "501 SIZE?"}, {"dsn": DSN}, ["SIZE=44 RET=HDRS", "RET=HDRS"]),
    ({"SIZE": "504 SIZE?", "RET": "504 RET?"}, {"dsn": DSN}, ["SIZE=44 RET=HDRS", "RET=HDRS", ""]),
    ({"NOTIFY": "501 5.5.4 Error: bad NOTIFY"}, {"dsn": DSN}, ["SIZE=44 RET=HDRS", "SIZE=44"]),
    ({"BODY": "501 5.5.4 BODY=8BITMIME"}, EIGHT_BIT, ["SIZE=44 BODY=8BITMIME", "SIZE="]),
]  # fmt: skip


@pytest.mark.parametrize("pipelining", [True, False])
@pytest.mark.parametrize(("replies", "changes", "sent"), PICKY)
async def test_a_parameter_that_is_offered_and_refused(
    directory: Path, replies: dict[str, str], changes: dict[str, Any], sent: list[str], pipelining: bool
) -> None:
    """The mail goes without it at once, and other mail to this host for an hour."""
    extensions = (*PLAIN[not pipelining :], "SIZE 100000", "DSN")
    options = {"kind": _Picky, "refused": replies, "extensions": extensions}
    async with sending(directory, **options) as made:
        assert codes(await made.deliver("x@a.example", **changes)) == [250]
        found = mails(made)
        assert found[:-1] == sent[:-1]
        assert found[-1].startswith(sent[-1]) and "BODY" not in found[-1]
        made.pool.close()
        assert codes(await made.deliver("y@a.example", **changes)) == [250]
        assert len(mails(made)) == len(sent) + 1


async def test_a_session_that_ends_with_a_refused_parameter(directory: Path) -> None:
    """A new one does without it."""
    refused = {"SIZE": "501 5.5.4 SIZE parameter not supported"}
    async with sending(directory, kind=_Picky, refused=refused, ends=True) as made:
        assert codes(await made.deliver("x@a.example")) == [250]
        assert mails(made) == ["SIZE=44", ""]


async def test_a_host_with_a_refused_parameter_that_is_busy(directory: Path) -> None:
    """It ends sessions, and has refused a parameter within the hour: the next host has the message at once."""
    busy = Rule(Step.MAIL, reply="421 4.3.2 busy")
    async with sending(directory, busy, extensions=(*PLAIN, "SIZE 100000")) as made:
        await made.stage.receiver("b.example")
        records = {"two.example": {"MX": ["10 mx.a.example.", "20 mx.b.example."]}}
        made.stage.names.records = {**made.stage.names.records, **records}
        at = "127.0.1.1", made.stage.port
        made.agent._resources.peers.parameters_broke({"size"}, at, clock.monotonic_s())
        result = await made.deliver("x@two.example")
        assert (codes(result), result.attempts[0] and result.attempts[0].mx) == ([250], "mx.b.example")
        assert made.stage.sinks["a.example"].tally.sessions == 1


async def test_what_needs_a_refused_parameter_is_deferred(directory: Path) -> None:
    refused = {"SMTPUTF8": "501 5.5.4 SMTPUTF8 not supported", "BODY": "501 5.5.4 no BODY"}
    not_convertible = {"header": HEADER + BOUNDARY, "eight_bit": True}
    extensions = ("PIPELINING", "8BITMIME", "SMTPUTF8")
    async with sending(directory, kind=_Picky, refused=refused, extensions=extensions) as made:
        for changes, status in (({"sender": "ü@sender.example"}, "4.6.7"), (not_convertible, "4.6.3")):
            for _ in range(2):
                [attempt] = (await made.deliver("x@a.example", **changes)).attempts
                assert attempt is not None
                assert (attempt.phase, attempt.code, attempt.status) == ("mail", 0, status)
                assert verdict_of(attempt) is Verdict.DEFERRED


async def test_what_is_refused_whatever_its_parameters(directory: Path) -> None:
    """A sender, after a second MAIL; a status of an address, and too large mail, at once. The next mail has SIZE again."""
    refused = {
        "<bad@": "501 5.5.4 Syntax: MAIL FROM:<address>",
        "<odd@": "501 5.1.7 bad sender address syntax",
        "<big@": "552 5.3.4 message size exceeds fixed limit",
    }
    async with sending(directory, kind=_Picky, refused=refused) as made:
        for name, sent in (("bad", ["SIZE=44", ""]), ("odd", ["SIZE=44"]), ("big", ["SIZE=44"])):
            before = len(mails(made))
            result = await made.deliver("x@a.example", sender=f"{name}@{name}.example")
            assert codes(result) == [int(refused[f"<{name}@"][:3])]
            assert mails(made)[before:] == sent
            made.pool.close()
        assert codes(await made.deliver("x@a.example")) == [250]
        assert mails(made)[-1] == "SIZE=44"


async def test_8_bit_mail_is_converted_and_then_signed(directory: Path) -> None:
    """The signature is valid for the bytes that the peer got."""
    key = DkimKey("sender.example", "s", write_key(directory / "key.pem"))
    settings = Dkim(keys=(key,))
    keys = load_keys(settings)
    signer = Signer(settings, keys, Tenants({}))
    async with sending(directory, signer=signer, extensions=("PIPELINING",)) as made:
        header = HEADER + "X: é\r\n".encode()
        context = Context("grün\r\n".encode())
        result = await made.deliver("x@a.example", context=context, header=header, eight_bit=True)
        assert codes(result) == [250]
        [message] = made.stage.sinks["a.example"].messages
        assert message.data.isascii()
        assert b"\r\n\r\ngr=C3=BCn\r\n" in message.data
        assert verified(message.data, *keys["sender.example"]) == [True]


async def test_smtputf8_covers_8_bit_content(directory: Path) -> None:
    async with sending(directory, extensions=("PIPELINING", "SMTPUTF8")) as made:
        result = await made.deliver("ü@a.example", eight_bit=True)
        assert codes(result) == [250]


async def test_a_damaged_body_is_deferred(directory: Path) -> None:
    """The connection is cut before the final dot."""
    async with sending(directory) as made:
        result = await made.deliver("x@a.example", context=Context(QueueCorrupt("chunk 2 is missing")))
        [attempt] = result.attempts
        assert attempt is not None
        assert (attempt.phase, attempt.code, attempt.status) == ("data", 0, "4.3.0")
        assert made.stage.sinks["a.example"].messages == []
        assert made.pool.count("a.example") == 0


async def test_a_start_that_cannot_be_written(directory: Path) -> None:
    """No final dot without the start on disk."""

    async def failed() -> None:
        raise QueueUnavailable("disk full")

    async with sending(directory) as made:
        context = Context()
        context.started = asyncio.ensure_future(failed())
        with pytest.raises(QueueUnavailable):
            await made.deliver("x@a.example", context=context)
        assert made.stage.sinks["a.example"].messages == []
        assert made.pool.count("a.example") == 0


async def test_an_unanswered_final_dot_is_uncertain(directory: Path) -> None:
    async with sending(directory, Rule(Step.DOT, drop=True)) as made:
        [attempt] = (await made.deliver("x@a.example")).attempts
        assert attempt is not None
        assert (attempt.phase, attempt.code, attempt.uncertain) == ("dot", 0, True)


# ---- sessions


async def test_a_session_is_reused_up_to_the_limit_of_messages(directory: Path) -> None:
    async with sending(directory) as made:
        zone = replace(made.stage.config().zones["default"], messages_per_connection=2)
        limited = Sending(made.stage, Signer(Dkim(), {}, Tenants({})), zone)
        sink = made.stage.sinks["a.example"]
        for expected in (1, 1, 2):
            await limited.deliver("x@a.example")
            assert sink.tally.sessions == expected
        limited.agent.close()


async def test_an_idle_session_that_failed_is_replaced(directory: Path) -> None:
    """The peer may close it at any time: the transaction is repeated on a new session, as one attempt."""
    drop = Rule(Step.MAIL, sender="drop@*", drop=True, times=1)
    async with sending(directory, drop) as made:
        await made.deliver("x@a.example")
        context = Context()
        result = await made.deliver("y@a.example", sender="drop@sender.example", context=context)
        assert codes(result) == [250]
        assert context.opened == 1
        assert made.stage.sinks["a.example"].tally.sessions == 2


async def test_421_on_an_idle_session_is_no_answer(directory: Path) -> None:
    closing = Rule(Step.MAIL, sender="late@*", reply="421 4.4.2 idle for too long", times=1)
    async with sending(directory, closing) as made:
        await made.deliver("x@a.example")
        assert codes(await made.deliver("y@a.example", sender="late@sender.example")) == [250]


async def test_421_on_an_idle_session_where_no_new_one_is_permitted(directory: Path) -> None:
    """It waits for one, and has had no attempt: a peer that closes sessions after some messages is no failure."""
    closing = Rule(Step.MAIL, sender="late@*", reply="421 4.4.2 enough of this session", times=1)
    order = EgressOrder("big", None, None, 1, 0, "both", (-1, -1))
    async with sending(directory, closing) as made:
        await made.deliver("x@a.example", order=order)
        none = codec.replace(order, connects=0)
        result = await made.deliver("y@a.example", sender="late@sender.example", order=none)
        assert (result.not_permitted, result.tried, result.failure) == (True, False, None)
        assert codes(await made.deliver("y@a.example", order=order)) == [250]


async def test_hosts_that_are_found_after_all(directory: Path) -> None:
    """They were not found when the worker was admitted, so that no limit of their provider was asked: nothing is sent."""
    async with sending(directory) as made:
        result = await made.deliver("x@a.example", lacks_hosts=True, asks_hosts=True)
        assert (result.not_permitted, result.tried, result.attempts) == (True, False, [])
        assert result.hosts is not None and result.hosts.hosts == ("mx.a.example",)
        assert made.stage.sinks["a.example"].tally.sessions == 0
        missing = await made.deliver("x@none.example", lacks_hosts=True, asks_hosts=True)
        assert not missing.not_permitted and missing.failure is not None


async def test_421_on_an_idle_session_after_an_answer(directory: Path) -> None:
    """The answer counts; the other recipient is sent over a new session with the same host."""
    rules = (
        Rule(Step.RCPT, recipient="no@*", reply="550 5.1.1 no such user"),
        Rule(Step.RCPT, recipient="late@*", reply="421 4.4.2 idle for too long", times=1),
    )
    async with sending(directory, *rules) as made:
        await made.deliver("x@a.example")
        assert codes(await made.deliver("no@a.example", "late@a.example")) == [550, 250]
        assert made.stage.sinks["a.example"].tally.sessions == 2


@pytest.mark.parametrize(
    ("rule", "code", "refuses"),
    [
        (Rule(Step.MAIL, drop=True), 0, False),
        (Rule(Step.MAIL, reply="421 4.4.2 busy"), 421, True),
        (Rule(Step.RCPT, reply="421 4.4.2 busy"), 421, True),
        (Rule(Step.DATA, reply="421 4.4.2 busy"), 421, True),
    ],
)
async def test_a_new_session_that_serves_no_recipient_is_a_failure_of_the_destination(
    directory: Path, rule: Rule, code: int, refuses: bool
) -> None:
    async with sending(directory, rule) as made:
        result = await made.deliver("x@a.example")
        assert result.failure is not None
        assert (result.failure.code, result.refuses_sessions) == (code, refuses)


async def test_a_new_session_that_is_lost_is_an_attempt(directory: Path) -> None:
    async with sending(directory, Rule(Step.MAIL, drop=True)) as made:
        [attempt] = (await made.deliver("x@a.example")).attempts
        assert attempt is not None
        assert (attempt.phase, attempt.code, attempt.status) == ("data", 0, "4.4.2")


async def test_closed_the_agent_keeps_no_session(directory: Path) -> None:
    async with sending(directory, Rule(Step.DOT, stall_s=0.05)) as made:
        running = asyncio.ensure_future(made.deliver("x@a.example"))
        sink = made.stage.sinks["a.example"]
        await until(lambda: sink.connections, "the session")
        made.agent.close()
        assert codes(await running) == [250]
        assert made.pool.count("a.example") == 0
        await until(lambda: not sink.connections, "its end")


async def test_a_new_session_closes_idle_ones_beyond_the_limits(directory: Path) -> None:
    async with sending(directory) as made:
        await made.stage.receiver("b.example")
        await made.deliver("x@a.example")
        await made.deliver("x@b.example", idle_limits=(1, 1))
        assert made.closed == []
        await made.stage.receiver("c.example")
        await made.deliver("x@c.example", idle_limits=(0, 1))
        assert sorted(made.closed) == ["a.example", "b.example"]


# ---- endpoints


async def test_the_next_host_is_tried(directory: Path) -> None:
    async with sending(directory) as made:
        made.stage.names.records = {
            **made.stage.names.records,
            "two.example": {"MX": ["10 down.example.", "20 mx.a.example."]},
            "down.example": {"A": ["127.0.1.8"]},
        }
        result = await made.deliver("x@two.example")
        assert codes(result) == [250]
        assert result.attempts[0] is not None
        assert result.attempts[0].mx == "mx.a.example"


async def test_a_connection_that_opened_no_session_counts_though_other_hosts_are_left(
    directory: Path,
) -> None:
    """The order permits one; who counts connections must hear of it. Then the other host is asked first."""
    one = EgressOrder("big", None, None, 1, 0, "both", (-1, -1))
    async with sending(directory) as made:
        made.stage.names.records = {
            **made.stage.names.records,
            "two.example": {"MX": ["10 down.example.", "20 mx.a.example."]},
            "down.example": {"A": ["127.0.1.8"]},
        }
        none = codec.replace(one, connects=0)
        for order, tried in ((none, False), (one, True)):
            result = await made.deliver("x@two.example", order=order)
            assert (result.not_permitted, result.tried) == (True, tried)
        result = await made.deliver("x@two.example", order=one)
        assert codes(result) == [250]


@pytest.mark.parametrize("second", ["this relay", "nothing", "another"])
async def test_an_attempt_that_begins_with_the_next_host(directory: Path, second: str) -> None:
    """It gets the connection, though the first host has an idle session; if it opens none, the first one has its turn again."""
    one = EgressOrder("big", None, None, 1, 0, "both", (-1, -1))
    async with sending(directory) as made:
        if second != "nothing":
            hostname = "relay.example" if second == "this relay" else "b.example"
            await made.stage.receiver("b.example", hostname=hostname)
        made.stage.names.records = {
            "mx.b.example": {"A": ["127.0.1.2"]},
            **made.stage.names.records,
            "two.example": {"MX": ["10 mx.a.example.", "20 mx.b.example."]},
        }
        assert codes(await made.deliver("x@two.example", order=one)) == [250]
        result = await made.deliver("x@two.example", order=one, turn=1)
        if second == "another":
            assert codes(result) == [250]
            result = await made.deliver("x@two.example", order=one, turn=2)
        else:
            assert (result.not_permitted, result.tried) == (True, True)
            result = await made.deliver("x@two.example", order=one, turn=1)
        assert codes(result) == [250]
        first = made.stage.sinks["a.example"]
        assert (len(first.messages), first.tally.sessions) == (2, 1), "in the session that was idle"


async def test_a_connection_on_which_starttls_failed_counts(directory: Path) -> None:
    """An order that permits one connection is not given another one: the next order tries TLS again, then one does without.

    Without a limit they follow at once.
    """
    one = EgressOrder("big", None, None, 1, 0, "both", (-1, -1))
    async with sending(directory, extensions=(*PLAIN, "STARTTLS")) as made:
        sink = made.stage.sinks["a.example"]
        for sessions in (1, 2):
            result = await made.deliver("x@a.example", order=one)
            assert (result.not_permitted, result.tried, sink.tally.sessions) == (True, True, sessions)
        result = await made.deliver("x@a.example", order=one)
        assert (codes(result), sink.tally.sessions) == ([250], 3)
        made.pool.close()
        result = await made.deliver("x@a.example")
        assert (codes(result), sink.tally.sessions) == ([250], 5), "tried where another may follow"
    (directory / "two").mkdir()
    async with sending(directory / "two", extensions=(*PLAIN, "STARTTLS")) as made:
        result = await made.deliver("x@a.example")
        assert (codes(result), made.stage.sinks["a.example"].tally.sessions) == ([250], 3)


@pytest.mark.parametrize("is_found", [True, False])
async def test_a_backup_that_is_this_relay(directory: Path, is_found: bool) -> None:
    """Known by its EHLO alone. While the host before it cannot be looked up the mail waits, else it loops."""
    async with sending(directory, hostname="relay.example") as made:
        records: Records = {"two.example": {"MX": ["20 mx.a.example."]}}
        if not is_found:
            records = {
                "two.example": {"MX": ["10 best.example.", "20 mx.a.example."]},
                "best.example": SERVFAIL,
            }
        made.stage.names.records = {**made.stage.names.records, **records}
        result = await made.deliver("x@two.example")
        assert result.failure is not None
        assert (result.failure.status, result.permanent) == (
            ("5.4.6", True) if is_found else ("4.4.3", False)
        )


async def test_no_session(directory: Path) -> None:
    """The failure is temporary, whatever the server said, which is in the attempt; and there is no session to count."""
    async with sending(directory, Rule(Step.CONNECT, reply="554 5.7.1 go away")) as made:
        context = Context()
        result = await made.deliver("x@a.example", "y@a.example", context=context)
        assert result.failure is not None
        failure = result.failure
        assert (failure.phase, failure.code, failure.status) == ("connect", 554, "5.7.1")
        assert (failure.text, failure.mx, failure.mx_ip) == ("go away", "mx.a.example", "127.0.1.1")
        assert verdict_of(failure) is Verdict.DEFERRED
        assert result.attempts == [result.failure] * 2
        assert (result.permanent, result.has_idle, context.opened) == (False, False, 0)
        assert result.tried


async def test_a_domain_that_does_not_exist(directory: Path) -> None:
    async with sending(directory) as made:
        result = await made.deliver("x@missing.example")
        assert result.permanent
        assert result.failure is not None
        assert result.failure.status == "5.1.2"
        assert not result.tried, "no connection was made, and none counts"


async def test_unreachable_hosts_are_skipped(directory: Path) -> None:
    async with sending(directory) as made:
        for later_s in (-200.0, 0.0):
            pair, now_s = AddressPair("", "127.0.1.1", made.stage.port), clock.monotonic_s() + later_s
            made.unreachable.timed_out(pair, "a.example", now_s, [60.0, 600.0], 0.5)
        result = await made.deliver("x@a.example")
        assert result.failure is not None
        assert result.failure.text == (
            "every address timed out lately and is not tried for a while: 127.0.1.1"
        )
        assert not result.tried
        made.unreachable.clear("127.0.1.1")
        assert codes(await made.deliver("x@a.example")) == [250]


async def test_the_only_way_of_a_smarthost_is_tried(directory: Path) -> None:
    """Its address timed out, and there is no other."""
    async with staged(directory) as stage:
        await stage.receiver("a.example")
        smarthost = (Smarthost("127.0.1.1", stage.config().zones["default"].port),)
        made = Sending(
            stage,
            Signer(Dkim(), {}, Tenants({})),
            replace(stage.config().zones["default"], smarthost=smarthost),
        )
        for later_s in (-200.0, 0.0):
            pair, now_s = AddressPair("", "127.0.1.1", made.stage.port), clock.monotonic_s() + later_s
            made.unreachable.timed_out(pair, "a.example", now_s, [600.0], 0.5)
        assert codes(await made.deliver("x@a.example")) == [250]
        assert made.unreachable.rows(clock.monotonic_s()) == []
        made.agent.close()


async def test_a_session_within_a_time(directory: Path) -> None:
    """A host that does not greet has a short time, because others wait; it is not unreachable for that."""
    rule = Rule(Step.CONNECT, stall_s=60, times=1)
    async with sending(directory, rule) as made:
        result = await made.deliver("x@a.example", session_within_s=0.05)
        assert result.failure is not None
        assert result.failure.text == (
            "mx.a.example[127.0.1.1]: no session within 0.1 s, while mail of others waits"
        )
        assert made.unreachable.rows(clock.monotonic_s()) == []


# ---- signatures


async def test_signatures_are_in_front_of_the_header(directory: Path) -> None:
    """Computed with the body hash of intake, or with one of the body."""
    key = DkimKey("sender.example", "s", write_key(directory / "key.pem", "ed25519"))
    settings = Dkim(keys=(key,))
    async with sending(directory, signer=Signer(settings, load_keys(settings), Tenants({}))) as made:
        context = Context(b"body\r\n", 3)
        await made.deliver("x@a.example", context=context)
        [message] = made.stage.sinks["a.example"].messages
        assert message.data.startswith(b"DKIM-Signature: ")
        assert message.data.endswith(HEADER + b"\r\nbody\r\n")


async def test_a_damaged_body_is_found_while_signing(directory: Path) -> None:
    key = DkimKey("sender.example", "s", write_key(directory / "key.pem", "ed25519"))
    settings = Dkim(keys=(key,))
    async with sending(directory, signer=Signer(settings, load_keys(settings), Tenants({}))) as made:
        result = await made.deliver("x@a.example", context=Context(QueueCorrupt("damaged")))
        assert result.attempts[0] is not None
        assert result.attempts[0].status == "4.3.0"


async def test_both_forms_of_a_message_are_signed_by_themselves(directory: Path) -> None:
    """One goes to a host that takes 8-bit mail, the other to one that does not: each has its own signature."""
    path = write_key(directory / "key.pem", "ed25519")
    settings = Dkim(keys=(DkimKey("sender.example", "s", path),))
    signer, body = Signer(settings, load_keys(settings), Tenants({})), "grün\r\n".encode()
    header = HEADER + b"Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n"
    for seven_bit in (False, True, False):
        forms = MessageForms(
            request("x@a.example", header=header, eight_bit=True),
            Context(body),
            signer,
            asyncio.Semaphore(),
        )
        form = await forms.get(seven_bit=seven_bit)
        sent = body if form.body is None else form.body
        assert (sent == body) == (not seven_bit)
        whole = form.request.header + b"\r\n" + sent
        assert verified(whole, Key("sender.example", "s", path)) == [True]
    signer.close()


# ---- limits and failures


async def test_other_hosts_are_asked_for_8bitmime_within_the_limits(directory: Path) -> None:
    """With one connection there is no other host; with more, one idle session is left of each."""
    async with staged(directory) as stage:
        for domain in ("a.example", "b.example", "c.example"):
            await stage.receiver(domain, extensions=("PIPELINING",))
        hosts = tuple(Smarthost(f"127.0.1.{n}", stage.port) for n in (1, 2, 3))
        for limit, opened in ((0, 1), (3, 3)):
            zone = replace(stage.config().zones["default"], smarthost=hosts)
            made = Sending(stage, Signer(Dkim(), {}, Tenants({})), zone)
            result = await made.deliver(
                "x@a.example",
                context=Context("é\r\n".encode()),
                eight_bit=True,
                idle_limits=(limit, limit),
            )
            assert codes(result) == [250]
            assert made.pool.count("a.example") == opened
            made.agent.close()


async def test_a_host_that_fails_is_connected_to_once(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the destination has an idle session of another source address."""
    async with sending(directory) as made:
        await made.deliver("x@a.example")
        [entry] = made.pool._whole.all(None)
        ip, port, source, security = entry.key
        endpoint = Endpoint("mx.a.example", ip, port, source, security)
        other = codec.replace(endpoint, source="127.0.0.9")
        session = made.pool.take(endpoint)
        assert session is not None
        made.pool.put(other, "a.example", session, 60)
        tried: list[str] = []

        async def refused(endpoint: Endpoint, *_: object, repeats: bool) -> SmtpSession:
            assert repeats
            tried.append(endpoint.ip)
            raise DestinationFailed(0, "4.4.1", "refused")

        monkeypatch.setattr(made.agent._opener, "_open", refused)
        result = await made.deliver("x@a.example")
        assert result.failure is not None
        assert tried == ["127.0.1.1"]


async def test_a_failure_while_the_message_is_prepared_closes_the_session(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(forms: MessageForms, *, seven_bit: bool) -> MessageForm:
        raise RuntimeError("a defect")

    monkeypatch.setattr(MessageForms, "get", fails)
    async with sending(directory) as made:
        with pytest.raises(RuntimeError):
            await made.deliver("x@a.example")
        await until(lambda: not made.stage.sinks["a.example"].connections, "the session to end")
