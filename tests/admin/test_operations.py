"""Every operation on a real queue, and the table that names them."""

import base64
import json
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

import click
import pytest

from tests.kit.deadlines import until
from tests.kit.queue import HEADER, accept, everything, held_mail, lease, opened, settle
from zonemta_py.admin.operation import Operations
from zonemta_py.admin.registry import OPERATIONS, operation_of, parse_request, run_operation
from zonemta_py.admin.relay_port import RunningRelay
from zonemta_py.admin.requests import (
    AuditRequest,
    BodyRequest,
    CheckRequest,
    DeleteRequest,
    DestinationsRequest,
    FlushRequest,
    HistoryRequest,
    HoldRequest,
    ListRequest,
    LogLevelRequest,
    RatesRequest,
    ReleaseRequest,
    Request,
    ResumeRequest,
    ShapeRequest,
    ShowRequest,
    StateRequest,
    StatsRequest,
    StatusRequest,
    SummaryRequest,
    SuspendRequest,
    TenantsRequest,
    UnreachableClearRequest,
    UnreachableRequest,
    WhyRequest,
    name_of,
)
from zonemta_py.cli.queue.group import queue as queue_commands
from zonemta_py.cli.tenant import tenant as tenant_commands
from zonemta_py.cli.warmup import warmup as warmup_commands
from zonemta_py.core.clock import monotonic_s
from zonemta_py.core.codec import fields_of
from zonemta_py.core.errors import LocalError
from zonemta_py.core.model import USUAL_KEY, OutcomeKind, PoolKey
from zonemta_py.egress.paths import Constraint
from zonemta_py.queue.accept import NewMessage, NewRecipient
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import DeliveryOptions, Origin
from zonemta_py.queue.messages import Lease
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.upkeep.operator import Operator
from zonemta_py.schedule.unreachable import AddressPair, UnreachableHosts

GONE = "0" * 24


class SuspendedZone:
    """A zone with one unreachable destination."""

    def __init__(self) -> None:
        self.probed: list[str | None] = []
        self.sessions = 3

    def why(self, destination: str, pool: PoolKey = USUAL_KEY) -> Constraint | None:
        if destination != "b.example":
            return None
        return Constraint(
            "unreachable", "no route until noon", 1, 1_900_000_000_000, "zones.default.retry"
        )

    def provider(self, destination: str) -> str:
        return f"mx.{destination}"

    def stopped(self) -> Collection[str]:
        return ()

    def probe(self, destination: str | None) -> None:
        self.probed.append(destination)


@pytest.fixture
async def queue(directory: Path) -> AsyncIterator[Queue]:
    async with opened(directory) as queue:
        yield queue


async def rows(queue: Queue, request: Request, **others: Any) -> list[dict[str, Any]]:
    return [row async for row in run_operation(Operations(queue, RunningRelay(**others)), request)]


async def defer(queue: Queue, leased: Lease) -> None:
    """For an hour."""
    await settle(queue, leased, OutcomeKind.DEFERRED, queue.now() + 3_600_000)


async def put(queue: Queue) -> str:
    """A message to three: one waits, one is deferred, one waits for an unreachable destination."""
    message = await accept(queue, "x@a.example", "y@b.example", "z@c.example")
    leased = lease(queue, "c.example")
    await queue.start(leased)
    await defer(queue, leased)
    return message


async def test_summary(queue: Queue) -> None:
    assert await rows(queue, SummaryRequest()) == []
    await put(queue)
    queue.windows.set_unreachable("default", "b.example")
    (row,) = await rows(queue, SummaryRequest(), zones={"default": SuspendedZone()})
    assert (row["zone"], row["waiting"], row["deferred"], row["held"]) == ("default", 1, 1, 0)
    assert (row["unreachable"], row["in_flight"], row["not_before"], row["counting"]) == (1, 0, 0, False)
    assert row["destinations"] == {"a.example": 1, "b.example": 1, "c.example": 1}
    assert row["unreachable_destinations"]["b.example"]["reason"] == "no route until noon"
    assert row["next_due_ms"] > 0
    assert row["oldest_ms"] > 0


async def test_the_earlier_name_of_a_state(queue: Queue) -> None:
    """It means what an operator has suspended; ``suspended`` meant a destination that fails."""
    await put(queue)
    await queue.suspended.suspend("zone:default", "test")
    found = [await rows(queue, ListRequest(state=state)) for state in ("suspended", "stopped")]
    assert [len(each) for each in found] == [2, 2]
    assert {row["state"] for each in found for row in each} == {"suspended"}


async def test_list(queue: Queue) -> None:
    """Filters, the limit, and the reason why a recipient waits."""
    message = await put(queue)
    zones = {"default": SuspendedZone()}
    found = await rows(queue, ListRequest(), zones=zones)
    assert {(r["message"], r["recipient"], r["state"]) for r in found} == {
        (message, "x@a.example", "waiting"),
        (message, "y@b.example", "waiting"),
        (message, "z@c.example", "deferred"),
    }
    why = {r["recipient"]: r["why"] for r in found}
    assert why["y@b.example"] == {
        "name": "unreachable", "reason": "no route until noon", "since_ms": 1,
        "until_ms": 1_900_000_000_000, "key": "zones.default.retry",
    }  # fmt: skip
    assert (why["x@a.example"]["name"], why["z@c.example"]["name"]) == ("turn", "retry")
    assert [r["recipient"] for r in await rows(queue, ListRequest(state="deferred"))] == ["z@c.example"]
    assert [r["recipient"] for r in await rows(queue, ListRequest(domain="a.example"))] == [
        "x@a.example"
    ]
    assert await rows(queue, ListRequest(zone="other")) == []
    assert len(await rows(queue, ListRequest(limit=2))) == 2


async def test_destinations(queue: Queue) -> None:
    """The largest, and those that are suspended or fail, however small they are."""
    await put(queue)
    for number in range(5):
        await accept(queue, f"x@large{number}.example", f"y@large{number}.example")
    queue.windows.set_unreachable("default", "b.example")
    zones = {"default": SuspendedZone()}
    found = await rows(queue, DestinationsRequest(limit=3), zones=zones)
    assert [row["total"] for row in found] == [2, 2, 2]
    troubled = await rows(queue, DestinationsRequest(troubled=True, limit=3), zones=zones)
    by_name = {row["destination"]: row for row in troubled}
    assert by_name.keys() == {"b.example", "c.example"}
    assert (by_name["b.example"]["unreachable"], by_name["b.example"]["deferred"]) == (1, 0)
    assert by_name["b.example"]["why"]["name"] == "unreachable"
    assert (by_name["c.example"]["deferred"], by_name["c.example"]["recent"]["deferred"]) == (1, 1)
    assert by_name["c.example"]["reply"] != ""
    zones["other"] = SuspendedZone()
    assert await rows(queue, DestinationsRequest(zone="other"), zones=zones) == []


async def test_tenants(queue: Queue) -> None:
    for number in range(3):
        for _ in range(number + 1):
            await accept(queue, "x@a.example", tenant=f"t{number}")
    assert await rows(queue, TenantsRequest(limit=2)) == [
        {"tenant": "t2", "queued": 3},
        {"tenant": "t1", "queued": 2},
    ]


async def test_history_of_events_that_are_not_in_the_log_yet(queue: Queue, directory: Path) -> None:
    """By Message-ID also those that do not have it, of one tenant, and of the last messages that share it."""
    events = directory / "events"
    events.mkdir()
    messages = [await accept(queue, "x@a.example", tenant=name) for name in ("acme", "globex")]
    for _ in messages:
        leased = lease(queue, "a.example")
        await queue.start(leased)
        await settle(queue, leased, OutcomeKind.DELIVERED)
    for key in ("<id@here>", "ID@here"):
        found = await rows(queue, HistoryRequest(key), events=events)
        assert sorted(row["event"] for row in found) == [
            "accepted",
            "accepted",
            "delivered",
            "delivered",
        ]
        of_one = await rows(queue, HistoryRequest(key, tenant="acme"), events=events)
        assert [(row["message"], row["event"]) for row in of_one] == [
            (messages[0], "accepted"),
            (messages[0], "delivered"),
        ]


async def test_a_flush_of_a_message_tries_its_destinations(queue: Queue) -> None:
    message = await put(queue)
    await accept(queue, "x@other.example")
    for name in ("b.example", "other.example"):
        queue.windows.set_unreachable("default", name)
    zone = SuspendedZone()
    [answer] = await rows(queue, FlushRequest(message=message), zones={"default": zone})
    assert answer == {"woken": 1, "tried": 1, "suspended": 0}
    assert sorted(filter(None, zone.probed)) == ["a.example", "b.example", "c.example"]
    assert len(zone.probed) == 3


async def test_held_mail_is_listed_without_the_rest(queue: Queue) -> None:
    """The same rows as of a look at everything, page by page, in every zone."""
    messages = [await accept(queue, "x@a.example", "y@b.example|other") for _ in range(4)]
    await accept(queue, "z@a.example")
    for message in messages[:3]:
        await Operator(queue).hold(message, None)
    everything = [row for row in await rows(queue, ListRequest()) if row["state"] == "held"]
    assert len(everything) == 6
    assert await rows(queue, ListRequest(state="held")) == everything
    paged, after = [], ""
    while page := await rows(queue, ListRequest(state="held", limit=2, after=after)):
        paged += page
        after = page[-1]["cursor"]
    assert paged == everything
    in_zone = [row for row in everything if row["zone"] == "other"]
    assert await rows(queue, ListRequest(state="held", zone="other")) == in_zone


async def test_list_by_label(queue: Queue) -> None:
    """By tenant, user, campaign and tag, of messages of several recipients."""
    writer = queue.open_message()
    writer.write(b"x\r\n")
    to = [NewRecipient(f"{name}@a.example", "a.example", "default") for name in "ab"]
    origin = Origin("", "192.0.2.1", "", "ann", "ESMTPA", "acme")
    new = NewMessage(
        "s@s.example", b"Subject: x\r\n", to, origin, campaign="spring", tags=("sale", "shoes")
    )
    await queue.accept(writer, new)
    other = await put(queue)
    for wanted in (
        ListRequest(tenant="acme"), ListRequest(user="ann"), ListRequest(campaign="spring"),
        ListRequest(tag="shoes"), ListRequest(tenant="acme", tag="sale", campaign="spring", user="ann"),
    ):  # fmt: skip
        found = await rows(queue, wanted)
        assert [row["recipient"] for row in found] == ["a@a.example", "b@a.example"]
        assert (found[0]["tenant"], found[0]["campaign"], found[0]["tags"]) == (
            "acme",
            "spring",
            ("sale", "shoes"),
        )
    assert {row["message"] for row in await rows(queue, ListRequest(tenant=""))} == {other}
    assert await rows(queue, ListRequest(tenant="acme", tag="boots")) == []


async def test_show_and_body(queue: Queue) -> None:
    message = await put(queue)
    (row,) = await rows(queue, ShowRequest(message))
    assert (row["message"], row["sender"], row["body_bytes"]) == (message, "s@sender.example", 6)
    assert [r["recipient"] for r in row["recipients"]] == ["x@a.example", "y@b.example", "z@c.example"]
    chunks = [base64.b64decode(row["chunk"]) for row in await rows(queue, BodyRequest(message))]
    assert b"".join(chunks).startswith(HEADER)
    assert b"".join(chunks).endswith(b"\r\nbody\r\n")


@pytest.mark.parametrize(
    "request_type", [ShowRequest, BodyRequest, FlushRequest, DeleteRequest, HoldRequest, ReleaseRequest]
)
async def test_a_message_that_does_not_exist(queue: Queue, request_type: Any) -> None:
    with pytest.raises(LocalError, match=r"^ann@a\.example is no queue id: `zonemta history` finds"):
        await rows(queue, WhyRequest("ann@a.example"))
    with pytest.raises(LocalError, match=f"no message {GONE} in the queue"):
        await rows(queue, request_type(message=GONE))


async def test_a_damaged_body(queue: Queue) -> None:
    message = await accept(queue, "x@a.example", body=b"line\r\n" * 30_000)
    queue.store.write(queue.store.batch([(keys.chunk_key(message, 1), b"?")], sync=True))
    with pytest.raises(LocalError, match=message):
        await rows(queue, BodyRequest(message))


async def test_a_body_that_goes_while_it_is_read(queue: Queue) -> None:
    message = await accept(queue, "x@a.example", body=b"line\r\n" * 30_000)
    reading = run_operation(Operations(queue), BodyRequest(message))
    for _ in range(2):
        await anext(reading)
    await rows(queue, DeleteRequest(message))
    await until(lambda: everything(queue.store) == [], "the chunks to go")
    with pytest.raises(LocalError, match=f"message {message} has left the queue"):
        async for _ in reading:
            pass


async def test_state(queue: Queue) -> None:
    message = await accept(queue, "x@a.example")
    (row,) = await rows(queue, StateRequest(message))
    assert (row["qmail"], row["recipients"][0]["kannader"]) == ("S4", "queued")
    assert [row["qmail"] for row in await rows(queue, StateRequest(GONE))] == ["S1"]


async def test_flush(queue: Queue) -> None:
    """Deferred recipients are due, and the unreachable destinations of the zone are tried."""
    await put(queue)
    zone, other = SuspendedZone(), SuspendedZone()
    request = FlushRequest(zone="default", domain="c.example")
    answer = await rows(queue, request, zones={"default": zone, "other": other})
    assert answer == [{"woken": 1, "tried": 0, "suspended": 0}]
    assert (zone.probed, other.probed) == (["c.example"], [])
    assert await rows(queue, FlushRequest(), zones={"default": zone}) == [{**answer[0], "woken": 0}]
    assert zone.probed == ["c.example", None]
    for name, request, suspended in (
        ("domain:c.example", FlushRequest(domain="c.example"), 1),
        ("provider:mx.c.example", FlushRequest(domain="c.example"), 1),
        ("domain:c.example", FlushRequest(domain="a.example"), 0),
        ("zone:default", FlushRequest(), 3),
    ):
        await queue.suspended.suspend(name, "a test")
        [row] = await rows(queue, request, zones={"default": zone})
        assert row["suspended"] == suspended, name
        await queue.suspended.resume(name)


async def test_hold_and_release(queue: Queue) -> None:
    message = await put(queue)
    leased = lease(queue, "a.example")
    await queue.start(leased)
    assert await rows(queue, HoldRequest(message)) == [{"held": 2, "in_flight": 1}]
    assert await rows(queue, ReleaseRequest(message, "y@b.example")) == [{"released": 1}]
    assert await rows(queue, ReleaseRequest(message)) == [{"released": 1}]
    await defer(queue, leased)


async def test_a_release_that_was_interrupted_goes_on(queue: Queue) -> None:
    """The suspension of the tenant is over, some of its mail is still held; then there is nothing to resume."""
    message = await accept(queue, "x@a.example", tenant="acme")
    await Operator(queue).hold(message)
    resume = ResumeRequest(tenant="acme")
    assert (await rows(queue, resume))[-1] == {"released": 1, "resumed": "acme"}
    with pytest.raises(LocalError, match="tenant acme is not suspended; suspended: nothing"):
        await rows(queue, resume)


async def test_delete(queue: Queue) -> None:
    message = await put(queue)
    answer = await rows(queue, DeleteRequest(message, "y@b.example"))
    assert answer == [{"deleted": 1, "in_flight": 0}]
    with pytest.raises(LocalError, match=f"no message {message} to y@b.example in the queue"):
        await rows(queue, DeleteRequest(message, "y@b.example"))
    assert await rows(queue, DeleteRequest(message)) == [{"deleted": 2, "in_flight": 0}]
    assert await rows(queue, ListRequest()) == []


async def test_a_flush_forgets_unreachable_addresses(queue: Queue) -> None:
    """Those of the destination that it tries, or all."""
    hosts, zone = UnreachableHosts(), SuspendedZone()
    for name in ("a", "b", "c"):
        pair = AddressPair("", name)
        hosts.timed_out(pair, f"{name}.example", monotonic_s(), [60.0], 0)
    options: dict[str, Any] = {"zones": {"default": zone}, "unreachable": hosts}
    await rows(queue, FlushRequest(domain="b.example"), **options)
    assert [row["ip"] for row in hosts.rows(monotonic_s())] == ["a", "c"]
    await rows(queue, FlushRequest(zone="other"), **options)
    assert len(hosts.rows(monotonic_s())) == 2
    await rows(queue, FlushRequest(), **options)
    assert hosts.rows(monotonic_s()) == []


async def test_unreachable(queue: Queue) -> None:
    hosts = UnreachableHosts()
    for ip in ("192.0.2.1", "192.0.2.2", "192.0.2.3"):
        hosts.timed_out(AddressPair("", ip), "a.example", monotonic_s(), [60.0], 0)
    listed = await rows(queue, UnreachableRequest(), unreachable=hosts)
    assert [(row["ip"], row["timeouts"]) for row in listed] == [
        ("192.0.2.1", 1), ("192.0.2.2", 1), ("192.0.2.3", 1),
    ]  # fmt: skip
    assert await rows(queue, UnreachableClearRequest("192.0.2.1"), unreachable=hosts) == [{"cleared": 1}]
    assert await rows(queue, UnreachableClearRequest("all"), unreachable=hosts) == [{"cleared": 2}]
    assert await rows(queue, UnreachableRequest()) == [], "no relay, no addresses"


@pytest.mark.parametrize("request_type", [SuspendRequest, ResumeRequest])
async def test_who_is_suspended_must_be_said(queue: Queue, request_type: Any) -> None:
    for arguments in ({}, {"tenant": "a", "user": "b"}, {"zone": "a", "domain": "b.example"}):
        with pytest.raises(
            LocalError, match=r"one of (tenant, user, zone, .*|zone, provider and domain) is expected"
        ):
            await rows(queue, request_type(**arguments))
    for arguments in ({"tenant": "a\x1b[2J"}, {"user": "u" * 300}):
        with pytest.raises(LocalError, match=r"no name of a (tenant|user)"):
            await rows(queue, request_type(**arguments))
    assert queue.suspended.names() == []


async def test_check(queue: Queue) -> None:
    message = await put(queue)
    assert await rows(queue, CheckRequest()) == [{"problems": 0}]
    value = queue.store.get(keys.deferred_key("default", message, "z@c.example"))
    twice = (keys.waiting_key("default", message, "z@c.example"), value)
    queue.store.write(queue.store.batch([twice], sync=True))
    *problems, total = await rows(queue, CheckRequest())
    assert total["problems"] == len(problems) > 0
    assert any(message in row["problem"] for row in problems)


async def test_audit(queue: Queue) -> None:
    """One snapshot: where the events end, the events in the outbox, every recipient."""
    message = await put(queue)
    head, *others = await rows(queue, AuditRequest())
    assert head.pop("older_than") >= queue.commits.written_seq
    assert head == {"seq": queue.commits.written_seq, "exported": 0, "node": queue.node}
    events = "".join(row.get("events", "") for row in others)
    assert [json.loads(line)["event"] for line in events.splitlines()] == ["accepted", "deferred"]
    recipients = [recipient for row in others for recipient in row.get("recipients", ())]
    assert sorted(recipients) == [[message, index, "default"] for index in range(3)]


async def test_stats(queue: Queue) -> None:
    await put(queue)
    (row,) = await rows(queue, StatsRequest())
    assert row["writable"] is True and row["scanning"] == 0
    assert row["fsyncs"] > 0 and row["transitions"] > 0


# ---- the table


def test_every_operation_is_a_command() -> None:
    """The name of an operation is that of its command: of ``zonemta``, or of a group.

    ``zonemta tenant list`` and ``show`` ask for those that are suspended, and for the usage of limits; ``zonemta
    status`` prints a login and the counters of the store; ``queue unreachable --clear`` and ``shaping clear`` are operations of their
    own; ``queue summary --by`` and ``queue show --states`` choose one; ``top`` prints rates; ``warmup`` and ``shaping`` are the commands ``status`` of their groups.
    """
    names = {
        *queue_commands.list_commands(click.Context(queue_commands)),
        *tenant_commands.commands,
        "audit",
        "classify",
        "why",
        "status",
        "loglevel",
        "rates",
        "destinations",
        "tenants",
        "state",
        "stats",
        "suspend",
        "resume",
        "history",
        "tail",
        "reload",
        "suspended",
        "usage",
        "login",
        "trace",
        "unreachableclear",
        "warmup",
        "shaping",
        *(f"warmup{name}" for name in warmup_commands.commands),
        "shapingend",
    }
    assert [name for name in OPERATIONS if name not in names] == []


def test_a_request_knows_its_operation() -> None:
    for name, operation in OPERATIONS.items():
        arguments = dict.fromkeys(_required(operation.request), GONE)
        if "level" in arguments:
            arguments["level"] = "info"
        request = parse_request(name, arguments)
        assert type(request) is operation.request
        assert name_of(request) == name
        assert operation_of(request) is operation


def _required(request: type[Request]) -> tuple[str, ...]:
    return tuple(field.name for field in fields_of(request) if field.required)


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("nonsense", {}, "unknown operation 'nonsense'; operations: summary, shape, status,"),
        ("list", {"zones": "bulk"}, "list: .*unknown field `zones`"),
        ("list", {"limit": "many"}, r"list: Expected `int \| null`, got `str` - at `\$.limit`"),
        ("show", {}, "show: .*missing required field `message`"),
        ("hold", {"message": 7}, r"hold: Expected `str \| null`, got `int`"),
        ("summary", [], "summary: Expected `object`, got `array`"),
    ],
)
def test_wrong_arguments(name: str, arguments: object, text: str) -> None:
    with pytest.raises(LocalError, match=text):
        parse_request(name, arguments)


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (ListRequest(zone="blk"), "zone: there is no zone 'blk'"),
        (DestinationsRequest(zone="blk"), "zone: there is no zone 'blk'"),
        (ListRequest(state="lost"), "state: expected one of waiting, in_flight, "),
        (ShapeRequest(state="lost"), "state: expected one of waiting, in_flight, "),
        (RatesRequest(kind="shoe"), "kind: expected one of zone, destination, source, tenant"),
    ],
)
async def test_what_no_row_can_have(queue: Queue, request_: Request, text: str) -> None:
    """No answer would say that there is none of it."""
    relay = RunningRelay(zones={"default": SuspendedZone()})
    with pytest.raises(LocalError, match=text):
        run_operation(Operations(queue, relay), request_)


async def test_rates(queue: Queue) -> None:
    """Of what was settled, by kind; a window that is not kept is refused."""
    await put(queue)
    found = {row["kind"]: row for row in await rows(queue, RatesRequest(minutes=1))}
    assert (found["zone"]["name"], found["zone"]["deferred"]) == ("default", 1)
    assert (found["destination"]["name"], found["destination"]["attempts"]) == ("c.example", 1)
    assert [row["kind"] for row in await rows(queue, RatesRequest(kind="zone"))] == ["zone"]
    with pytest.raises(LocalError, match="minutes: expected one of 1, 5, 60"):
        await rows(queue, RatesRequest(minutes=2))


async def test_shape(queue: Queue) -> None:
    """By destination and age, the largest first."""
    await put(queue)
    await accept(queue, "v@b.example", "w@b.example")
    found = await rows(queue, ShapeRequest(limit=2))
    assert (found[0]["destination"], found[0]["total"]) == ("b.example", 3)
    assert sum(found[0]["ages"]) == 3
    assert len(found) == 2
    (row,) = await rows(queue, ShapeRequest(state="deferred"))
    assert row["destination"] == "c.example"


async def test_why_has_one_answer_for_each_state(queue: Queue) -> None:
    """For waiting, leased, deferred, held and later mail, of a relay that runs and of one that is down."""
    running = {"zones": {"default": SuspendedZone()}}
    message = await put(queue)

    async def answer(address: str, **relay: Any) -> dict[str, Any]:
        (row,) = await rows(queue, WhyRequest(message, address), **relay)
        why: dict[str, Any] = row["why"]
        return why

    assert (await answer("x@a.example"))["name"] == "not_running"
    assert (await answer("x@a.example", **running))["name"] == "turn"
    assert (await answer("y@b.example", **running))["reason"] == "no route until noon"
    later = await answer("z@c.example", **running)
    assert (later["name"], later["key"]) == ("retry", "zones.default.retry")
    assert later["until_ms"] > later["since_ms"] > 0
    leased = lease(queue, "a.example")
    assert (await answer("x@a.example", **running))["name"] == "in_flight"
    await queue.release(leased)
    await queue.suspended.suspend("acme", "unpaid")
    message = await accept(queue, "x@a.example", tenant="acme")
    suspension = await answer("x@a.example", **running)
    assert (suspension["name"], suspension["reason"]) == (
        "tenant_suspension", "tenant acme is suspended: unpaid"
    )  # fmt: skip
    held = lease(queue, "a.example")
    while held.active.id != message:
        held = lease(queue, "a.example")
    assert await held_mail(queue).hold(held)
    assert (await answer("x@a.example", **running))["name"] == "tenant_suspension"
    await Operator(queue).hold(message)
    assert (await answer("x@a.example", **running))["name"] == "hold"
    await queue.suspended.resume("acme")
    assert (await answer("x@a.example", **running))["name"] == "hold"
    options = DeliveryOptions(not_before_ms=queue.now() + 60_000)
    message = await accept(queue, "x@a.example", options=options)
    assert (await answer("x@a.example", **running))["name"] == "not_before"
    with pytest.raises(LocalError, match="no message"):
        await answer("nothing@a.example", **running)
    with pytest.raises(LocalError, match="no message"):
        await rows(queue, WhyRequest(GONE), **running)


async def test_status_needs_a_relay(queue: Queue) -> None:
    with pytest.raises(LocalError, match="no relay is running"):
        await rows(queue, StatusRequest())
    (row,) = await rows(queue, StatusRequest(), status=lambda: {"version": "1"})
    assert (row["version"], row["queue"]["waiting"], row["unreachable"]) == ("1", 0, 0)


async def test_log_level_needs_a_relay(queue: Queue) -> None:
    with pytest.raises(LocalError, match="no relay is running"):
        await rows(queue, LogLevelRequest("debug"))
    set_to: list[str] = []
    answer = await rows(queue, LogLevelRequest("debug"), set_log_level=set_to.append)
    assert (answer, set_to) == ([{"level": "debug"}], ["debug"])
