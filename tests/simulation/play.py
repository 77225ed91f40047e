"""Plays a scenario on the real relay, and judges what became of each recipient.

A kill copies the directories of the queue and of the event log between two turns of the loop, when all that was written is
there, or in front of a call to the disk, and starts a relay on the copy. The new relay knows nothing of what the killed one did
after that. After a power cut the copy has what the disk keeps. A relay that does not start is started again and again.
"""

import asyncio
import errno
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, cast

import yaml

from tests.kit.queue import everything, problems
from tests.kit.relay import Stage
from tests.simulation import disk as simulated_disk
from tests.simulation import processes
from tests.simulation.clients import HttpClient, SmtpClient, Submission
from tests.simulation.disk import Disk, Failing
from tests.simulation.judge import (
    Pause,
    judge_flood,
    judge_held,
    judge_keys,
    judge_pauses,
    judge_recipients,
    judge_rules,
    judge_signatures,
    judge_turns,
)
from tests.simulation.memory import judge_memory
from tests.simulation.program import Program
from tests.simulation.scenario import (
    ANSWERING_S,
    ARCHIVE,
    CONNECTIONS_MAX,
    HUB,
    NETWORKS,
    PASSWORDS,
    PROMPT,
    SOME,
    STRICT_DOMAIN,
    WARMING,
    Action,
    Scenario,
)
from tests.simulation.surroundings import HOSTS, LIMITED_HOST, Surroundings
from tests.simulation.tls import key_file, server_context
from tests.simulation.virtual import VirtualLoop
from zonemta_py import Relay
from zonemta_py.admin.operation import Operations
from zonemta_py.admin.registry import run_operation
from zonemta_py.admin.relay_port import RunningRelay
from zonemta_py.admin.requests import ListRequest
from zonemta_py.admin.tokens import Role, add_token
from zonemta_py.config.schema import Config
from zonemta_py.core import clock
from zonemta_py.core.errors import LocalError
from zonemta_py.events.accounting import read_history
from zonemta_py.events.segment_reading import read_segment, sealed_segments
from zonemta_py.queue.format.keys import DEFERRED, MESSAGE, end_of, mark_key, owner_of
from zonemta_py.queue.format.records import read_recipient_record
from zonemta_py.queue.upkeep.held_mail import HeldMail
from zonemta_py.queue.upkeep.operator import Operator
from zonemta_py.relay.runner import RelayRunner
from zonemta_py.storage.interface import Store

LOOK_EVERY_S = 30.0
RESOLVER = {"nameservers": ["127.0.0.1:53"], "timeout": "5s"}
DELAY_MAX_S = 3600.0  # greater than that of any scenario
ENDING_S = 60.0  # for the QUIT of sessions
ASKED_EVERY_S = 600.0
MOVING = ("turn", "waking", "ready_window", "start_up_scan")  # reasons that are over in a moment
NEVER = ("damaged", "not_running", "queue_not_writable")
START_AGAIN_S = 5.0
WARMUP_BEGINS = "2027-01-15"  # the day on which a simulation begins
STARTED_WITHIN_S = 3600.0  # a disk fails for a shorter time
INTERRUPTED_WITHIN_S = 600.0  # a kill in a call, or a power cut; without a call then
FAILURES: Mapping[str, Sequence[tuple[str, ...]]] = {
    "ENOSPC": [("write",), ("write", "open", "name")],
    "EIO": [("write",), ("sync",), ("write", "sync", "name")],
    "EMFILE": [("open", "read")],
    "EROFS": [("write", "open", "name")],
}


@dataclass
class Result:
    """``faults``: what is wrong. ``digest``: of the events and their times; the same for the same seed."""

    faults: list[str]
    digest: str
    messages: int
    records: Sequence[dict[str, Any]]  # of the event log
    connections: int
    failed_connections: int
    virtual_s: float
    turns: int = 0  # of the loop

    @property
    def events(self) -> Counter[str]:
        """How many there were of each."""
        return Counter(each["event"] for each in self.records)


@dataclass
class Player:
    """One relay after the other, on ``stage``. ``place``: the directory of the present one."""

    scenario: Scenario
    stage: Stage
    loop: VirtualLoop
    disk: Disk
    place: Path
    r: Random
    runner: RelayRunner = field(init=False)
    running: asyncio.Task[None] = field(init=False)
    stopping: asyncio.Event = field(init=False)
    client: SmtpClient = field(init=False)
    http: HttpClient = field(init=False)
    program: Program = field(init=False)
    submissions: list[Submission] = field(default_factory=list)
    submitting: list[asyncio.Task[None]] = field(default_factory=list)
    zone: dict[str, Any] = field(init=False)  # its settings, which a reload changes
    suspended: list[tuple[float, str]] = field(default_factory=list)  # until when
    pauses: list[Pause] = field(default_factory=list)
    began_s: list[float] = field(default_factory=list)  # each relay
    # What each relay that died had sent without an answer, at most.
    unanswered: list[tuple[float, int]] = field(default_factory=list)
    is_first: bool = True  # the next relay of ``runner``
    ends: int = 0  # kills and power cuts
    # Those of receivers and senders alone, and stops in order whose last write the disk may have refused.
    lesser_ends: int = 0

    def __post_init__(self) -> None:
        self.zone = dict(self.scenario.zone)
        disk_fails = self.scenario.disk_fails
        self.client, self.program = SmtpClient(self.r, disk_fails), Program(self.r)
        file = self.stage.directory / "tokens"
        tenants = NETWORKS if "tenants" in self.scenario.changes else ()
        owners = {name: name if name in tenants else "" for name in ("", *NETWORKS)}
        tokens = {name: add_token(file, name or "others", Role.SEND, of) for name, of in owners.items()}
        self.http = HttpClient(self.r, disk_fails, tokens)
        self.place.mkdir()
        self.disk.settle(self.place)

    def _config(self) -> Config:
        changes = dict(self.scenario.changes)
        if self.scenario.limits:
            path = self.stage.directory / "providers.yaml"
            provider = {"mx": ["mx.d0.example"], "limits": dict(self.scenario.limits)}
            path.write_text(yaml.safe_dump({"providers": {"big": provider}}))
            changes["providers"] = {"file": str(path), "shipped": False}
        if self.scenario.warmup:
            path = self.stage.directory / "warmup.yaml"
            schedule = {"address": WARMING, "begins": WARMUP_BEGINS, "daily": [self.scenario.warmup]}
            path.write_text(yaml.safe_dump([schedule | {"provider": "big"}]))
            changes["warmup"] = {"file": str(path)}
        if self.scenario.rules:
            path = self.stage.directory / "shaping.yaml"
            path.write_text(yaml.safe_dump({"rules": [dict(each) for each in self.scenario.rules]}))
            changes["shaping"] = {"file": str(path)}
        if self.scenario.signed:
            changes["dkim"] = {
                "keys": [
                    {
                        "domain": each,
                        "selector": "s",
                        "key_file": str(key_file(self.stage.directory, each)),
                    }
                    for each in self.scenario.signed
                ]
            }
        queue = {
            "directory": str(self.place / "queue"),
            "min_free_disk": "1MiB",
            "store": self.scenario.store,
        }
        zones = {"default": self.zone}
        if self.scenario.hub:
            zones["default"] = {**self.zone, "destinations": self._by_smarthost()}
        if self.scenario.archive:
            zones[ARCHIVE] = {"transport": "dequeue", "retry": self.zone["retry"]}
        if self.scenario.tls:
            authority, _ = server_context(self.stage.directory, *HOSTS)
            zones["strict"] = {**self.zone, "tls": "required", "tls_ca_file": str(authority)}
            changes["routing"] = [{"sender_domain": STRICT_DOMAIN, "zone": "strict"}]
        return self.stage.config(
            processes=dict.fromkeys(("receivers", "senders"), self.scenario.processes), zones=zones, queue=queue, shutdown_grace="1s",
            events={"directory": str(self.place / "events")}, resolver=RESOLVER, **changes,
            admin={"address": f"unix:{self._http_path}", "mail": True, "tokens_file": str(self.stage.directory / "tokens")},
        )  # fmt: skip

    @property
    def _http_path(self) -> Path:
        return self.place.with_suffix(".sock")

    def _by_smarthost(self) -> Sequence[Mapping[str, Any]]:
        """Domains that have the same smarthost, each with its password."""
        authority, _ = server_context(self.stage.directory, *HOSTS)
        found = []
        for domain, password in PASSWORDS.items():
            path = self.stage.directory / f"{domain}.password"
            path.write_text(f"{password}\n")
            auth = {"username": domain, "password_file": str(path)}
            found.append({
                "domains": [domain], "smarthost": f"mx.{HUB}:25", "smarthost_auth": auth, "tls": "required",
                "tls_ca_file": str(authority),
            })  # fmt: skip
        return found

    @property
    def relay(self) -> Relay | None:
        """The relay that runs, unless its disk fails."""
        relay = self.runner.relay
        return None if relay is None or relay.queue.failure else relay

    async def present_relay(self) -> Relay:
        """The relay, when it runs."""
        while (relay := self.relay) is None:
            await asyncio.sleep(1)  # in virtual time
        return relay

    async def begin(self) -> None:
        """Start a relay."""
        self.loop.network.is_down = False
        end_s = self.loop.time() + STARTED_WITHIN_S
        while True:
            self.is_first = True
            self.runner, self.stopping = RelayRunner(self._made, self._config()), asyncio.Event()
            try:
                await self.runner.start()
                break
            except (LocalError, OSError):
                if self.loop.time() > end_s:
                    raise
                await asyncio.sleep(START_AGAIN_S)
        self.running = asyncio.create_task(self.runner.run(self.stopping, self._has_begun))

    def _made(self, config: Config) -> Relay:
        now_s = self.loop.time()
        self.began_s.append(now_s)
        if not self.is_first:  # the one before has failed
            self.unanswered.append((now_s, CONNECTIONS_MAX))
        self.is_first = False
        return Relay(config)

    def _has_begun(self) -> None:
        relay = self.runner.relay
        assert relay is not None
        self.client.port = relay.addresses[0].port
        if self.scenario.archive and not self.loop.network.is_down:  # it died while it started
            self.program.begin(relay, lambda: self.relay is relay)
        self.http.path = str(self._http_path)

    async def stop(self) -> None:
        """End the relay in order."""
        self.stopping.set()
        await self.running

    async def act(self, action: Action) -> None:
        """Do what the scenario says at this time. What needs a relay is left out when there is none."""
        match action.what:
            case "restart":
                self.lesser_ends += self.disk.is_failing
                await self.stop()
                await self.begin()
            case "kill":
                await self._kill(action.turns)
            case "power cut":
                await self._end_in_call(action.turns, self._image)
            case "kill in a call":
                await self._end_in_call(action.turns, self.disk.copy)
            case "kill a process":
                found = processes.running(self.loop)
                if found:
                    self.lesser_ends += 1
                    found[action.turns % len(found)].kill()
            case "wrong clock":
                self.loop.wrong_s += action.by_s
                self.loop.call_later(action.for_s, self._correct_clock, action.by_s)
            case "failing reads":
                part = 0.03 if action.name == SOME else 0.2 if action.turns % 3 == 0 else 1.0
                self.disk.fail(Failing(errno.EIO, ["read"], part))
                self.loop.call_later(action.for_s, self.disk.fail, None)
            case "failing disk":
                kinds = FAILURES[action.name]
                number = getattr(errno, action.name)
                part = 0.2 if action.turns % 3 == 0 else 1.0
                self.disk.fail(Failing(number, kinds[action.turns % len(kinds)], part))
                self.loop.call_later(action.for_s, self.disk.fail, None)
            case _:
                relay = self.relay
                if relay is not None:
                    try:
                        await self._act(action, relay)
                    except LocalError:
                        if not self.scenario.disk_fails:
                            raise

    def _correct_clock(self, by_s: float) -> None:
        self.loop.wrong_s -= by_s

    async def _act(self, action: Action, relay: Relay) -> None:
        """What clients and operators do with a relay that runs."""
        match action.what:
            case "mail":
                assert action.mail is not None
                submission = Submission(action.mail)
                self.submissions.append(submission)
                for _ in range(1 + action.mail.again):
                    if action.mail.by == "program":
                        await self._enqueue(submission, relay)
                        continue
                    client = self.http if action.mail.by == "http" else self.client
                    self.submitting.append(asyncio.create_task(client.submit(submission)))
            case "flush":
                await relay.flush()
            case "reload":
                self.zone["connections"] = 1 + action.turns % CONNECTIONS_MAX
                await relay.reload(self._config())
            case "hold" | "delete" | "bounce":
                messages = self._messages(relay)
                if messages:
                    operator = Operator(relay.queue)
                    change = {
                        "hold": operator.hold,
                        "delete": operator.delete,
                        "bounce": operator.bounce,
                    }
                    await change[action.what](messages[action.turns % len(messages)])
            case "suspend":
                self.suspended.append((action.at_s + action.for_s, action.name))
                await relay.queue.suspended.suspend(action.name, "simulation")
                self.pauses.append(Pause(action.name, clock.now_ms()))

    async def _enqueue(self, submission: Submission, relay: Relay) -> None:
        mail = submission.mail
        options: Any = {name: value for name in ("key", "zone") if (value := getattr(mail, name))}
        try:
            await relay.enqueue(mail.sender, mail.recipients, mail.data, **options)
        except LocalError:  # a tenant's address, a suspended one, or a disk that fails
            submission.unknown += self.scenario.disk_fails
            return
        submission.accepted += 1

    async def _kill(self, turns: int) -> None:
        """Kill it between two turns of the loop."""
        for _ in range(turns):
            await asyncio.sleep(0)
        await self._follow(self._die(self.disk.copy))

    async def _end_in_call(self, calls: int, copy: Callable[[Path, Path], None]) -> None:
        """Kill it, or cut the power, in front of a call to the disk."""
        dead: asyncio.Future[Path] = self.loop.create_future()

        def die() -> None:
            dead.set_result(self._die(copy))

        self.disk.interrupt(calls, die)
        await asyncio.wait([dead], timeout=INTERRUPTED_WITHIN_S)
        self.disk.interrupt(0, None)
        if not dead.done():
            die()
        await self._follow(dead.result())

    def _image(self, old: Path, new: Path) -> None:
        self.disk.image(old, new, self.r)

    def _die(self, copy: Callable[[Path, Path], None]) -> Path:
        """The relay does nothing more that counts; returns the directory that it leaves."""
        self.ends += 1
        place = self.place.with_name(f"relay-{self.ends}")
        copy(self.place, place)
        now_s = self.loop.time()
        self.unanswered.append((now_s, self.loop.network.open_to(LIMITED_HOST)))
        relay = self.runner.relay
        self.loop.network.cut_off([(each.host, each.port) for each in relay.addresses] if relay else [])
        self.loop.network.is_down = True
        self.http.path = ""
        self.program.end()
        return place

    async def _follow(self, place: Path) -> None:
        """End what is left of a relay that is dead, and start another one in ``place``."""
        await self.stop()
        self.place = place
        await self.begin()

    def _messages(self, relay: Relay) -> list[str]:
        """Those that are in the queue, the oldest first."""
        store = relay.queue.store
        return [
            owner_of(key)
            for key in store.keys(MESSAGE, end_of(MESSAGE))
            if key == mark_key(owner_of(key))
        ]

    async def release(self) -> None:
        """Release what an operator, or a relay that was killed too often, holds."""
        while True:
            relay = await self.present_relay()
            try:
                for message in self._messages(relay):
                    await Operator(relay.queue).release(message)
                return
            except LocalError:
                # LevelDB remembers that a write has failed, of which the relay does not know yet.
                if not self.scenario.disk_fails:
                    raise

    async def resume(self, now_s: float) -> None:
        """End the suspensions whose time is over."""
        for until_s, name in [each for each in self.suspended if each[0] <= now_s]:
            relay = self.relay
            if relay is None:
                return
            for pause in self.pauses:
                if pause.name == name and not pause.until_ms:
                    pause.until_ms = clock.now_ms()
            try:
                if name in relay.queue.suspended:
                    await relay.queue.suspended.resume(name)
                queue = relay.queue
                async for _ in HeldMail(queue, Operator(queue)).release(name):
                    pass
            except LocalError:
                if not self.scenario.disk_fails:
                    raise
            else:
                self.suspended.remove((until_s, name))

    def judge(self) -> Iterator[str]:
        """The faults in what has become of each recipient."""
        received = defaultdict[str, list[bytes]](list)
        for sink in self.stage.sinks.values():
            for message in sink.messages:
                for recipient in message.recipients:
                    received[recipient].append(message.data)
        for recipient, data in self.program.taken:
            received[recipient].append(data)
        history, records = read_history(self.place / "events"), self.records()
        keys_count = not self.scenario.clock_is_wrong
        yield from judge_recipients(
            self.submissions,
            records,
            history,
            received,
            keys_count=keys_count,
            unsure=self.program.unsure,
        )
        if self.scenario.signed:
            copies = [each.data for sink in self.stage.sinks.values() for each in sink.messages]
            has_tenants = "tenants" in self.scenario.changes
            yield from judge_signatures(
                self.submissions, copies, self.scenario.signed, has_tenants=has_tenants
            )
        yield from judge_keys(self.submissions)
        yield from judge_held(records, self.ends + self.lesser_ends)
        if not self.scenario.clock_is_wrong:
            yield from judge_flood(self.scenario.changes, records)
        if not (self.scenario.failing or self.scenario.clock_is_wrong):
            prompt = {each.domain for each in self.scenario.receivers if each.kind in PROMPT}
            # The mail of a smarthost waits together, and is not looked at by domain.
            if self.scenario.hub:
                prompt -= PASSWORDS.keys()
            yield from judge_pauses(self.pauses, records, prompt)
            yield from judge_rules(records, prompt)
            yield from judge_turns(records, prompt)

    def records(self) -> list[dict[str, Any]]:
        """The event log of the last relay."""
        segments = sealed_segments(self.place / "events")
        return [record for path in segments for record in read_segment(path)]


class Watch:
    """Asks now and then why each recipient waits: the answer is never that it is about to move, twice in a row."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self._moving: dict[str, str] = {}  # recipient: what moves it
        self._failed = 0  # calls to the disk, at the last look
        self._sound_looks = 0  # since then: what could not be read is read again within AGAIN_MAX_S
        self.faults: list[str] = []

    async def run(self) -> None:
        """Ask until it is cancelled."""
        while True:
            await asyncio.sleep(ASKED_EVERY_S)
            relay = self._player.relay
            if relay is not None:
                try:
                    await self._ask(relay)
                except LocalError:
                    if not self._player.scenario.disk_fails:
                        raise

    async def _ask(self, relay: Relay) -> None:
        running = RunningRelay(zones=relay._delivery.views)
        rows = [row async for row in run_operation(Operations(relay.queue, running), ListRequest())]
        served = {row["domain"] for row in rows if row["why"]["name"] == "in_flight"}
        moving = {
            row["recipient"]: row["why"]["name"]
            for row in rows
            if row["why"]["name"] in MOVING and row["domain"] not in served
        }
        for recipient, name in moving.items():
            if self._moving.get(recipient) == name and relay is self._player.relay:
                self.faults.append(f"{recipient} waits for {ASKED_EVERY_S:.0f} s, the reason is: {name}")
        self._moving = moving
        failed, self._failed = self._failed, self._player.disk.failed
        self._sound_looks = self._sound_looks + 1 if failed == self._failed else 0
        if self._sound_looks < 2:
            self._moving = {}
        if relay is self._player.relay:
            self.faults += [
                f"{row['recipient']}: {row['why']}" for row in rows if row["why"]["name"] in NEVER
            ]


async def _emptied(store: Store, within_s: float) -> None:
    """Return when the queue is empty, or the time is over."""
    end_s = asyncio.get_running_loop().time() + within_s
    while everything(store) and asyncio.get_running_loop().time() < end_s:
        await asyncio.sleep(LOOK_EVERY_S)


def _due_late(store: Store) -> Iterator[str]:
    """Recipients that are due after any possible delay."""
    for key, value in store.scan(DEFERRED, end_of(DEFERRED)):
        wait_s = (read_recipient_record(value).due_ms - clock.now_ms()) / 1000
        if wait_s > DELAY_MAX_S:
            yield f"{key!r} is due in {wait_s:.0f} s"


async def play(scenario: Scenario, directory: Path) -> Result:
    """The result of ``scenario`` in the empty ``directory``."""
    loop = cast(VirtualLoop, asyncio.get_running_loop())
    stage, r = Stage(directory), Random()
    stage.port, stage.dns_port = 25, 53
    surroundings = Surroundings(scenario, stage, loop, r)
    await surroundings.begin()
    disk = Disk(directory / "removed", r)
    simulated_disk.begin(disk)
    player = Player(scenario, stage, loop, disk, directory / "relay-0", r)
    await player.begin()
    watch = Watch(player)
    watching = asyncio.create_task(watch.run())
    began_s = loop.time()
    for action in scenario.actions:
        await asyncio.sleep(max(0.0, began_s + action.at_s - loop.time()))
        await player.resume(loop.time() - began_s)
        await player.act(action)
    disk.fail(None)
    await player.present_relay()
    await player.resume(float("inf"))
    await player.release()
    await asyncio.gather(*player.submitting)
    relay = await player.present_relay()
    store = relay.queue.store
    await _emptied(store, ANSWERING_S)
    faults = list(_due_late(store))
    # What was accepted while the clock was ahead is given up so much later.
    await _emptied(store, sum(max(0.0, each.by_s) for each in scenario.actions))
    faults += [f"the queue is not empty: {key!r}" for key in everything(store)[:5]]
    faults += problems(store)
    faults += judge_memory(relay)
    watching.cancel()
    await player.stop()
    simulated_disk.begin(None)
    await surroundings.end()
    faults += player.judge()
    if not scenario.clock_is_wrong:
        faults += surroundings.judge(player.began_s, player.unanswered)
        faults += surroundings.judge_warmup(player.records())
    faults += surroundings.judge_tls()
    faults += surroundings.judge_passwords()
    faults += watch.faults
    await asyncio.sleep(ENDING_S)
    records = player.records()
    text = repr([(each["event"], each.get("recipient"), each["time_ms"]) for each in records])
    return Result(
        faults,
        sha256(text.encode()).hexdigest()[:16],
        len(player.submissions),
        records,
        loop.network.connections,
        loop.network.faults,
        loop.time(),
        loop.turns,
    )
