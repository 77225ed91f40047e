"""What users of python-slimta expect of a queue: storage, outcomes, retries, bounces, policies, transports.

Storage is checked on every store. The number at the end of a name is that of the requirement which the test
checks; 14 is in test_takeover.py, 16 in tests/end_to_end/test_transports.py.
"""

import asyncio
import email
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from email.message import Message as Mail
from pathlib import Path
from typing import Any, cast

import pytest

from tests.kit import dequeue as kit
from tests.kit.deadlines import scaled, time_limit, until
from tests.kit.dequeue import ZONE, opened, per_recipient, reports, rows, run, stored
from tests.kit.local_transport import delivered
from tests.kit.queue import everything
from tests.kit.relay import FAST_RETRY, ONE_PROCESS, Stage, empty, logged_events, received, send, staged
from tests.kit.servers import LOCAL, SHARED
from tests.kit.smtp_client import RawClient
from zonemta_py import Bounce, Envelope, NotAccepted, Parcel, Relay, Reply, RetryContext
from zonemta_py.core.errors import QueueUnavailable
from zonemta_py.dequeue import AsyncMessage, Disposition
from zonemta_py.policies import Client, Forward, Lookup, split_by_domain, split_by_recipient
from zonemta_py.queue.format import keys
from zonemta_py.queue.upkeep.move import flush
from zonemta_py.queue.upkeep.operator import Operator
from zonemta_py.sink.nameserver import SERVFAIL
from zonemta_py.sink.script import Rule, Step
from zonemta_py.storage.interface import Store
from zonemta_py.storage.open import open_shared_storage
from zonemta_py.transports.pipe import PRESETS, PipeTransport

STORES = [store for store in (*LOCAL, *SHARED) if store != "memory"]  # what a restart finds again
TEXT = b"Subject: x\r\n\r\nbody\r\n"


def manual(recipient: object, attempts: int) -> float | None:
    """The backoff function of slimta's manual."""
    return 12.0 * 5**attempts if attempts <= 5 else None


async def finish(message: AsyncMessage, **said: Disposition) -> None:
    """Set dispositions by local part; recipients without one are deferred."""
    for recipient in message.recipients():
        kind = said.get(recipient.address.partition("@")[0])
        if kind is not None:
            message.dispose(recipient.address, kind)
    await message.finish()


def damage(directory: Path, store: str, opened_store: Store, message: str) -> None:
    """Overwrite the record of the recipient, so that it cannot be decoded."""
    if store == "filesystem":
        (directory / "queue" / "files" / "data" / message / "0" / "metadata").write_text("?")
        return
    key = keys.deferred_key(ZONE, message, "z@y.example")
    opened_store.write(opened_store.batch([(key, b"?")], sync=True))


@pytest.mark.parametrize("store", STORES)
async def test_stored_messages_survive_restarts_01_to_05(directory: Path, store: str) -> None:
    """Envelope, body, attempts and partial deliveries across restarts; unknown ids; the list without a damaged record."""
    body = bytes(range(1, 10)) * 3 + b"\r\n" + b"y\r\n" * 50_000
    abcd = [f"{name}@x.example" for name in "abcd"]
    async with opened(directory, store) as queue:
        first = await queue.enqueue("s@a.example", abcd, b"X: \xff\r\n\r\n" + body, zone=ZONE, user="me")
        bad = await queue.enqueue("s@a.example", ["z@y.example"], TEXT, zone=ZONE)
        assert len(rows(queue)) == 5
    seen: list[Any] = []

    async def look(message: AsyncMessage, **said: Disposition) -> None:
        info, read = message.info, [recipient.address for recipient in message.recipients()]
        attempts = {recipient.attempts for recipient in message._recipients}
        lines = list(message.lines())
        seen.append(
            (info.sender, info.user, info.accepted_ms, read, attempts, lines[lines.index(b"") :])
        )
        for address in read:
            if (kind := said.get(address[0])) is not None:
                message.dispose(address, kind)
        await message.finish()

    # 1, 2: envelope and body are unchanged, attempts are counted.
    for attempts in range(2):
        async with opened(directory, store) as queue:
            await flush(queue.channels.context.queue, ZONE, "x.example", None)
            await run(queue, lambda message: look(message), max_threads=1)
            assert {row["attempts"] for row in rows(queue) if row["message"] == first} == {attempts + 1}
    mine = [each for each in seen if each[3] == abcd]
    assert [each[:3] for each in mine] == [("s@a.example", "me", keys.created_ms(first))] * 2
    assert [each[4] for each in mine] == [{0}, {1}]
    assert mine[0][5] == mine[1][5] == [b"", *body.removesuffix(b"\r\n").split(b"\r\n")]
    # 3: a is delivered, then d after a restart; b and c are left.
    for name, left in (("a", "bcd"), ("d", "bc")):
        async with opened(directory, store) as queue:
            await flush(queue.channels.context.queue, ZONE, "x.example", None)

            async def only(message: AsyncMessage, name: str = name) -> None:
                await look(message, **{name: Disposition.DELIVERED})

            await run(queue, only, max_threads=1)
            there = sorted(row["recipient"][0] for row in rows(queue) if row["domain"] == "x.example")
            assert "".join(there) == left
    # 4: an unknown message cannot be read; deleting it has no effect.
    async with opened(directory, store) as queue:
        inner = queue.channels.context.queue
        assert await Operator(inner).delete("0" * 24) == (0, 0)
        assert inner.store.get(keys.mark_key("0" * 24)) is None
        assert len(rows(queue)) == 3
        damage(directory, store, inner.store, bad)
    # 5: the damaged message is kept; every other one is listed once.
    async with opened(directory, store) as queue:
        seen.clear()
        await flush(queue.channels.context.queue)
        await run(queue, lambda message: look(message), max_threads=1)
        assert [each[3] for each in seen] == [["b@x.example", "c@x.example"]]
        assert bad in stored(queue)


async def gone(relay: Relay) -> None:
    """Wait until no message is left. A flush may leave ``due/`` keys, which are found idle at their time."""
    store = relay.queue.store
    await until(lambda: not list(store.keys(keys.MESSAGE, keys.end_of(keys.MESSAGE))), "an empty queue")


class Script:
    """A routine of ``transport: python`` that answers by the recipient's name, and remembers."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.healed = False

    def __call__(self, parcel: Parcel) -> Reply | None:
        """a: delivered, b: later, c: never, e: raises."""
        name = parcel.recipient.partition("@")[0]
        self.calls.append((parcel.message, name))
        if name == "e" and not self.healed:
            raise ValueError("a defect of the relay's")
        if name == "b" and not self.healed:
            return Reply(450, "4.2.0", "busy")
        return Reply(550, "5.1.1", "unknown") if name == "c" else None


script = Script()


def routine(parcel: Parcel) -> Reply | None:
    """What the configuration names."""
    return script(parcel)


def routed(stage: Stage, store: str = "leveldb", **changes: Any) -> Any:
    """A relay whose zone ``list`` is delivered by ``routine``; reports go to their receiver."""
    zone = {
        "transport": "python",
        "python": {"function": f"{__name__}.routine"},
        "retry": {"delays": ["1h"]},
    }
    own = kit.settings(stage.directory, store).queue
    shared = {"name": "one", "lease": time_limit(1)}
    queue = {
        "directory": "queue", "min_free_disk": "1MiB", "store": store, "shared": shared,
        "redis": {"url": own.redis.url, "prefix": own.redis.prefix},
        "s3": {"bucket": own.s3.bucket, "prefix": own.s3.prefix, "endpoint": own.s3.endpoint},
    }  # fmt: skip
    return stage.config(
        zones={"list": {**zone, **changes.pop("zone", {})}},
        routing=[{"recipient_domain": "list.example", "zone": "list"}],
        queue=queue,
        processes=ONE_PROCESS,
        **changes,
    )


@pytest.fixture(autouse=True)
def fresh_script() -> None:
    script.__init__()


@pytest.mark.parametrize("store", [*LOCAL, *SHARED])
async def test_each_recipient_has_its_own_outcome_06(directory: Path, store: str) -> None:
    """Of three recipients c bounces once, a is not sent again, b alone is retried, with one attempt."""
    async with staged(directory) as stage:
        home = await stage.receiver("a.example")
        at_once = {"bounce": {"aggregate": "attempt"}}  # "minute" waits longer than the test does
        async with Relay(routed(stage, store, zone=at_once)) as relay:
            to = [f"{name}@list.example" for name in "abc"]
            await relay.enqueue("s@a.example", to, TEXT)
            await until(lambda: len(script.calls) == 3 and home.tally.messages == 1)
            await until(
                lambda: any(key.startswith(keys.DEFERRED) for key in everything(relay.queue.store))
            )
            script.healed = True
            await relay.flush()
            await gone(relay)
        assert Counter(name for _, name in script.calls) == {"a": 1, "b": 2, "c": 1}
    deliveries = {
        event["recipient"][0]: event["attempt"] for event in logged_events(directory, "delivered")
    }
    assert (deliveries["a"], deliveries["b"]) == (1, 2)
    assert len(logged_events(directory, "bounced")) == 1


POINTS = ["start.unwritten", "start.written", "bounce.unwritten", "bounce.written"]


@pytest.mark.crash
@pytest.mark.parametrize(
    ("store", "point"),
    [("leveldb", point) for point in POINTS] + [(kind, "bounce.written") for kind in SHARED],
)
async def test_killed_at_every_write_of_a_partial_delivery_07(
    directory: Path, store: str, point: str
) -> None:
    """After a kill a is sent at most twice, b is not lost, c bounces exactly once."""
    program = Path(__file__).parents[1] / "dequeue" / "partial_program.py"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    async with opened(directory, store) as queue:
        to = [f"{name}@x.example" for name in "abc"]
        await queue.enqueue("s@a.example", to, TEXT, zone=ZONE)
    command = [sys.executable, str(program), str(directory), store]
    options: Any = {"env": environment, "check": False, "capture_output": True, "timeout": scaled(60)}
    killed = subprocess.run([*command, point], **options)
    place = open_shared_storage(kit.settings(directory, store).queue)
    if place is not None:
        await until(lambda: place.orphans() == ["one"], "the lease of the dead one to run out")
        place.close()
    done = subprocess.run(command, **options)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert done.returncode == 0, done.stderr.decode()
    sent = Counter((directory / "sent").read_text().split())
    assert 1 <= sent["a@x.example"] <= 2
    async with opened(directory, store) as queue:
        assert [row["recipient"] for row in rows(queue, ZONE)] == ["b@x.example"]
        (report,) = await reports(queue)
        assert [about["Final-Recipient"] for about in per_recipient(report)] == ["rfc822; c@x.example"]


async def attempts_of(directory: Path, backoff: Any) -> tuple[list[int], list[Mail]]:
    """When a message that always fails is tried (s after its acceptance), and the reports at its end."""
    async with opened(directory) as queue:
        inner = queue.channels.context.queue
        began_ms = at_ms = inner.now()
        inner.now = lambda: at_ms
        inner.deferral._now = lambda: at_ms
        await queue.enqueue("s@a.example", ["u@x.example"], TEXT, zone=ZONE)
        made: list[int] = []

        async def routine(message: AsyncMessage) -> None:
            made.append((at_ms - began_ms) // 1000)
            await message.abort("450 4.2.0 busy")

        while True:
            await run(queue, routine, backoff=backoff)
            left = rows(queue, ZONE)
            if not left:
                return made, await reports(queue)
            at_ms = left[0]["due_ms"]
            while await inner.deferral.wake_due(at_ms):
                pass


async def test_a_backoff_function_decides_the_attempts_08(directory: Path) -> None:
    """Six attempts at the times of the function, regardless of ``give_up_after``; then a bounce with the last reply."""
    made, told = await attempts_of(directory, manual)
    assert made == [0, 60, 360, 1860, 9360, 46_860]
    (about,) = per_recipient(told[0])
    assert (about["Action"], about["Status"]) == ("failed", "4.4.7")
    assert "busy" in about["Diagnostic-Code"]
    assert "Attempts: 6" in str(told[0])


async def test_a_backoff_function_by_name_or_argument_08(directory: Path) -> None:
    """The same function named in the configuration and passed to the relay."""
    asked: list[tuple[str, int]] = []

    def backoff(recipient: RetryContext, attempts: int) -> float | None:
        asked.append((recipient.recipient, attempts))
        return None if attempts == 2 else 0.01

    async with staged(directory) as stage:
        home = await stage.receiver("a.example")
        async with Relay(routed(stage), backoff=backoff) as relay:
            await relay.enqueue("s@a.example", ["b@list.example"], TEXT)
            await until(lambda: home.tally.messages == 1, "the report")
        assert asked == [("b@list.example", 1), ("b@list.example", 2)]
        named = routed(
            stage, zone={"retry": {"policy": "backoff", "function": f"{__name__}.manual", "jitter": 0}}
        )
        async with Relay(named) as relay:
            await relay.enqueue("s@a.example", ["b@list.example"], TEXT)
            await until(lambda: len(deferred_rows(relay)) == 1)
            row = deferred_rows(relay)[0]
            assert 59_000 < row["due_ms"] - relay.queue.now() <= 60_000


def deferred_rows(relay: Relay) -> list[dict[str, Any]]:
    from zonemta_py.queue.upkeep.inspect import recipient_rows

    return [row for row in recipient_rows(relay.queue.store) if row["state"] == "deferred"]


async def test_a_backoff_of_none_bounces_at_once_09(directory: Path) -> None:
    """A function that returns None: the first temporary failure is final."""
    made, told = await attempts_of(directory, lambda recipient, attempts: None)
    assert made == [0]
    assert len(told) == 1


async def test_bounces_can_be_routed_changed_and_suppressed_10(directory: Path) -> None:
    """No bounce to the null sender; a zone for bounces; a function that changes a bounce or suppresses it."""
    seen: list[Bounce] = []

    def rework(bounce: Bounce) -> Bounce | None:
        seen.append(bounce)
        if bounce.to.startswith("quiet"):
            return None
        if bounce.to.startswith("odd"):
            raise ValueError("a defect of the function's")
        if bounce.to.startswith("text"):
            return bounce._replace(body="text")  # type: ignore[arg-type]  # a mistake, as a user may make it
        return bounce._replace(header=b"X-Ours: yes\r\n" + bounce.header)

    async with staged(directory) as stage:
        home = await stage.receiver("a.example")
        zone = {
            "transport": "python",
            "python": {"function": f"{__name__}.routine"},
            "bounce": {"zone": "reports", "return": "headers"},
        }
        config = stage.config(
            zones={"list": zone, "reports": {}},
            routing=[{"recipient_domain": "list.example", "zone": "list"}],
            processes=ONE_PROCESS,
        )
        async with Relay(config, bounce=rework) as relay:
            for sender in ("", "quiet@a.example", "odd@a.example", "text@a.example", "s@a.example"):
                await relay.enqueue(sender, ["c@list.example"], TEXT)
            await until(lambda: home.tally.messages == 3, "three reports")
            await empty(relay)
        assert [bounce.to.partition("@")[0] for bounce in seen] == ["quiet", "odd", "text", "s"]
        told = {message.recipients[0]: message.data for message in home.messages}
        assert b"X-Ours: yes" in told["s@a.example"]
        assert b"X-Ours" not in told["odd@a.example"] + told["text@a.example"]
        assert b"text/rfc822-headers" in told["s@a.example"]
        assert b"\r\nbody\r\n" not in told["s@a.example"]
    assert {event["zone"] for event in logged_events(directory, "delivered")} == {"reports"}
    assert {event["reason"] for event in logged_events(directory, "discarded")} == {
        "bounce function",
        "double bounce",
    }


@pytest.mark.parametrize("store", [*LOCAL, *SHARED])
async def test_flush_tries_all_deferred_mail_now_11(directory: Path, store: str) -> None:
    """All deferred mail is tried at once and keeps its retry times when it fails again."""
    async with staged(directory) as stage, Relay(routed(stage, store)) as relay:
        for _ in range(3):
            await relay.enqueue("s@a.example", ["b@list.example"], TEXT)
        await until(lambda: len(deferred_rows(relay)) == 3)
        async with asyncio.timeout(scaled(10)):
            assert await relay.flush() == 3
        await until(lambda: len(script.calls) == 6)
        await until(lambda: [row["attempts"] for row in deferred_rows(relay)] == [2, 2, 2])
        script.healed = True
        assert await relay.flush() == 3
        await gone(relay)


async def test_a_transport_that_raises_defers_12(directory: Path) -> None:
    """Its message is deferred; other messages are delivered."""
    async with staged(directory) as stage, Relay(routed(stage)) as relay:
        await relay.enqueue("s@a.example", ["e@list.example", "a@list.example"], TEXT)
        await relay.enqueue("s@a.example", ["a@list.example"], TEXT)
        await until(lambda: [name for _, name in script.calls].count("a") == 2)
        await until(lambda: len(deferred_rows(relay)) == 1)
        (row,) = deferred_rows(relay)
        assert (row["recipient"], row["status"]) == ("e@list.example", "4.3.0")
        script.healed = True
        await relay.flush()
        await gone(relay)


async def test_policies_split_forward_and_add_fields_13(directory: Path) -> None:
    """Split by domain or recipient, forwarded by the first matching rule, looked up; fields are added once."""
    book: dict[str, Mapping[str, Any]] = {
        "list@d.example": {"alias": "everybody@d.example"},
        "v@d.example": {"verp": "b.example", "add_headers": {"X-Seen": "yes"}},
    }
    forward = Forward([(r"^old-(.*)@old\.example$", r"\1@d.example"), ("^old-", "never-")])
    async with staged(directory) as stage:
        sinks = {name: await stage.receiver(name, Rule(Step.RCPT, reply="451 4.2.0 later", times=1)) for name in ("d.example", "e.example")}  # fmt: skip
        config = stage.config(processes=ONE_PROCESS, zones={"default": {"retry": FAST_RETRY}})
        async with Relay(config, policies=[split_by_domain, forward, Lookup(book.get)]) as relay:
            to = [
                "w@D.Example",
                "x@d.EXAMPLE",
                "z@e.example",
                "old-k@old.example",
                "v@d.example",
                "list@d.example",
            ]
            await relay.enqueue("s@a.example", to, b"Subject: x\n\n" + b"y\n" * 60_000)
            await empty(relay)
        got = {frozenset(m.recipients): m for sink in sinks.values() for m in sink.messages}
        assert set(map(frozenset, got)) >= {frozenset(["z@e.example"]), frozenset(["v@d.example"])}
        everybody = sorted(address for recipients in got for address in recipients)
        wanted = ["w", "x", "k", "v", "everybody"]
        assert everybody == sorted([*(f"{name}@d.example" for name in wanted), "z@e.example"])
        own = got[frozenset(["v@d.example"])]
        assert own.sender == "s+v=d.example@b.example"
        assert own.data.count(b"X-Seen: yes") == 1
        for message in got.values():
            head = message.data.partition(b"\r\n\r\n")[0]
            assert [head.count(name) for name in (b"Received:", b"Message-ID:", b"Date:")] == [1, 1, 1]
            assert message.data.endswith(b"y\r\n" * 60_000)
    accepted = logged_events(directory, "accepted")
    assert len(accepted) == 4
    assert sum(len(event["recipients"]) for event in accepted) == 6


def test_splitting_of_envelopes_13() -> None:
    """By domain regardless of case, by recipient in order; copies share no state."""

    class Asked:
        def __init__(self, address: str) -> None:
            self.address = address

    envelope = Envelope(
        "s@a",
        [Asked(a) for a in ("X@A.com", "y@a.COM", "z@b")],
        b"",
        Client("192.0.2.1", "h", "", "ESMTP"),
    )
    by_domain = split_by_domain(envelope)
    assert [each.recipients for each in by_domain] == [["X@A.com", "y@a.COM"], ["z@b"]]
    assert [each.recipients for each in split_by_recipient(envelope)] == [
        ["X@A.com"],
        ["y@a.COM"],
        ["z@b"],
    ]
    by_domain[0].recipients.append("w@c")
    assert envelope.recipients == ["X@A.com", "y@a.COM", "z@b"]


def refuse(envelope: Envelope) -> Iterable[Envelope] | None:
    """A policy that answers by the sender."""
    kind = envelope.sender.partition("@")[0]
    if kind == "busy":
        raise NotAccepted("452 4.3.1 not now")
    if kind == "odd":
        raise NotAccepted("what")
    if kind == "broken":
        raise ValueError("a defect of the policy's")
    return [] if kind == "nobody" else None


async def test_replies_to_failures_at_acceptance_15(directory: Path) -> None:
    """The reply of a policy, 451, or 421 and the end of the session; 451 for a failing disk. The queue stays empty."""
    async with staged(directory) as stage:
        await stage.receiver("d.example")
        async with Relay(stage.config(policies=[f"{__name__}.refuse"], processes=ONE_PROCESS)) as relay:
            for sender, reply in {
                "busy": "452 4.3.1 not now",
                "odd": "451 4.3.0 Error queuing message",
                "nobody": "554 5.7.1",
                "broken": "421 4.3.0 Unhandled system error",
            }.items():
                client = await RawClient.connect(relay.addresses[0].port)
                await client.ehlo()
                said = await client.message(TEXT + b".\r\n", "u@d.example", sender=f"{sender}@a.example")
                assert said.startswith(reply)
                if sender == "broken":
                    assert await client.ended()
                client.close()
            await until(lambda: everything(relay.queue.store) == [])
            failing(relay)
            client = await RawClient.connect(relay.addresses[0].port)
            await client.ehlo()
            said = await client.command("MAIL FROM:<s@a.example>")
            if said.startswith("250"):  # nothing of the relay's own has met the disk before
                await client.command("RCPT TO:<u@d.example>")
                said = await client.command("DATA")
            if said.startswith("354"):
                said = await client.command((TEXT + b".").decode())
            assert said.startswith("451 4.3.0")
            client.close()
            assert everything(relay.queue.store) == []


def failing(relay: Relay) -> None:
    """Make every write of the store fail."""

    def write(batch: object) -> None:
        raise QueueUnavailable("the disk is gone")

    relay.queue.store.write = write


async def test_the_client_of_a_proxy_is_in_received_17(directory: Path) -> None:
    """Both versions of the PROXY protocol: the address of the client is in the Received field."""
    from tests.intake.test_proxy import test_the_client_is_who_the_proxy_names as check

    for version in (1, 2):
        place = directory / str(version)
        place.mkdir()
        await check(place, version)


async def test_exit_codes_and_output_of_programs_18(tmp_path: Path) -> None:
    """Exit code 75 and a time-out defer; a status in the output has precedence over the code; the maildrop preset."""

    def program(code: str, timeout_s: float = 30) -> PipeTransport:
        return PipeTransport(
            (sys.executable, "-c", f"import sys, time; sys.stdin.read(); {code}"), scaled(timeout_s)
        )

    assert (await delivered(program("sys.exit(75)"), b"x")).code // 100 == 4
    reply = await delivered(program("print('5.1.1 no such user'); sys.exit(75)"), b"x")
    assert (reply.code // 100, reply.status) == (5, "5.1.1")
    slow = await delivered(program("time.sleep(60)", 0.3), b"x")
    assert slow.code // 100 == 4
    assert PRESETS["maildrop"][0] == "maildrop"
    assert "{sender}" in PRESETS["maildrop"]


async def test_hosts_of_a_destination_19(directory: Path) -> None:
    """The next host on the next attempt; a host that overrides MX; the codes of names that cannot be resolved."""
    async with staged(directory) as stage:
        sink = await stage.receiver("fixed.example")
        stage.names.records = {
            **stage.names.records,
            "null.example": {"MX": ["0 ."]},
            "two.example": {"MX": ["10 dead.two.example.", "20 mx.fixed.example."]},
            "dead.two.example": {"A": ["127.0.1.8"]},
            "broken.example": SERVFAIL,
        }
        config = stage.config(
            zones={"forced": {"smarthost": f"127.0.1.1:{stage.port}"}},
            routing=[{"recipient_domain": "elsewhere.example", "zone": "forced"}],
            processes=ONE_PROCESS,
        )
        async with Relay(config) as relay:
            await send(relay, ["u@elsewhere.example"], sender="")
            await received(sink, 1)
            await send(relay, ["u@two.example"], sender="")
            await received(sink, 2)
            await send(relay, ["u@null.example", "u@missing.example"], sender="")
            await empty(relay)
            await send(relay, ["u@broken.example"], sender="")
            await until(lambda: deferred_rows(relay))
            assert deferred_rows(relay)[0]["status"] == "4.4.3"
    codes = {event["domain"]: event["status"] for event in logged_events(directory, "bounced")}
    assert codes == {"null.example": "5.1.10", "missing.example": "5.1.2"}


async def test_reports_parse_as_rfc_3464_20(directory: Path) -> None:
    """The fields of RFC 3464, as the email package of the standard library parses them."""
    async with staged(directory) as stage:
        home = await stage.receiver("a.example")
        async with Relay(routed(stage)) as relay:
            await relay.enqueue("s@a.example", ["c@list.example", "a@list.example"], TEXT)
            await until(lambda: home.tally.messages == 1)
            await empty(relay)
        report = email.message_from_bytes(home.messages[0].data)
        assert report.get_content_type() == "multipart/report"
        assert report.get_param("report-type") == "delivery-status"
        status = next(
            part for part in report.walk() if part.get_content_type() == "message/delivery-status"
        )
        about_message = cast(Any, status).get_payload()[0]
        assert isinstance(about_message, Mail)
        assert about_message["Reporting-MTA"] == "dns; relay.example"
        (about,) = per_recipient(report)
        assert about["Final-Recipient"] == "rfc822; c@list.example"
        assert (about["Action"], about["Status"]) == ("failed", "5.1.1")
        assert "unknown" in about["Diagnostic-Code"]
        assert home.messages[0].sender == ""
