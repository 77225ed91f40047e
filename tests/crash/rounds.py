"""Rounds of load and kills on one queue, and a comparison at the end of what was accepted and delivered."""

import asyncio
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, cast

from tests.crash import wrong_clock
from tests.crash.disk import Disk
from tests.crash.verdict import (
    ENOUGH,
    Excused,
    Verdict,
    check_empty,
    compare,
    settled_recipients,
    whole_log,
)
from tests.kit.deadlines import Deadline, until
from tests.kit.load import DOMAINS, ComparingSink, Load
from tests.kit.queue import begin, everything, problems
from tests.kit.relay import RECEIVERS, SENDERS, Stage, staged
from tests.kit.servers import redis_url
from zonemta_py.admin.control_client import ask
from zonemta_py.admin.registry import parse_request
from zonemta_py.admin.requests import AuditRequest, ListRequest, ReleaseRequest
from zonemta_py.bench.process import START_TIMEOUT_S, CommandProcess, free_port
from zonemta_py.config.load import load_config
from zonemta_py.core import faults
from zonemta_py.core.errors import LocalError, QueueLocked
from zonemta_py.open_queue import open_queue
from zonemta_py.sink.script import Rule, Step
from zonemta_py.storage.interface import Store
from zonemta_py.storage.open import open_store

REACH_S = 30.0  # a point that is not reached under load in this time is a defect of the test
LEASE_S = 2.0  # of a queue in Redis
WRONG_BY_S = 30 * 3600.0  # more than the longest delay of a retry
POINTS = [point for point in faults.POINTS if not point.startswith("requeue")]  # tests/dequeue has those


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
        self._excused = Excused()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Rounds":
        self.stage: Stage = await self._stack.enter_async_context(staged(self.directory))
        rules = [
            Rule(Step.RCPT, recipient="*.later@*", reply="451 4.7.1 later", times=1),
            Rule(Step.RCPT, recipient="*.no@*", reply="550 5.1.1 no"),
        ]
        names = [*(f"d{n}.example" for n in range(DOMAINS)), "senders.example"]
        self._sinks = [
            cast(ComparingSink, await self.stage.receiver(name, *rules, kind=ComparingSink))
            for name in names
        ]
        port = free_port()
        self._config = self.directory / "zonemta.yaml"
        self.stage.config(
            listeners=[{"address": f"127.0.0.1:{port}"}],
            queue=self._queue_settings(),
            events={"directory": "events", "rotate": {"age": "1s"}},
            zones={"default": {"messages_per_connection": 20, **self._zone}},
        )
        self._settings = load_config(self._config).queue
        self.load = Load(port)
        self.load.start()
        return self

    def _queue_settings(self) -> dict[str, Any]:
        common = {"directory": "queue", "min_free_disk": "1MiB", "store": self._store, "poison_after": 1_000_000}  # fmt: skip
        if self._store != "redis":
            return common
        return {
            **common,
            "redis": {"url": redis_url(), "prefix": f"crash-{self.directory.parent.name}"},
            "shared": {"name": "one", "lease": f"{LEASE_S}s", "poll": "100ms"},
        }

    def start(self, module: str = "zonemta_py", **environment: str) -> CommandProcess:
        """Start a relay on the queue. It is killed at the end of the rounds, if it still runs."""
        relay = CommandProcess(
            ["serve", "-c", str(self._config), "--log-level", "warning"],
            self.directory / "relay.log",
            module,
            {**(self._disk.environment if self._disk else {}), **environment},
        )
        self._stack.callback(relay.kill)
        return relay

    async def _command(self, *words: str) -> None:
        """Run a command of zonemta while no relay runs. Raises CalledProcessError."""
        command = [sys.executable, "-m", "zonemta_py", *words[:2], "-c", str(self._config), *words[2:]]
        with (self.directory / "relay.log").open("ab") as log:
            await asyncio.to_thread(
                subprocess.run, command, check=True, stdout=log, stderr=log, timeout=START_TIMEOUT_S
            )

    async def _open(self) -> Store:
        """The store, once the lease of a dead relay has expired."""
        opened: list[Store] = []

        def is_open() -> bool:
            try:
                opened.append(open_store(self._settings))
            except QueueLocked:
                return False
            return True

        await until(is_open, "the lease to expire")
        return opened[0]

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
        await self._killed(point)

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
        await self._killed(name)

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
        await self._killed("disturbed")

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

    async def wrong_clock(self) -> None:
        """Kill a relay whose clock is wrong by more than a day at first, before or after it is set right."""
        offset_s = self._rng.choice((-1, 1)) * WRONG_BY_S
        relay = self.start(wrong_clock.__name__, **{wrong_clock.VARIABLE: str(offset_s)})
        try:
            await self.ready(relay)
            await asyncio.sleep(self._rng.random() * 2 * wrong_clock.WRONG_FOR_S)  # the random moment
        finally:
            relay.kill()
        await self._killed("wrong clock")

    async def hung(self) -> None:
        """Suspend a relay for longer than its lease, while another uses the queue; it recovers, and is killed."""
        relay = self.start()
        try:
            await self.ready(relay)
            await asyncio.sleep(self._rng.random() * 0.4)  # the random moment
            relay.process.send_signal(signal.SIGSTOP)
            other = await self._open()
            self.verdict.problems += [f"while it hung: {problem}" for problem in problems(other)]
            other.close()
            relay.process.send_signal(signal.SIGCONT)
            before = len(self.load.acknowledged)
            await until(
                lambda: len(self.load.acknowledged) > before + 10, "mail after the hang", REACH_S
            )
        finally:
            relay.kill()
        await self._killed("hung")

    async def transferred(self) -> None:
        """Move the queue of a killed relay through a file into an empty store."""
        await self.at_random("before an export")
        file = self.directory / "queue.export"
        await self._command("queue", "export", str(file))
        shutil.rmtree(self.directory / "queue")
        await self._command("queue", "import", str(file))
        file.unlink()
        await self._checked("an import")

    async def restored(self) -> None:
        """Return to a backup; a repair then takes from the event log what has happened since."""
        queue, backup, events = (self.directory / name for name in ("queue", "backup", "events"))
        await self.at_random("before a backup")
        shutil.copytree(queue, backup, symlinks=True, ignore=shutil.ignore_patterns("*.sock"))
        known, arrived, settled = (
            set(self.load.acknowledged),
            self._arrived(),
            settled_recipients(events),
        )
        await self.at_random("after a backup")
        shutil.rmtree(queue)
        backup.rename(queue)
        since = (self._arrived() - arrived).keys()
        self._excused.add(self.load.acknowledged - known, since, settled, whole_log(events))
        with suppress(
            subprocess.CalledProcessError
        ):  # exit code 1 when something is lost, which the backup cannot know
            await self._command("queue", "repair")
        await self._checked("a restore")

    def _arrived(self) -> Counter[str]:
        arrived: Counter[str] = Counter()
        for sink in self._sinks:
            arrived.update(sink.tally.by_recipient)
        return arrived

    async def _killed(self, how: str) -> None:
        self.verdict.kills[how] += 1
        await self.load.disconnected()
        if self._disk is not None and self._power_cuts:
            self._disk.cut_power(self._rng)
        await self._checked(how)

    async def _checked(self, how: str) -> None:
        store = await self._open()
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
        self.verdict.messages = self.load.next
        for sink in self._sinks:
            self.verdict.compared += sink.compared
            self.verdict.problems += [f"wrong bytes: a message of {each}" for each in sink.wrong]
        compare(self.verdict, self.load.acknowledged, self._arrived(), self._excused, self.directory)
        check_empty(self.verdict, self._settings)
        await self._sweep()
        return self.verdict

    async def _sweep(self) -> None:
        """Start once more: that removes the bodies that the stop left."""
        queue = open_queue(load_config(self._config))
        try:
            await begin(queue)
            self.verdict.problems += [f"left over: {key!r}" for key in everything(queue.store)]
        finally:
            await queue.close()

    async def __aexit__(self, *exc: object) -> None:
        if exc[0] is not None:
            for task in self.load._tasks:
                task.cancel()
        await self._stack.aclose()
