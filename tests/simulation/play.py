"""Plays a scenario on the real relay, and judges what became of each recipient.

A kill copies the directories of the queue and of the event log between two turns of the loop, when all that was written is
there, and starts a relay on the copy. The new relay knows nothing of what the killed one did after that.
"""

import asyncio
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from tests.kit.queue import everything, problems
from tests.kit.relay import ONE_PROCESS, Stage, staged
from tests.simulation.scenario import ANSWERING_S, Action, Mail, Scenario
from zonemta_py import NotAccepted, Relay
from zonemta_py.config.schema import Config
from zonemta_py.events.accounting import read_history
from zonemta_py.events.segment_reading import read_segment, sealed_segments
from zonemta_py.queue.upkeep.held_mail import HeldMail
from zonemta_py.queue.upkeep.operator import Operator

OUTCOMES = ("delivered", "bounced", "expired", "lapsed", "deleted")
LOOK_EVERY_S = 30.0
RESOLVER_TIMEOUT = "20s"  # c-ares counts it in real time: a busy machine must not change what happens
# Of a relay that was killed; a copy of the queue has a lock of its own.
NOT_COPIED = shutil.ignore_patterns("relay.pid", "*.sock", "LOCK")


@dataclass
class Result:
    """``faults``: what is wrong. ``digest``: of the events and their times; the same for the same seed."""

    faults: list[str]
    digest: str
    messages: int
    virtual_s: float


@dataclass
class Player:
    """One relay after the other, on ``stage``. ``place``: the directory of the present one."""

    scenario: Scenario
    stage: Stage
    place: Path
    relay: Relay = field(init=False)
    accepted: list[Mail] = field(default_factory=list)
    suspended: list[tuple[float, str]] = field(default_factory=list)  # until when
    kills: int = 0

    def _config(self) -> Config:
        changes = dict(self.scenario.changes)
        if self.scenario.limits:
            path = self.stage.directory / "providers.yaml"
            provider = {"mx": ["mx.d0.example"], "limits": self.scenario.limits}
            path.write_text(yaml.safe_dump({"providers": {"big": provider}}))
            changes["providers"] = {"file": str(path), "shipped": False}
        queue = {
            "directory": str(self.place / "queue"),
            "min_free_disk": "1MiB",
            "store": self.scenario.store,
        }
        return self.stage.config(
            processes=ONE_PROCESS, zones={"default": self.scenario.zone}, queue=queue, shutdown_grace="1s",
            events={"directory": str(self.place / "events")}, **changes,
        )  # fmt: skip

    async def begin(self) -> None:
        """Start a relay."""
        self.relay = Relay(self._config())
        await self.relay.start()

    async def act(self, action: Action) -> None:
        """Do what the scenario says at this time."""
        match action.what:
            case "mail":
                assert action.mail is not None
                await self._submit(action.mail)
            case "restart":
                await self.relay.stop()
                await self.begin()
            case "kill":
                await self._kill(action.turns)
            case "flush":
                await self.relay.flush()
            case "reload":
                self.scenario.zone["connections"] = 1 + action.turns % 8
                await self.relay.reload(self._config())
            case "suspend":
                await self.relay.queue.suspended.suspend(action.name, "simulation")
                self.suspended.append((action.at_s + action.for_s, action.name))

    async def _submit(self, mail: Mail) -> None:
        options: Any = {"key": mail.key} if mail.key else {}
        try:
            for _ in range(1 + mail.again):
                await self.relay.enqueue(mail.sender, mail.recipients, mail.data, **options)
        except NotAccepted:
            return  # a tenant's address, or a suspended one
        self.accepted.append(mail)

    async def _kill(self, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        self.kills += 1
        place = self.stage.directory / f"relay-{self.kills}"
        for name in ("queue", "events"):
            if (self.place / name).exists():
                shutil.copytree(self.place / name, place / name, symlinks=True, ignore=NOT_COPIED)
        await self.relay.stop(0)
        self.place = place
        await self.begin()

    async def resume(self, now_s: float) -> None:
        """End the suspensions whose time is over."""
        for until_s, name in [each for each in self.suspended if each[0] <= now_s]:
            self.suspended.remove((until_s, name))
            if name in self.relay.queue.suspended:
                await self.relay.queue.suspended.resume(name)
            queue = self.relay.queue
            async for _ in HeldMail(queue, Operator(queue)).release(name):
                pass

    def judge(self) -> Iterator[str]:
        """The faults in what has become of each recipient."""
        records = self.records()
        outcomes, accepted = defaultdict[str, list[str]](list), Counter[str]()
        for record in records:
            if record["event"] in OUTCOMES:
                outcomes[record["recipient"]].append(record["event"])
            elif record["event"] == "accepted":
                accepted.update(each["recipient"] for each in record["recipients"])
        history = read_history(self.place / "events")
        uncertain = {record.get("recipient") for record in history.uncertain}
        received = defaultdict[str, list[bytes]](list)
        for sink in self.stage.sinks.values():
            for message in sink.messages:
                for recipient in message.recipients:
                    received[recipient].append(message.data)
        for mail in self.accepted:
            body = mail.data.partition(b"\r\n\r\n")[2]
            for name in mail.recipients:
                ends, copies = outcomes[name], received.pop(name, [])
                if accepted[name] != 1 or len(ends) != 1:
                    yield f"{name}: accepted {accepted[name]} times, outcomes {ends}"
                elif ends == ["delivered"] and not copies:
                    yield f"{name}: delivered, and not received"
                elif ends != ["delivered"] and copies and name not in uncertain:
                    yield f"{name}: {ends[0]}, and received"
                if len(copies) > 1 and name not in uncertain:
                    yield f"{name}: received {len(copies)} times, which no event names"
                if any(not each.endswith(body) for each in copies):
                    yield f"{name}: other bytes"
        yield from (f"{name}: received, and never submitted" for name in received)
        yield from (f"two outcomes: {each}" for each in history.repeated)

    def records(self) -> list[dict[str, Any]]:
        """The event log of the last relay."""
        segments = sealed_segments(self.place / "events")
        return [record for path in segments for record in read_segment(path)]


async def play(scenario: Scenario, directory: Path) -> Result:
    """The result of ``scenario`` in the empty ``directory``."""
    loop = asyncio.get_running_loop()
    async with staged(directory) as stage:
        for each in scenario.receivers:
            await stage.receiver(each.domain, *each.rules, extensions=each.extensions)
        records = dict(stage.names.records) | {"none.example": {}}
        if scenario.two_hosts:
            records["two.example"] = {"MX": ["10 mx.d0.example.", "20 mx.d1.example."]}
        stage.names.records = records
        player = Player(scenario, stage, directory / "relay-0")
        await player.begin()
        began_s = loop.time()
        for action in scenario.actions:
            await asyncio.sleep(max(0.0, began_s + action.at_s - loop.time()))
            await player.resume(loop.time() - began_s)
            await player.act(action)
        await player.resume(float("inf"))
        store = player.relay.queue.store
        end_s = loop.time() + ANSWERING_S
        while everything(store) and loop.time() < end_s:
            await asyncio.sleep(LOOK_EVERY_S)
        faults = [f"the queue is not empty: {key!r}" for key in everything(store)[:5]]
        faults += problems(store)
        await player.relay.stop()
        faults += player.judge()
    text = repr([(each["event"], each.get("recipient"), each["time_ms"]) for each in player.records()])
    digest = sha256(text.encode()).hexdigest()[:16]
    return Result(faults, digest, len(player.accepted), loop.time())
