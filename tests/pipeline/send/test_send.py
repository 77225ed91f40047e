"""Plans through real relays: every recipient gets the message once, also after faults."""

import asyncio
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.deadlines import until
from tests.kit.relay import ledger, logged_events, staged
from tests.pipeline.campaigns import (
    LETTER,
    addresses,
    no_progress,
    personal_plan,
    plan,
    relay_and_sinks,
    send,
    submit_options,
    write_list,
)
from zonemta_py.core.clock import now_ms
from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.send.submission import SubmitOptions, envelope_of, relays_of
from zonemta_py.sink.script import Rule, Step
from zonemta_py.sink.server import Sink

pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from zonemta_py.pipeline.send.job import SendCounts


async def test_a_plan_is_submitted_once(spark: "SparkSession", directory: Path) -> None:
    """A second run submits nothing; the relay's ledger, the plan's ledger and the sinks agree."""
    plan_path = await asyncio.to_thread(personal_plan, spark, directory, 300)
    async with relay_and_sinks(directory) as here:
        sums = await asyncio.to_thread(send, spark, plan_path, submit_options(here.target))
        assert (sums.planned, sums.accepted, sums.repeated, sums.unsent) == (300, 300, 0, 0)
        assert sums.complete
        again = await asyncio.to_thread(send, spark, plan_path, submit_options(here.target))
        assert again == sums
        await until(lambda: len(here.delivered()) == 300, "300 deliveries")
        assert here.delivered() == addresses_sorted(300)
    assert ledger(directory).total("accepted") == 300


def addresses_sorted(count: int) -> list[str]:
    return sorted(addresses(count))


async def test_progress_is_reported_in_recipients(
    spark: "SparkSession", directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reported number grows and never exceeds the number of recipients."""
    from zonemta_py.pipeline.send import job
    from zonemta_py.pipeline.send.job import send_plan
    from zonemta_py.pipeline.spark import tables

    monkeypatch.setattr(job, "ROWS_PER_FILE", 20)
    monkeypatch.setattr(tables, "POLL_S", 0.01)
    plan_path = await asyncio.to_thread(personal_plan, spark, directory, 300, recipients_per_message=5)
    steps: list[str] = []
    async with relay_and_sinks(directory) as here:
        await asyncio.to_thread(
            send_plan, spark, str(plan_path), submit_options(here.target), steps.append
        )
    assert steps[0] == "sending: 0 of 300 recipients"
    assert steps[-1] == "counting"
    counts = [int(text.split()[1].replace(",", "")) for text in steps if " of 300 recipients" in text]
    assert counts
    assert counts == sorted(counts)
    assert len(counts) > 1
    assert counts[-1] <= 300


async def test_a_task_that_dies(
    spark: "SparkSession", directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task runs again from its beginning; the relay recognises what it has submitted before."""
    plan_path = await asyncio.to_thread(personal_plan, spark, directory, 200)
    async with relay_and_sinks(directory) as here:
        sums = await asyncio.to_thread(
            _send_with_a_fault, spark, plan_path, submit_options(here.target), directory / "mark"
        )
        assert (sums.accepted, sums.unsent) == (200, 0)
        assert sums.repeated > 0
        await until(lambda: len(here.delivered()) >= 200, "200 deliveries")
    assert here.delivered() == addresses_sorted(200)
    assert ledger(directory).total("accepted") == 200


def _send_with_a_fault(
    spark: "SparkSession", plan_path: Path, options: SubmitOptions, mark: Path
) -> "SendCounts":
    """Run the job; one task fails once after it has submitted its messages."""
    from zonemta_py.pipeline.send import job as module

    original = module._submit_batches

    def faulty(campaign: str, options: SubmitOptions, task_s: float) -> Any:
        inner = original(campaign, options, task_s)
        path = str(mark)

        def submit(batches: Any) -> Any:
            from pathlib import Path as P

            for batch in inner(batches):
                if not P(path).exists():
                    P(path).touch()
                    raise RuntimeError("a fault of the test")
                yield batch

        return submit

    module._submit_batches = faulty
    try:
        return send(spark, plan_path, options)
    finally:
        module._submit_batches = original


async def test_deferred_recipients_are_submitted_again(spark: "SparkSession", directory: Path) -> None:
    """A relay defers some recipients; the next run submits only those."""
    plan_path = await asyncio.to_thread(personal_plan, spark, directory, 60)
    async with staged(directory) as stage:
        sink = await stage.receiver(
            "relay.example", Rule(Step.RCPT, recipient="*@d1*", reply="452 4.2.2 full", times=1)
        )
        target = f"127.0.1.1:{stage.port}"
        sums = await asyncio.to_thread(send, spark, plan_path, submit_options(target, patience_s=0))
        assert (sums.accepted, sums.deferred, sums.unsent) == (40, 20, 0)
        assert not sums.complete
        sums = await asyncio.to_thread(send, spark, plan_path, submit_options(target))
        assert (sums.accepted, sums.deferred) == (60, 0)
        assert sink.tally.recipients == 60


async def test_a_sender_that_is_refused(spark: "SparkSession", directory: Path) -> None:
    """The run ends and says so, although there is patience; the next one submits all that is left."""
    plan_path = await asyncio.to_thread(personal_plan, spark, directory, 60)
    async with staged(directory) as stage:
        refused = Rule(Step.MAIL, reply="553 5.7.1 not yours", times=10)
        sink = await stage.receiver("relay.example", refused)
        options = submit_options(f"127.0.1.1:{stage.port}", patience_s=600)
        with pytest.raises(
            LocalError,
            match=r"the message or its sender: 127.0.1.1:\d+: 553 5.7.1 not yours; .* send again",
        ):
            await asyncio.to_thread(send, spark, plan_path, options)
        assert sink.tally.recipients == 50
        sums = await asyncio.to_thread(send, spark, plan_path, options)
        assert (sums.accepted, sums.refused, sink.tally.recipients) == (60, 0, 60)


async def test_a_relay_that_refuses_the_sender_holds_up_no_other(
    spark: "SparkSession", directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the run after one that was killed: what was refused has its turn last."""
    from zonemta_py.pipeline.send import job as module

    monkeypatch.setattr(module, "ROUND_ROWS_MIN", 10)
    monkeypatch.setattr(module, "GROWTH_MAX", 1)
    monkeypatch.setattr(module, "PAUSE_S", 0.1)
    plan_path = await asyncio.to_thread(personal_plan, spark, directory, 60)
    submit_round, rounds = module.Sending._round, 0

    def killed(sending: Any, envelopes: Any, whole: int) -> tuple[int, int, int]:
        nonlocal rounds
        rounds += 1
        if rounds == 4:
            raise RuntimeError("killed")
        return submit_round(sending, envelopes, whole)

    async with staged(directory) as stage:
        await stage.receiver("a.example", Rule(Step.MAIL, reply="530 5.7.0 who are you"))
        once = Rule(Step.RCPT, recipient="*@d1*", reply="452 4.2.2 full", times=1)
        other = await stage.receiver("b.example", once)
        relays = f"127.0.1.1:{stage.port}", f"127.0.1.2:{stage.port}"
        options = submit_options(*relays, patience_s=600)
        with monkeypatch.context() as patched:
            patched.setattr(module.Sending, "_round", killed)
            with pytest.raises(RuntimeError, match="killed"):
                await asyncio.to_thread(send, spark, plan_path, options)
        with pytest.raises(LocalError, match=r"127.0.1.1:\d+: 530 5.7.0 who are you"):
            await asyncio.to_thread(send, spark, plan_path, options)
        keys = [row["key"] for row in spark.read.parquet(f"{plan_path}/envelopes").collect()]
        ours = sum(relays_of(key, relays)[0] == relays[1] for key in keys)
        assert 0 < ours < 60
        assert other.tally.recipients == ours


async def test_a_relay_that_greets_with_an_error_is_waited_for(
    spark: "SparkSession", directory: Path
) -> None:
    plan_path = await asyncio.to_thread(personal_plan, spark, directory, 5)
    async with staged(directory) as stage:
        await stage.receiver("r.example", Rule(Step.CONNECT, reply="554 5.3.2 busy", times=30))
        options = submit_options(f"127.0.1.1:{stage.port}", patience_s=600)
        sums = await asyncio.to_thread(send, spark, plan_path, options)
        assert (sums.accepted, sums.refused) == (5, 0)


async def test_a_run_sends_in_rounds(
    spark: "SparkSession", directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round has its rows in the ledger; every recipient is in one of them."""
    from zonemta_py.pipeline.send import job as module

    monkeypatch.setattr(module, "ROUND_ROWS_MIN", 40)
    monkeypatch.setattr(module, "GROWTH_MAX", 1)
    plan_path = await asyncio.to_thread(personal_plan, spark, directory, 200)
    async with relay_and_sinks(directory) as here:
        sums = await asyncio.to_thread(send, spark, plan_path, submit_options(here.target))
        assert (sums.accepted, sums.repeated) == (200, 0)
        assert len(list((plan_path / "ledger").glob("run=*"))) >= 4
        await until(lambda: len(here.delivered()) == 200, "200 deliveries")


def short_rounds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Each task has half a second of a round, and pauses end at once; returns their lengths."""
    from zonemta_py.pipeline.send import job as module

    paused: list[float] = []
    monkeypatch.setattr(module, "TASK_MIN_S", 0.5)
    monkeypatch.setattr(module, "ROUND_MAX_S", 0.0)
    monkeypatch.setattr(module, "sleep", paused.append)
    return paused


async def test_rounds_end_although_a_relay_is_slow(
    spark: "SparkSession", directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a round does not reach is left to a later pass, at once; the ledger has what it did reach."""
    paused = short_rounds(monkeypatch)
    plan_path = await asyncio.to_thread(personal_plan, spark, directory, 24)
    async with staged(directory) as stage:
        sink = await stage.receiver("relay.example", Rule(Step.DOT, stall_s=0.1))
        options = submit_options(f"127.0.1.1:{stage.port}", connections=1)
        sums = await asyncio.to_thread(send, spark, plan_path, options)
        assert (sums.accepted, sums.repeated, sums.unsent) == (24, 0, 0)
        assert sink.tally.recipients == 24
    assert len(list((plan_path / "ledger").glob("run=*"))) > 2
    assert not paused


async def test_a_relay_that_cannot_be_reached_holds_no_round(
    spark: "SparkSession", directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The envelope that was begun is deferred when the round ends, the others have no row, and a later run sends all."""
    from zonemta_py.pipeline.send import job as module

    paused = short_rounds(monkeypatch)
    monkeypatch.setattr(module.Sending, "idle_s", lambda self: 4000.0 * (len(paused) > 1))
    plan_path = await asyncio.to_thread(personal_plan, spark, directory, 60)
    async with staged(directory) as stage:
        options = submit_options(f"127.0.1.1:{stage.port}", connections=1, patience_s=3600)
        sums = await asyncio.to_thread(send, spark, plan_path, options)
        assert (sums.accepted, sums.refused) == (0, 0)
        assert sums.deferred + sums.unsent == 60
        assert 0 < sums.deferred < 60
        assert paused == [5.0, 10.0]
        sink = await stage.receiver("relay.example")
        sums = await asyncio.to_thread(send, spark, plan_path, options)
        assert (sums.accepted, sink.tally.recipients) == (60, 60)


async def test_a_run_that_was_killed_before_its_first_row(
    spark: "SparkSession", directory: Path
) -> None:
    """What it left in the ledger is accepted; the relay recognises what was submitted."""
    plan_path = await asyncio.to_thread(personal_plan, spark, directory, 60)
    async with relay_and_sinks(directory) as here:
        await asyncio.to_thread(send, spark, plan_path, submit_options(here.target))
        shutil.rmtree(plan_path / "ledger")
        (plan_path / "ledger" / "run=1" / "_temporary" / "0").mkdir(parents=True)
        sums = await asyncio.to_thread(send, spark, plan_path, submit_options(here.target))
        assert (sums.accepted, sums.repeated, sums.earlier, sums.unsent) == (60, 60, 0, 0)
        await until(lambda: len(here.delivered()) >= 60, "60 deliveries")
        assert here.delivered() == addresses_sorted(60)


async def test_the_same_campaign_with_another_letter(
    spark: "SparkSession", directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everyone gets it. With plans made once per campaign every run ends with an error, unless repeats are allowed."""
    from zonemta_py.pipeline.send import ledger

    monkeypatch.setattr(ledger, "SEND_STARTS_MS", 0)  # no command starts here
    from zonemta_py.pipeline.send import job as module

    async with relay_and_sinks(directory) as here:
        options = submit_options(here.target)
        for number in (1, 2):
            own = directory / str(number)
            own.mkdir()
            path = await asyncio.to_thread(personal_plan, spark, own, 30)
            sums = await asyncio.to_thread(send, spark, path, options)
            assert (sums.accepted, sums.repeated) == (30, 0)
        await until(lambda: len(here.delivered()) == 60, "two messages for each")
        paths = []
        for number, count in ((3, 30), (4, 31)):  # both are made before one is sent
            own = directory / str(number)
            own.mkdir()
            made = partial(personal_plan, spark, own, count, once_per="campaign")
            paths.append(await asyncio.to_thread(made))
        assert (await asyncio.to_thread(send, spark, paths[0], options)).accepted == 30
        for _ in range(2):  # it is not forgotten that they got the other one
            with pytest.raises(LocalError, match="30 recipients or more got another plan of campaign 'june'"):  # fmt: skip
                await asyncio.to_thread(send, spark, paths[1], options)
        sums = await asyncio.to_thread(
            partial(module.send_plan, spark, str(paths[1]), options, no_progress, allow_repeats=True)
        )
        assert (sums.accepted, sums.repeated, sums.earlier) == (31, 30, 30)
        sums = await asyncio.to_thread(send, spark, paths[0], options)  # its own repeats are its own
        assert (sums.accepted, sums.earlier) == (30, 0)
        await until(lambda: len(here.delivered()) == 91, "one more for the new recipient")


def test_nothing_to_send(spark: "SparkSession", tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="there is no plan here"):
        send(spark, tmp_path, submit_options("127.0.0.1:9"))


async def test_warnings_of_relays_that_forget(
    spark: "SparkSession", directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay says in EHLO for how long it knows a key; a patience, or a pause between two runs, beyond that is said."""
    from zonemta_py.pipeline.send.job import key_warnings

    plan_path = await asyncio.to_thread(personal_plan, spark, directory, 3)
    listener = {"address": "127.0.0.1:0", "submission_key": {"window": "1h"}}
    async with relay_and_sinks(directory, listeners=[listener]) as here:

        async def warnings(**changes: Any) -> list[str]:
            options = submit_options(here.target, **changes)
            return await asyncio.to_thread(key_warnings, spark, str(plan_path), options)

        assert await warnings(patience_s=600.0) == []
        monkeypatch.setattr("zonemta_py.pipeline.send.job.is_local", lambda session: False)
        [without] = await warnings(patience_s=600.0)
        assert without.startswith("without --user")
        assert await warnings(patience_s=600.0, credentials=("ann", "secret")) == []
        monkeypatch.undo()
        [long] = await warnings(patience_s=7200.0)
        assert "--timeout is 2.0h, and 127.0.0.1:" in long
        await asyncio.to_thread(send, spark, plan_path, submit_options(here.target))
        assert await warnings(patience_s=600.0) == []
        [run] = (plan_path / "ledger").glob("run=*")
        run.rename(run.with_name(f"run={now_ms() - 2 * 3_600_000}"))
        [late] = await warnings(patience_s=600.0)
        assert "forgets submission keys after 1.0h" in late
        other = directory / "campaign"
        other.mkdir()
        made = partial(personal_plan, spark, other, 3, once_per="campaign")
        plan_path = await asyncio.to_thread(made)
        [of_campaign] = await warnings(patience_s=600.0)
        assert "the plan is --once-per campaign" in of_campaign
        plan_path = directory / "plan"
    unreachable = submit_options("127.0.0.1:1")
    assert await asyncio.to_thread(key_warnings, spark, str(plan_path), unreachable) == []
    sink = Sink()
    port = await sink.start()
    [silent] = await asyncio.to_thread(
        key_warnings, spark, str(plan_path), submit_options(f"127.0.0.1:{port}")
    )
    assert "does not say" in silent
    await sink.close()


@pytest.mark.parametrize("releases", [True, False])
async def test_times_of_sending(
    spark: "SparkSession", directory: Path, monkeypatch: pytest.MonkeyPatch, releases: bool
) -> None:
    """The relay holds a message until its time, by HOLDUNTIL or by X-Not-Before."""
    from zonemta_py.pipeline.send import submission
    from zonemta_py.transports.session import SmtpSession

    if not releases:
        offers = SmtpSession.offers
        monkeypatch.setattr(
            SmtpSession,
            "offers",
            lambda self, name: name != "futurerelease" and offers(self, name),
        )
    # The tasks of Spark are other processes: this submits the envelopes of the plan here.
    at_ms = now_ms() + 3_600_000
    rows = [["u0@d0.example", str(at_ms)], ["u1@d1.example", ""]]
    listed = write_list(directory / "list.csv", rows, head=("email", "at"))
    await asyncio.to_thread(plan, spark, listed, directory / "plan", send_at_column="at")
    stored = spark.read.parquet(f"{directory}/plan/envelopes").collect()
    async with relay_and_sinks(directory) as here:
        submitter = submission.EnvelopeSubmitter(submit_options(here.target, message=LETTER))
        results = await submitter.send(envelope_of(row.asDict(recursive=True)) for row in stored)
        await submitter.aclose()
        assert [result.state for result in results] == ["accepted", "accepted"]
        await until(lambda: here.delivered() == ["u1@d1.example"], "the message without a time")
    accepted = logged_events(directory, "accepted")
    assert sorted(event["not_before_ms"] for event in accepted) == [0, at_ms // 1000 * 1000]


async def test_a_plan_that_is_replaced_meanwhile(spark: "SparkSession", directory: Path) -> None:
    """The old letter does not go to the recipients of the new plan."""
    from zonemta_py.pipeline.send import job as module

    path = await asyncio.to_thread(personal_plan, spark, directory, 3)
    options = submit_options("127.0.0.1:1")
    for changes in ({"message": options.message + b"PS"}, {"sender": "other@example.com"}):
        with pytest.raises(LocalError, match="was replaced meanwhile"):
            module.send_plan(spark, str(path), replace(options, **changes), no_progress)
