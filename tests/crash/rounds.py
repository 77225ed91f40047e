"""Rounds of load and kills on one queue, and a comparison at the end of what was accepted and delivered."""

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.crash.disk import Disk
from tests.kit.deadlines import Deadline, until
from tests.kit.load import DOMAINS, Load, recipients_of
from tests.kit.queue import everything, opened, problems, unexplained
from tests.kit.relay import RECEIVERS, SENDERS, Stage, staged
from zonemta_py.admin.control import ask
from zonemta_py.admin.operations import parse_request
from zonemta_py.admin.requests import AuditRequest, ListRequest, ReleaseRequest
from zonemta_py.bench.process import CommandProcess, free_port
from zonemta_py.config.schema import QueueSettings
from zonemta_py.core import faults
from zonemta_py.core.errors import LocalError
from zonemta_py.events.accounting import read_history
from zonemta_py.events.segments import read_segment, sealed_segments
from zonemta_py.sink.script import Rule, Step
from zonemta_py.sink.server import Sink
from zonemta_py.storage.open import open_store

REACH_S = 30.0  # a point that is not reached under load in this time is a defect of the test
ENOUGH = 100  # messages; a run with fewer acknowledged ones shows too little
POINTS = [point for point in faults.POINTS if not point.startswith("requeue")]  # tests/dequeue has those
FINALS = ("delivered", "bounced", "expired", "deleted")


@dataclass
class Verdict:
    """The result of a run. ``unnamed``: delivered twice without an ``uncertain`` event."""

    messages: int = 0
    acknowledged: int = 0
    recipients: int = 0
    lost: list[str] = field(default_factory=list)
    repeated: int = 0
    uncertain: int = 0
    unnamed: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)


def _answers(queue: Path, command: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a command, none when the message or the relay is gone."""
    try:
        return list(ask(queue, parse_request(command, arguments)))
    except (LocalError, OSError, ValueError):
        return []


class Rounds:
    """A relay on one queue that is killed repeatedly. Use it as an async context manager.

    With ``power_cuts`` every kill removes the data that its ``disk`` had not synced.
    """

    def __init__(
        self,
        directory: Path,
        rng: random.Random,
        *,
        store: str = "leveldb",
        disk: Disk | None = None,
        power_cuts: bool = False,
        zone: Mapping[str, Any] | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.verdict = Verdict()
        self._rng = rng
        self._store = store
        self._disk = disk
        self._power_cuts = power_cuts
        self._zone = dict(zone or {})
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Rounds":
        self.stage: Stage = await self._stack.enter_async_context(staged(self.directory))
        rules = [
            Rule(Step.RCPT, recipient="*.later@*", reply="451 4.7.1 later", times=1),
            Rule(Step.RCPT, recipient="*.no@*", reply="550 5.1.1 no"),
        ]
        names = [*(f"d{n}.example" for n in range(DOMAINS)), "senders.example"]
        self._sinks: list[Sink] = [await self.stage.receiver(name, *rules) for name in names]
        for sink in self._sinks:
            sink.keep = False
        port = free_port()
        self._config = self.directory / "zonemta.yaml"
        self.stage.config(
            listeners=[{"address": f"127.0.0.1:{port}"}],
            queue={
                "directory": "queue",
                "min_free_disk": "1MiB",
                "store": self._store,
                "poison_after": 1_000_000,
            },
            events={"directory": "events", "rotate": {"age": "1s"}},
            zones={"default": {"messages_per_connection": 20, **self._zone}},
        )
        self.load = Load(port)
        self.load.start()
        return self

    def start(self, **environment: str) -> CommandProcess:
        """Start a relay on the queue. It is killed at the end of the rounds, if it still runs."""
        relay = CommandProcess(
            ["serve", "-c", str(self._config), "--log-level", "warning"],
            self.directory / "relay.log",
            environment={**(self._disk.environment if self._disk else {}), **environment},
        )
        self._stack.callback(relay.kill)
        return relay

    async def at_point(self, point: str, times: int = 0) -> None:
        """Kill a relay the ``times``-th time it gets to ``point``, under load; a random number if 0."""
        times = times or self._rng.randint(
            1, 3 if point.startswith(("segment", "hold", "delete")) else 20
        )
        environment = {faults.VARIABLE: f"{point}:{times}"}
        elsewhere = (SENDERS and point == "dot.answered") or (RECEIVERS and point == "reply.unsent")
        if elsewhere:
            await self.at_random(
                point, **environment
            )  # a child process is killed, and the relay goes on
            return
        relay = self.start(**environment)
        try:
            await self.ready(relay)
            kind = point.partition(".")[0]
            if kind in ("hold", "delete"):
                await asyncio.to_thread(self._operate, kind, relay)
            await until(lambda: relay.process.poll() is not None, f"the relay to reach {point}", REACH_S)
        finally:
            relay.kill()
        self._killed(point)

    def _operate(self, kind: str, relay: CommandProcess) -> None:
        """Hold or delete messages until the relay is killed."""
        queue = self.directory / "queue"
        deadline = Deadline(REACH_S)
        while relay.process.poll() is None and not deadline.passed():
            for row in _answers(queue, "list", {"limit": 100}):
                if row["state"] != "held":
                    _answers(queue, kind, {"message": row["message"]})

    async def at_random(self, name: str = "random", **environment: str) -> None:
        """Kill a relay at a random moment, in some rounds before it is ready."""
        relay = self.start(**environment)
        try:
            if self._rng.random() < 0.9:
                await self.ready(relay)
            await asyncio.sleep(self._rng.random() * 0.4)  # the random moment
        finally:
            relay.kill()
        self._killed(name)

    async def disturbed(self) -> None:
        """Kill a relay at a random moment, with commands and signals before it, often while it stops."""
        relay = self.start()
        try:
            await self.ready(relay)
            commands = asyncio.create_task(asyncio.to_thread(self._disturb, relay))
            await asyncio.sleep(self._rng.random() * 0.6)  # the random moment
            if self._rng.random() < 0.5:
                relay.process.send_signal(signal.SIGTERM)
                await asyncio.sleep(self._rng.random() * 0.1)
        finally:
            relay.kill()
        await commands
        self._killed("disturbed")

    def _disturb(self, relay: CommandProcess) -> None:
        """Change messages and send signals until the relay is killed."""
        queue, rng = self.directory / "queue", random.Random(self._rng.random())
        deadline = Deadline(REACH_S)
        while relay.process.poll() is None and not deadline.passed():
            relay.process.send_signal(rng.choice((signal.SIGHUP, signal.SIGALRM)))
            for row in _answers(queue, "list", {"limit": 20}):
                kind = rng.choice(("hold", "release", "flush", "delete"))
                arguments = {"message": row["message"]}
                if kind == "delete" and rng.random() < 0.5:
                    arguments["recipient"] = row["recipient"]
                _answers(queue, kind, arguments)

    @staticmethod
    async def ready(relay: CommandProcess) -> None:
        """Wait until it is ready, or was killed at a point before that."""
        try:
            await asyncio.to_thread(relay.wait_ready)
        except Exception:
            if relay.process.returncode != -9:  # not a point reached before it was ready
                raise

    def _killed(self, how: str) -> None:
        self.verdict.kills[how] += 1
        if self._disk is not None and self._power_cuts:
            self._disk.cut_power(self._rng)
        store = open_store(QueueSettings(directory=self.directory / "queue", store=self._store))
        self.verdict.problems += [f"after {how}: {problem}" for problem in problems(store)]
        store.close()
        if self._disk is not None:
            self._disk.settle()

    async def finish(self) -> Verdict:
        """Let a last relay take enough mail and deliver all of it, stop it, and compare."""
        relay = self.start()
        try:
            await asyncio.to_thread(relay.wait_ready)
            # On a slow machine a relay that is killed early acknowledges next to nothing.
            await until(lambda: len(self.load.acknowledged) > ENOUGH, "enough mail", 120)
            await self.load.stop()
            queue = self.directory / "queue"
            for row in list(ask(queue, ListRequest(state="held"))):
                list(ask(queue, ReleaseRequest(row["message"])))

            # From one moment: a list reads state after state, and may miss who moves between them.
            def places(queue: Path = queue) -> bool:
                return any("recipients" in row for row in ask(queue, AuditRequest()))

            await until(lambda: not places(), "an empty queue", 120)
            code = relay.stop()
        finally:
            relay.kill()
        if code:
            self.verdict.problems.append(f"the last relay exited {code}")
        self._compare()
        await self._sweep()
        return self.verdict

    def _compare(self) -> None:
        verdict, load = self.verdict, self.load
        arrived: Counter[str] = Counter()
        for sink in self._sinks:
            arrived.update(sink.tally.by_recipient)
        expected = {address for number in load.acknowledged for address in recipients_of(number)}
        refused = {address for address in expected if ".no@" in address}
        reports = {f"{address.partition('.')[0]}@senders.example" for address in refused}
        verdict.messages, verdict.acknowledged = load.next, len(load.acknowledged)
        verdict.recipients = len(expected)
        records = [r for p in sealed_segments(self.directory / "events") for r in read_segment(p)]
        deleted = {r["recipient"] for r in records if r["event"] == "deleted"}
        reports -= {f"{address.partition('.')[0]}@senders.example" for address in deleted}
        verdict.lost = sorted(((expected - refused) | reports) - set(arrived) - deleted)

        named = {r["recipient"] for r in records if r["event"] == "uncertain" or r.get("uncertain")}
        twice = {address for address, count in arrived.items() if count > 1}
        verdict.uncertain, verdict.repeated = len(named), len(twice)
        verdict.unnamed = sorted(twice - named)
        identities = Counter((r["node"], r["seq"], r["position"]) for r in records)
        finals = Counter((r["message"], r["index"]) for r in records if r["event"] in FINALS)
        accepted = sum(len(r["recipients"]) for r in records if r["event"] == "accepted")
        settled = {r["recipient"] for r in records if r["event"] in FINALS}
        self._hold("every record of the ledger once", max(identities.values()) == 1)
        self._hold("one final outcome for each recipient", set(finals.values()) == {1})
        self._hold("as many outcomes as recipients", len(finals) == accepted)
        self._hold("an outcome for every acknowledged recipient", expected <= settled)
        self._hold(
            "nothing queued in the account",
            read_history(self.directory / "events").queued("default") == 0,
        )
        store = open_store(QueueSettings(directory=self.directory / "queue", store=self._store))
        self._hold("a sound queue", problems(store) == [])
        self._hold("no key left but those of bodies being removed", unexplained(store) == [])
        store.close()

    async def _sweep(self) -> None:
        """Start once more: that removes the bodies that the stop left."""
        async with opened(self.directory / "queue", store=self._store) as queue:
            self._hold("no key left", everything(queue.store) == [])

    def _hold(self, what: str, holds: bool) -> None:
        if not holds:
            self.verdict.problems.append(f"not so: {what}")

    async def __aexit__(self, *exc: object) -> None:
        if exc[0] is not None:
            for task in self.load._tasks:
                task.cancel()
        await self._stack.aclose()


def assert_nothing_lost(verdict: Verdict) -> None:
    """Check that no recipient was lost, or delivered twice without an ``uncertain`` event."""
    assert verdict.lost == [], verdict
    assert verdict.unnamed == [], verdict
    assert verdict.problems == [], verdict
    assert verdict.acknowledged > ENOUGH, verdict
