"""Plans through real relays: whatever dies, everybody gets the message once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.deadlines import until
from tests.kit.listener import certificate, users_file
from tests.kit.relay import Stage, ledger, relaying, staged
from tests.pipeline.test_plan import plan, write_list
from zonemta_py.bench.process import CommandProcess, free_port
from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.submission import Envelope, Manners, Settled, Submission
from zonemta_py.relay.relay import Relay
from zonemta_py.sink.script import Rule, Step
from zonemta_py.sink.server import Sink
from zonemta_py.transports import connect as smtp

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from zonemta_py.pipeline.jobs.send import Sums

LETTER = b"From: n@example.com\r\nSubject: hi {{name}}\r\n\r\nhello\r\n"


class Field:
    """A relay, who receives, and what they got."""

    def __init__(self, stage: Stage, relay: Relay, sinks: list[Sink]) -> None:
        self.stage = stage
        self.relay = relay
        self.sinks = sinks

    @property
    def target(self) -> str:
        return str(self.relay.addresses[0])

    def got(self) -> list[str]:
        return sorted(a for sink in self.sinks for m in sink.messages for a in m.recipients)


@asynccontextmanager
async def field(folder: Path, *rules: Rule, **changes: Any) -> AsyncIterator[Field]:
    async with staged(folder) as stage:
        sinks = [await stage.receiver(f"d{n}.example", *rules) for n in range(3)]
        async with relaying(stage.config(**changes)) as relay:
            yield Field(stage, relay, sinks)


def addresses(count: int) -> list[str]:
    return [f"u{n:04d}@d{n % 3}.example" for n in range(count)]


def manners(*targets: str, **changes: Any) -> Manners:
    settings: dict[str, Any] = {
        "sender": "n@example.com",
        "message": LETTER,
        "relays": targets,
        **changes,
    }
    return Manners(**settings)


async def submitted(which: Manners, envelopes: list[Envelope]) -> list[Settled]:
    submission = Submission(which)
    try:
        return await submission.send(envelopes)
    finally:
        await submission.aclose()


def personal(count: int) -> list[Envelope]:
    return [
        Envelope(f"{n:032x}", [(address, {"name": f"n{n}"})])
        for n, address in enumerate(addresses(count))
    ]


async def test_a_repeat_is_known(folder: Path) -> None:
    """The same envelopes again, and once more to somebody new in one of them: nobody gets it twice."""
    async with field(folder) as here:
        first = await submitted(manners(here.target), personal(30))
        assert {(s.state, s.repeated, len(s.messages)) for s in first} == {("accepted", False, 1)}
        again = await submitted(manners(here.target), personal(30))
        assert {(s.state, s.repeated) for s in again} == {("accepted", True)}
        assert {s.key: s.messages for s in again} == {s.key: s.messages for s in first}
        more = Envelope(
            f"{0:032x}", [("u0000@d0.example", {"name": "x"}), ("new@d0.example", {"name": "x"})]
        )
        [one, other] = await submitted(manners(here.target), [more])
        assert one.messages == other.messages
        assert len(one.messages) == 2
        await until(lambda: len(here.got()) == 31, "31 deliveries")
        assert here.got() == sorted([*addresses(30), "new@d0.example"])
        assert all(
            b"Subject: hi n" in m.data or b"hi x" in m.data for s in here.sinks for m in s.messages
        )


async def test_a_relay_that_says_not_now(folder: Path) -> None:
    """4xx is back-pressure: the message is tried again until it is taken, or patience is over."""
    async with staged(folder) as stage:
        relay = await stage.receiver(
            "relay.example", Rule(Step.RCPT, reply="450 4.3.2 not now", times=2)
        )
        target = f"127.0.1.1:{stage.port}"
        [row] = await submitted(manners(target), personal(1))
        assert (row.state, relay.tally.recipients) == ("accepted", 1)
        await stage.receiver("never.example", Rule(Step.RCPT, reply="450 4.3.2 never"))
        [row] = await submitted(manners(f"127.0.1.2:{stage.port}", patience_s=0.5), personal(1))
        assert (row.state, row.code) == ("deferred", 450)


async def test_a_relay_that_dies_at_the_final_dot(folder: Path) -> None:
    """No answer is no acceptance: the message is tried again, under the same key."""
    async with staged(folder) as stage:
        relay = await stage.receiver("relay.example", Rule(Step.DOT, drop=True, times=1))
        rows = await submitted(manners(f"127.0.1.1:{stage.port}"), personal(3))
        assert {(s.state, s.code) for s in rows} == {("accepted", 250)}
        assert relay.tally.recipients >= 3
        await stage.receiver("never.example", Rule(Step.DOT, drop=True))
        [row] = await submitted(manners(f"127.0.1.2:{stage.port}", patience_s=0.3), personal(1))
        assert (row.state, row.code, row.messages) == ("deferred", 0, ())


async def test_a_relay_that_refuses(folder: Path) -> None:
    async with staged(folder) as stage:
        await stage.receiver("r.example", Rule(Step.RCPT, recipient="u0001*", reply="550 5.7.1 no"))
        rows = await submitted(manners(f"127.0.1.1:{stage.port}"), personal(3))
        assert {s.address: s.state for s in rows} == {
            "u0000@d0.example": "accepted", "u0001@d1.example": "refused", "u0002@d2.example": "accepted",
        }  # fmt: skip


async def test_with_a_password_over_tls(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """STARTTLS and AUTH; a wrong password submits nothing and says so, one row each."""
    cert, key, context = certificate(folder)
    monkeypatch.setattr(smtp, "_VERIFYING", context)
    listener = {
        "address": "127.0.0.1:0", "trusted_networks": [], "auth": {"users_file": str(users_file(folder))},
        "tls": {"mode": "starttls", "certificate": str(cert), "key": str(key)},
    }  # fmt: skip
    async with field(folder, listeners=[listener]) as here:
        good = manners(here.target, tls="required", credentials=("news", "secret"))
        rows = await submitted(good, personal(10))
        assert {(s.state, s.code) for s in rows} == {("accepted", 250)}
        await until(lambda: len(here.got()) == 10, "10 deliveries")
        assert all(b" with ESMTPSA " in m.data for s in here.sinks for m in s.messages)
        bad = manners(here.target, tls="required", credentials=("news", "wrong"), patience_s=0.2)
        [row] = await submitted(bad, personal(1))
        assert (row.state, row.messages) == ("deferred", ())
        assert "535" in row.reply
        plain = manners(here.target, tls="off", credentials=("news", "secret"), patience_s=0.2)
        [row] = await submitted(plain, personal(1))
        assert row.state == "deferred"


async def test_a_dead_relay(folder: Path) -> None:
    """Its keys wait for it; with failover another relay takes them."""
    async with field(folder) as here:
        dead = "127.0.0.1:9"
        rows = await submitted(manners(dead, patience_s=0.3), personal(2))
        assert {s.state for s in rows} == {"deferred"}
        assert "127.0.0.1" in rows[0].reply or "refused" in rows[0].reply
        mixed = await submitted(manners(dead, here.target, patience_s=0.3), personal(20))
        assert {s.state for s in mixed} == {"accepted", "deferred"}
        assert {s.relay for s in mixed if s.state == "accepted"} == {here.target}


async def test_failover(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zonemta_py.pipeline.submission.FAILOVER_S", 0.1)
    async with field(folder) as here:
        rows = await submitted(
            manners("127.0.0.1:9", here.target, failover=True, patience_s=20), personal(20)
        )
        assert {(s.state, s.relay) for s in rows} == {("accepted", here.target)}


# ---- with Spark


def send(spark: "SparkSession", folder: Path, which: Manners) -> "Sums":
    from zonemta_py.pipeline.jobs.send import send_plan

    return send_plan(spark, str(folder), which, lambda text: None)


def planned(spark: "SparkSession", folder: Path, count: int, **changes: Any) -> Path:
    listed = write_list(folder / "list.csv", [[address, "x"] for address in addresses(count)])
    plan(spark, listed, folder / "plan", message=LETTER, **changes)
    return folder / "plan"


async def test_a_plan_is_sent_once(spark: "SparkSession", folder: Path) -> None:
    """All of it, then nothing when it is run again; the relay's ledger, the plan's and the receivers agree."""
    place = await asyncio.to_thread(planned, spark, folder, 300)
    async with field(folder) as here:
        sums = await asyncio.to_thread(send, spark, place, manners(here.target))
        assert (sums.planned, sums.accepted, sums.repeated, sums.unsent) == (300, 300, 0, 0)
        assert sums.complete
        again = await asyncio.to_thread(send, spark, place, manners(here.target))
        assert again == sums
        await until(lambda: len(here.got()) == 300, "300 deliveries")
        assert here.got() == addresses_sorted(300)
    assert ledger(folder).total("accepted") == 300


def addresses_sorted(count: int) -> list[str]:
    return sorted(addresses(count))


async def test_progress_is_told_in_recipients(
    spark: "SparkSession", folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is sent: more and more of those that are left, and never more than there are."""
    from zonemta_py.pipeline.jobs import send as module
    from zonemta_py.pipeline.spark import progress

    monkeypatch.setattr(module, "ROWS_PER_FILE", 20)
    monkeypatch.setattr(progress, "POLL_S", 0.01)
    place = await asyncio.to_thread(planned, spark, folder, 300, per_envelope=5)
    said: list[str] = []
    async with field(folder) as here:
        await asyncio.to_thread(module.send_plan, spark, str(place), manners(here.target), said.append)
    assert said[0] == "sending, run 1: 300 recipients"
    assert said[-1] == "counting"
    told = [int(text.split()[3].replace(",", "")) for text in said if " of 300 recipients" in text]
    assert told == sorted(told)
    assert told
    assert told[0] < 300 or len(told) == 1
    assert told[-1] <= 300


async def test_a_task_that_dies(
    spark: "SparkSession", folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again from its beginning: what it had sent is known to the relay."""
    place = await asyncio.to_thread(planned, spark, folder, 200)
    monkeypatch.setenv("SPARK_TEST_MARK", str(folder / "mark"))
    async with field(folder) as here:
        sums = await asyncio.to_thread(
            _send_with_a_fault, spark, place, manners(here.target), folder / "mark"
        )
        assert (sums.accepted, sums.unsent) == (200, 0)
        assert sums.repeated > 0
        await until(lambda: len(here.got()) >= 200, "200 deliveries")
    assert here.got() == addresses_sorted(200)
    assert ledger(folder).total("accepted") == 200


def _send_with_a_fault(spark: "SparkSession", place: Path, which: Manners, mark: Path) -> "Sums":
    """The job, with a task that fails once after it has sent its messages."""
    from zonemta_py.pipeline.jobs import send as module

    original = module._sending

    def faulty(campaign: str, how: Manners) -> Any:
        inner = original(campaign, how)
        path = str(mark)

        def sending(batches: Any) -> Any:
            from pathlib import Path as P

            for batch in inner(batches):
                if not P(path).exists():
                    P(path).touch()
                    raise RuntimeError("a fault of the test")
                yield batch

        return sending

    module._sending = faulty
    try:
        return send(spark, place, which)
    finally:
        module._sending = original


async def test_half_of_it_and_the_rest(spark: "SparkSession", folder: Path) -> None:
    """A relay that refuses to take more for a while: what was deferred is tried by the next run."""
    place = await asyncio.to_thread(planned, spark, folder, 60)
    async with staged(folder) as stage:
        sink = await stage.receiver(
            "relay.example", Rule(Step.RCPT, recipient="*@d1*", reply="452 4.2.2 full", times=1)
        )
        target = f"127.0.1.1:{stage.port}"
        sums = await asyncio.to_thread(send, spark, place, manners(target, patience_s=0))
        assert (sums.accepted, sums.deferred, sums.unsent) == (40, 20, 0)
        assert not sums.complete
        sums = await asyncio.to_thread(send, spark, place, manners(target))
        assert (sums.accepted, sums.deferred) == (60, 0)
        assert sink.tally.recipients == 60


def test_nothing_to_send(spark: "SparkSession", tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="there is no plan here"):
        send(spark, tmp_path, manners("127.0.0.1:9"))


def test_the_data_source(spark: "SparkSession", folder: Path) -> None:
    """``write.format("zonemta")`` submits, and again sends nothing twice; ``read`` shows what waits.

    The relay is a process of its own: Spark looks sources up by the session of the main thread.
    """
    place = planned(spark, folder, 30)
    port = free_port()
    (folder / "z.yaml").write_text(
        f"listeners: [{{address: '127.0.0.1:0'}}]\nqueue: {{directory: queue, min_free_disk: 1MiB}}\n"
        f"events: {{directory: events}}\nzones: {{default: {{smarthost: '127.0.0.1:{port}'}}}}\n"
    )
    (folder / "rules.yaml").write_text("- {at: rcpt, recipient: 'u0000*', reply: '451 4.2.0 later'}\n")
    rules = ["--script", str(folder / "rules.yaml"), "--json"]
    sink = CommandProcess(["sink", "--listen", f"127.0.0.1:{port}", *rules], folder / "sink.log")
    relay = CommandProcess(
        ["serve", "-c", str(folder / "z.yaml"), "--log-level", "warning"], folder / "relay.log"
    )
    try:
        target = relay.wait_ready()[0]
        options = {
            "sender": "n@example.com",
            "message": LETTER.decode(),
            "sessions": "2",
            "relays": target,
        }
        envelopes = spark.read.parquet(f"{place}/envelopes")
        for _ in range(2):
            envelopes.write.format("zonemta").mode("append").options(**options).save()
        waiting = spark.read.format("zonemta").option("queue", str(folder / "queue")).load()
        for _ in range(100):  # each look takes Spark a while
            rows = {(row["recipient"], row["zone"]) for row in waiting.collect()}
            if len(rows) == 1:
                break
        assert rows == {("u0000@d0.example", "default")}
        relay.stop()
    finally:
        relay.kill()
        sink.kill()
    assert ledger(folder).total("accepted") == 30
    assert ledger(folder).total("delivered") == 29


def test_a_data_source_without_its_options(spark: "SparkSession") -> None:
    rows = spark.createDataFrame([("k",)], "key string")
    with pytest.raises(Exception, match="the columns recipients are missing"):
        rows.write.format("zonemta").mode("append").save()
    with pytest.raises(Exception, match="needs the option 'queue'"):
        spark.read.format("zonemta").load().collect()
