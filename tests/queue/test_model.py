"""The queue against a model: any order of verbs, with the database reopened in between.

The model knows one thing: where each recipient is. The queue must agree after every step, its
check must be clean, and when everyone is gone no key is left.
"""

import asyncio
import shutil
import tempfile
from itertools import product
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.kit.deadlines import until
from tests.kit.queue import (
    Clock,
    UserPools,
    accept,
    begin,
    events,
    everything,
    make_queue,
    outcomes,
    problems,
)
from zonemta_py.admin.reasons import Depths
from zonemta_py.core.codec import replace
from zonemta_py.core.model import OutcomeKind
from zonemta_py.queue.census import count_all, differences
from zonemta_py.queue.commit import WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import read_recipient_record
from zonemta_py.queue.messages import Lease
from zonemta_py.queue.ready.streams import ONE_POOL, MailPools
from zonemta_py.queue.upkeep.move import flush
from zonemta_py.queue.upkeep.operator import Operator

DOMAINS = ["x.example", "y.example"]
ZONES = ["default", "bulk"]


class QueueMachine(RuleBasedStateMachine):
    """Rules are the verbs; ``waiting``, ``deferred`` and ``leases`` are the model."""

    store = "leveldb"

    @initialize()
    def open(self) -> None:
        self.runner = asyncio.Runner()
        self.directory = Path(tempfile.mkdtemp(prefix="zonemta-model-"))
        self.clock = Clock()
        self.number = 0
        self.waiting: set[tuple[str, str]] = set()  # (message, address), leased ones included
        self.deferred: dict[tuple[str, str], int] = {}
        self.leases: list[Lease] = []
        self.settled = 0
        self.accepted = 0
        self._open()

    def _open(self) -> None:
        async def start() -> None:
            self.queue = make_queue(
                self.directory, self.clock, window=16, cache=2000, store=self.store, poison_after=10**6
            )
            await begin(self.queue)

        self.runner.run(start())

    @rule(
        domains=st.lists(st.sampled_from(DOMAINS), min_size=1, max_size=4),
        zone=st.sampled_from(ZONES),
        size=st.sampled_from([0, 10, 70_000]),
        user=st.sampled_from(["a", "b", "c"]),
    )
    def accept(self, domains: list[str], zone: str, size: int, user: str) -> None:
        addresses = [f"r{self.number}-{i}@{domain}" for i, domain in enumerate(domains)]
        self.number += 1
        message = self.runner.run(accept(self.queue, *addresses, body=b"b" * size, zone=zone, user=user))
        self.waiting |= {(message, address) for address in addresses}
        self.accepted += len(addresses)

    @rule(
        domain=st.sampled_from(DOMAINS),
        zone=st.sampled_from(ZONES),
        most=st.integers(1, 3),
        start=st.booleans(),
    )
    def lease(self, domain: str, zone: str, most: int, start: bool) -> None:
        async def take() -> None:
            held = self._take(zone, domain, most)
            if held is None:
                busy = {(r.message, r.address) for lease in self.leases for r in lease.recipients}
                left = [
                    w for w in self.waiting - busy if w[1].endswith(domain) and self._zone(w) == zone
                ]
                assert not left, "the queue says there is nothing, the model knows better"
                return
            if start:
                await self.queue.start(held)
            self.leases.append(held)

        self.runner.run(take())

    def _take(self, zone: str, domain: str, most: int) -> Lease | None:
        return self.queue.lease(zone, domain, most)

    def _zone(self, where: tuple[str, str]) -> str:
        value = self.queue.store.get(keys.waiting_key("bulk", *where))
        return "bulk" if value is not None else "default"

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        """Settle one lease, or two before one commit."""
        count = data.draw(st.integers(1, min(2, len(self.leases))))
        held = [self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1))) for _ in range(count)]
        fates = [
            data.draw(
                st.sampled_from(
                    [
                        OutcomeKind.DELIVERED,
                        OutcomeKind.DEFERRED,
                        OutcomeKind.BOUNCED,
                        OutcomeKind.EXPIRED,
                    ]
                )
            )
            for _ in held
        ]
        first_due_ms = self.clock.ms + data.draw(st.integers(1, 5000))
        apart_ms = data.draw(st.sampled_from([0, 0, 1, 3000]))
        whole = data.draw(st.booleans())

        async def settle() -> None:
            futures = []
            for lease, kind in zip(held, fates, strict=True):
                some = [
                    replace(outcome, due_ms=first_due_ms + apart_ms * number)
                    for number, outcome in enumerate(outcomes(lease, kind))
                ][: None if whole else 1]
                for outcome in some:
                    where = (outcome.recipient.message, outcome.recipient.address)
                    self.waiting.discard(where)
                    if kind is OutcomeKind.DEFERRED:
                        self.deferred[where] = outcome.due_ms
                    else:
                        self.settled += 1
                futures.append(self.queue.settle(lease, some))
            await asyncio.gather(*futures)

        self.runner.run(settle())

    @rule(ms=st.integers(0, 6000))
    def time_passes(self, ms: int) -> None:
        self.clock.ms += ms

        async def wake() -> None:
            while await self.queue.deferral.wake_due(self.clock.ms):
                pass
            # The queue's own timer may have found them first, and be writing.
            await until(lambda: not self.queue.deferral.moving, "what is woken")

        self.runner.run(wake())
        for where, due_ms in list(self.deferred.items()):
            if due_ms <= self.clock.ms:
                del self.deferred[where]
                self.waiting.add(where)

    @rule()
    def flush(self) -> None:
        self.runner.run(flush(self.queue))
        self.waiting |= set(self.deferred)
        self.deferred.clear()

    @precondition(lambda self: self.waiting or self.deferred)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        message, address = data.draw(st.sampled_from(sorted(self.waiting | set(self.deferred))))
        busy = any(
            (r.message, r.address) == (message, address)
            for lease in self.leases
            for r in lease.recipients
        )
        deleted, left = self.runner.run(Operator(self.queue).delete(message, address))
        assert (deleted, left) == ((0, 1) if busy else (1, 0))
        if not busy:
            self.waiting.discard((message, address))
            self.deferred.pop((message, address), None)
            self.settled += 1

    @rule()
    def reopen(self) -> None:
        """Leases are gone; what they held is ready again."""
        self.runner.run(self.queue.close())
        self.leases.clear()
        self._open()

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "queue"):
            return
        store = self.queue.store
        waiting, deferred = set(), {}
        for key in store.keys(keys.WAITING, keys.end_of(keys.WAITING)):
            waiting.add(keys.parse_recipient(key)[1:])
        for key, value in store.scan(keys.DEFERRED, keys.end_of(keys.DEFERRED)):
            deferred[keys.parse_recipient(key)[1:]] = read_recipient_record(value).due_ms
        assert waiting == self.waiting
        assert deferred == self.deferred
        assert problems(store) == []
        self.runner.run(self._census_agrees())
        assert [p for zone in ZONES for p in self.queue.windows.zone(zone).problems()] == []

    async def _census_agrees(self) -> None:
        await until(lambda: self.queue.census.is_complete, "the census")
        with self.queue.store.frozen() as view:
            on_disk = [c for c in count_all(view, lambda zone, domain: domain) if c is not None]
        assert list(differences(self.queue.census.copy(), on_disk[0].copy())) == []
        depths = Depths(self.queue.census, self.queue.windows)
        leased = sum(len(lease.recipients) for lease in self.leases)
        assert sum(depths.zone(zone)["in_flight"] for zone in ZONES) == leased

    def teardown(self) -> None:
        if not hasattr(self, "queue"):
            return

        async def drain() -> None:
            for lease in self.leases:
                await self.queue.settle(lease, outcomes(lease, OutcomeKind.DELIVERED))
            await flush(self.queue)
            some = True
            while some:  # one domain may wait for the room that another takes
                some = False
                for zone, domain in product(ZONES, DOMAINS):
                    while held := self.queue.lease(zone, domain, 10):
                        some = True
                        await self.queue.settle(held, outcomes(held, OutcomeKind.DELIVERED))
            await until(lambda: everything(self.queue.store) == [], "the last chunks to go")

        try:
            self.runner.run(drain())
            left = everything(self.queue.store)
            found = events(self.queue.store)
            self.runner.run(self.queue.close())
            assert left == []
            finals = [e for e in found if e["event"] in ("delivered", "bounced", "expired", "deleted")]
            identities = {(e["message"], e["index"]) for e in finals}
            assert len(finals) == len(identities) == self.accepted
        finally:
            self.runner.close()
            shutil.rmtree(self.directory)


class MemoryQueueMachine(QueueMachine):
    store = "memory"


class FilesQueueMachine(QueueMachine):
    store = "filesystem"


class PoolsQueueMachine(QueueMachine):
    """Mail of one user, and mail that was deferred, leaves from other pools; a worker has mail of one of them."""

    store = "memory"

    def _open(self) -> None:
        super()._open()
        self.queue.windows.set_pools(UserPools())

    @rule(pools=st.sampled_from([UserPools(), ONE_POOL]))
    def reload(self, pools: MailPools) -> None:
        self.queue.windows.set_pools(pools)

    @rule(zone=st.sampled_from(ZONES), domain=st.sampled_from(DOMAINS), answers=st.booleans())
    def suspend(self, zone: str, domain: str, answers: bool) -> None:
        """The destination does not answer, or does again."""

        async def change() -> None:
            if answers:
                self.queue.windows.zone(zone).set_reachable(domain)
            else:
                self.queue.windows.set_unreachable(zone, domain)
                await self.queue.commits.submit(WriteBatch())

        self.runner.run(change())

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            for zone, domain in product(ZONES, DOMAINS):
                self.queue.windows.zone(zone).set_reachable(domain)
        super().teardown()

    def _take(self, zone: str, domain: str, most: int) -> Lease | None:
        for pool in self.queue.windows.pool_keys(zone, domain):
            held = self.queue.lease(zone, domain, most, pool)
            if held is not None:
                assert self.queue.windows.pool_key(zone, domain, held.recipients[0].record) == pool
                return held
        return None


TestQueueModel = QueueMachine.TestCase
TestQueueModel.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestMemoryQueueModel = MemoryQueueMachine.TestCase
TestMemoryQueueModel.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestPoolsQueueModel = PoolsQueueMachine.TestCase
TestPoolsQueueModel.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestFilesQueueModel = FilesQueueMachine.TestCase
TestFilesQueueModel.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
