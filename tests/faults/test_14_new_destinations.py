"""14. Mail for a domain that was never tried does not wait behind silent ones, nor behind name servers that do not answer."""

import asyncio
import heapq
from collections import Counter
from itertools import count
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest

from tests.kit.deadlines import until
from tests.kit.relay import received, relaying, send, staged
from zonemta_py.config.zones import Zone
from zonemta_py.delivery.egress import LOOK_UPS_MAX, LookUps
from zonemta_py.delivery.zone_workers import SECOND_TRY_S
from zonemta_py.egress.admission import Destination, WorkerSlot
from zonemta_py.egress.paths import Limit
from zonemta_py.schedule.scheduler import Scheduler
from zonemta_py.sink.script import Rule, Step
from zonemta_py.smtp.mx_order import NO_MX_ANSWER, MxAnswer

OPENS_S = 0.2  # a living host: until the session is open, and for a message
FIRST_DELAY_S = 300.0
PROCESSES = pytest.mark.parametrize("processes", [(0, 0), (2, 2)], ids=["0/0", "2/2"])


class Arrival(NamedTuple):
    """Mail for a domain that has none yet, at a virtual time."""

    at_s: float
    name: str


class Simulation:
    """A zone on a virtual clock: hosts whose domains begin with ``dead`` say nothing, others answer."""

    def __init__(self, connections: int) -> None:
        self.scheduler = Scheduler(Zone(connections=connections), 0.0, self._on_room)
        self.waits_s: dict[str, float] = {}
        self.most_trying = 0
        self.tries = Counter[str]()  # of silent ones
        self._came_s: dict[str, float] = {}
        self._events: list[tuple[float, int, WorkerSlot | str]] = []
        self._order = count()
        self._now_s = 0.0

    def _put(self, at_s: float, subject: WorkerSlot | str) -> None:
        """At ``at_s`` a worker ends, or mail comes for a domain."""
        heapq.heappush(self._events, (at_s, next(self._order), subject))

    def _on_room(self, destination: Destination) -> None:
        pass  # workers are started after every event

    def play(self, arrivals: list[Arrival], until_s: float) -> None:
        for arrival in arrivals:
            self._put(arrival.at_s, arrival.name)
        while self._events and self._events[0][0] <= until_s:
            self._now_s, _, subject = heapq.heappop(self._events)
            if isinstance(subject, WorkerSlot):
                self._end(subject)
            else:
                self._came_s.setdefault(subject, self._now_s)
                self.scheduler.ready(subject, self._now_s)
            while (slot := self.scheduler.next(self._now_s)) is not None:
                self.scheduler.leased(slot, self._now_s, more=False)
                takes_s = (
                    OPENS_S if slot.destination.name[:4] != "dead" else slot.session_within_s or 30.0
                )
                self._put(self._now_s + takes_s, slot)
            trying = self.scheduler.active - self.scheduler.sessions
            self.most_trying = max(self.most_trying, trying)

    def _end(self, slot: WorkerSlot) -> None:
        name, now_s = slot.destination.name, self._now_s
        if name[:4] != "dead":
            self.waits_s[name] = now_s - self._came_s[name] - OPENS_S
            self.scheduler.session_opened(slot, now_s)
            self.scheduler.session_ended(slot)
            self.scheduler.ended(slot, now_s, has_mail=False)
            return
        self.tries[name] += 1
        soon = slot.session_within_s and not slot.destination.failing
        delay_s = SECOND_TRY_S if soon else FIRST_DELAY_S
        down_until_s = self.scheduler.failed(slot.destination, delay_s, now_s, "silent")
        self.scheduler.ended(slot, now_s, has_mail=True)
        self.scheduler.empty(name)  # as a suspended destination
        self._put(down_until_s, name)


@pytest.mark.parametrize("connections, dead", [(100, 3000), (20, 60)])
@pytest.mark.parametrize("first_s", [10.0, 45.0, 400.0], ids=["at once", "later", "in the second try"])
def test_a_domain_that_was_never_tried(connections: int, dead: int, first_s: float) -> None:
    """Half of them are tried within a second, all within five, whenever they come: 20 at once, then one a second."""
    simulation = Simulation(connections)
    silent = [Arrival(n * 10.0 / dead, f"dead{n}") for n in range(dead)]
    together = [Arrival(first_s, f"living{n}") for n in range(20)]
    single = [Arrival(first_s + 10 + n, f"single{n}") for n in range(20)]
    simulation.play([*silent, *together, *single], first_s + 60)
    waits_s = list(simulation.waits_s.values())
    assert len(waits_s) == 40
    assert median(waits_s) <= 1.0
    assert max(waits_s) <= 5.0
    assert simulation.most_trying <= max(1, connections // 3)


def test_silent_domains_have_their_second_try() -> None:
    """None starves: each of 60 is tried again soon, although others that were never tried keep coming."""
    simulation = Simulation(20)
    silent = [Arrival(0.0, f"dead{n}") for n in range(60)]
    others = [Arrival(12.0 * n, f"dead-too{n}") for n in range(300)]
    simulation.play([*silent, *others], 3600.0)
    assert all(simulation.tries[name] >= 2 for _, name in silent)


def test_the_reason_counts_what_is_used() -> None:
    """`why` of a domain behind others: how many connections are being opened, and of how many."""
    simulation = Simulation(100)
    simulation.play([Arrival(0.0, f"dead{n}") for n in range(100)], 1.0)
    waiting = next(
        binding
        for n in range(100)
        if (binding := simulation.scheduler.binding(f"dead{n}", 1.0))
        and binding.limit is Limit.UNANSWERED_BUDGET
    )
    trying = simulation.scheduler.active - simulation.scheduler.sessions
    assert f"{trying} connections are being opened" in waiting.reason
    assert "of 33 that" in waiting.reason


async def test_look_ups_behind_silent_name_servers() -> None:
    """They give their places to the next ones after a moment; the newest has its turn at once."""
    answers: dict[str, MxAnswer] = {}
    look_ups = LookUps(lambda domain, answer: answers.update({domain: answer}), quick_s=0.001)
    silent: asyncio.Future[MxAnswer] = asyncio.get_running_loop().create_future()

    async def resolve(domain: str) -> MxAnswer:
        return await asyncio.shield(silent) if domain.startswith("dead") else NO_MX_ANSWER

    for number in range(3 * LOOK_UPS_MAX):
        look_ups.add(f"dead{number}", resolve, lambda: None)
    look_ups.add("living", resolve, lambda: None)
    await until(lambda: "living" in answers, "the answer for a living domain")
    assert len(answers) == 1
    await until(lambda: len(look_ups._slow) == 3 * LOOK_UPS_MAX, "all look-ups to be under way")
    silent.set_result(NO_MX_ANSWER)
    await until(lambda: len(look_ups) == 0, "all answers")
    assert len(answers) == 3 * LOOK_UPS_MAX + 1
    look_ups.close()


@PROCESSES
async def test_mail_beside_silent_hosts(directory: Path, processes: tuple[int, int]) -> None:
    """Two zones with few connections and many hosts that do not greet: mail for other domains leaves from both."""
    async with staged(directory) as stage:
        silent = await stage.receiver("silent.example", Rule(Step.CONNECT, stall_s=600))
        living = [await stage.receiver(f"{name}.example") for name in ("a", "b")]
        records = dict(stage.names.records)
        domains = [f"s{n}.example" for n in range(40)]
        records |= {domain: {"MX": ["10 mx.silent.example."]} for domain in domains}
        stage.names.records = records
        few = {"connections": 9}
        config = stage.config(
            zones={"default": few, "bulk": few},
            routing=[{"sender_domain": "bulk.example", "zone": "bulk"}],
            processes={"receivers": processes[0], "senders": processes[1]},
        )
        async with relaying(config) as relay:
            for sender in ("s@bulk.example", "s@sender.example"):
                await send(relay, [f"x@{domain}" for domain in domains], sender=sender)
            await until(lambda: silent.connections, "a connection to the silent host")
            await send(relay, ["x@a.example"], sender="s@bulk.example")
            await send(relay, ["x@b.example"])
            for sink in living:
                await received(sink, 1)
