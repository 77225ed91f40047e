"""The census equals the keys: after each verb, beside a scan that has not ended, after a crash, beyond its limits."""

import asyncio
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.deadlines import until
from tests.kit.queue import Clock, accept, begin, lease, make_queue, opened, outcomes, settle
from zonemta_py.admin.reasons import Depths
from zonemta_py.core.model import AGES_MIN, STATES, OutcomeKind
from zonemta_py.queue import census as census_module
from zonemta_py.queue import census as census_scan
from zonemta_py.queue.census import OTHER, TOTAL, Census, count_all, differences
from zonemta_py.queue.commit import WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import CensusLabels, DeliveryOptions, RecipientState
from zonemta_py.queue.messages import Lease
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.upkeep.move import flush
from zonemta_py.queue.upkeep.operator import Operator


def destination_of(zone: str, domain: str) -> str:
    return domain


def wrong(queue: Queue) -> list[str]:
    """Where the census of ``queue`` differs from its keys."""
    with queue.store.frozen() as view:
        counted = [c for c in count_all(view, destination_of) if c is not None]
    return list(differences(queue.census.copy(), counted[0].copy()))


async def test_every_verb_is_counted(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path, clock) as queue:
        later = DeliveryOptions(not_before_ms=clock.ms + 60_000)
        await accept(queue, "a@x.example", "b@x.example", "c@y.example|bulk", tenant="acme")
        await accept(queue, "later@x.example", options=later)
        held = await accept(queue, "held@x.example", hold="a test")
        depths = Depths(queue.census, queue.windows)
        expected = dict.fromkeys(STATES, 0)
        assert depths.zone("default") == {**expected, "waiting": 2, "not_before": 1, "held": 1}
        assert depths.zone("bulk") == {**expected, "waiting": 1}
        assert queue.census.tenants() == {"acme": 3}

        taken = lease(queue, "x.example", 1)
        assert depths.zone("default") == {
            **expected, "waiting": 1, "in_flight": 1, "not_before": 1, "held": 1
        }  # fmt: skip
        await settle(queue, taken, OutcomeKind.DEFERRED, due_ms=clock.ms + 1000)
        assert depths.zone("default")["deferred"] == 1
        queue.windows.set_unreachable("default", "x.example")
        assert depths.zone("default")["unreachable"] == 1
        assert depths.destinations("default", 5)["x.example"]["unreachable"] == 1
        queue.windows.zone("default").set_reachable("x.example")
        await flush(queue)
        await Operator(queue).release(held)
        assert depths.zone("default") == {**expected, "waiting": 3, "not_before": 1}
        await Operator(queue).hold(held)
        await Operator(queue).delete(held)
        assert depths.zone("default") == {**expected, "waiting": 2, "not_before": 1}
        assert wrong(queue) == []
        while taken_next := queue.lease("default", "x.example", 10):
            await settle(queue, taken_next, OutcomeKind.DELIVERED)
        assert wrong(queue) == []
        assert queue.census.tenants() == {"acme": 1}


async def test_what_happens_beside_the_scan_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old mail moves in front of the scan and behind it, and new mail comes."""
    monkeypatch.setattr(census_scan, "SLICE", 3)
    async with opened(tmp_path) as queue:
        old = [await accept(queue, f"r{i}@x.example", f"s{i}@y.example") for i in range(20)]
    queue = make_queue(tmp_path, Clock())
    try:
        await queue.recover()
        await queue.begin()
        seen_counting = False
        for message in (old[19], old[0], old[10], old[1]):
            seen_counting |= not queue.census.is_complete
            await Operator(queue).delete(message, None)
            await accept(queue, "new@x.example")
        await until(lambda: queue.census.is_complete, "the census")
        assert seen_counting
        assert wrong(queue) == []
        assert queue.census.zones()["default"][TOTAL] == 2 * 16 + 4
    finally:
        await queue.close()


async def test_a_look_waits_for_the_group_that_is_being_written(tmp_path: Path) -> None:
    """Between two groups, the keys and the census agree at every moment."""
    async with opened(tmp_path) as queue:
        found: list[list[str]] = []

        async def look() -> None:
            for _ in range(50):
                found.append(await queue.commits.between_groups(lambda: wrong(queue)))
                await asyncio.sleep(0)

        looking = asyncio.create_task(look())
        for number in range(50):
            await accept(queue, f"r{number}@x.example")
            held = queue.lease("default", "x.example", 1)
            if held is not None:
                queue.settle(held, outcomes(held, OutcomeKind.DELIVERED))
        await looking
        assert found == [[]] * 50


async def test_a_damaged_census_is_a_problem_of_the_check(tmp_path: Path) -> None:
    async with opened(tmp_path) as queue:
        await accept(queue, "a@x.example")
        batch = WriteBatch()
        labels = CensusLabels("", "", queue.now())
        message = queue.ids.next(queue.now())
        batch.counts.append(("default", message, "x.example", None, RecipientState.WAITING, 1, labels))
        await queue.commits.submit(batch)
        assert wrong(queue)[0].startswith("census: zones default: [2, 0, 0, 0, 2], the keys have [1,")


NAMES = st.sampled_from([f"n{i}" for i in range(6)])


@given(st.lists(st.tuples(NAMES, st.booleans()), max_size=60))
def test_sums_are_exact_beyond_the_limit(steps: list[tuple[str, bool]]) -> None:
    table = census_module._Table(3)
    present: list[str] = []
    for name, enters in steps:
        if enters:
            present.append(name)
            table.add(name, RecipientState.WAITING, 1)
        elif name in present:
            present.remove(name)
            table.add(name, RecipientState.WAITING, -1)
    assert sum(table.totals().values()) == len(present)
    assert len(table.rows) <= 3
    if len({name for name, _ in steps}) <= 3:
        assert OTHER not in table.totals()
        assert table.totals() == {name: present.count(name) for name in set(present)}


async def test_ages_are_those_of_qshape(tmp_path: Path) -> None:
    census = Census("", destination_of)
    now_ms = 2_000_000_000_000 // census_module.AGE_SLOT_MS * census_module.AGE_SLOT_MS
    for age_min in (0, 5, 10, 25, 100, 5000):
        labels = CensusLabels("", "spring", now_ms - age_min * 60_000)
        census.add("default", "x.example", RecipientState.WAITING, labels)
    async with opened(tmp_path) as queue:
        queue_ages = Depths(census, queue.windows).ages(now_ms)
    assert queue_ages == {"default": [2, 1, 0, 1, 0, 1, 0, 0, 0, 1]}
    assert len(AGES_MIN) + 1 == 10
    assert census.campaigns() == {"spring": 6}


async def test_a_recipient_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    async with opened(tmp_path) as queue:
        message = await accept(queue, "a@x.example", "b@x.example")
    queue = make_queue(tmp_path, Clock())
    try:
        key = keys.waiting_key("default", message, "a@x.example")
        queue.store.write(queue.store.batch([(key, b"\xff")], sync=True))
        await queue.recover()
        await queue.begin()
        await until(lambda: queue.census.is_complete, "the census")
        assert queue.census.zones()["default"][RecipientState.WAITING] == 1
    finally:
        await queue.close()


async def test_after_ten_thousand_operations_crashes_and_takeovers(tmp_path: Path) -> None:
    """A queue that is opened again over the same store is what follows a crash, and what a take-over is."""
    rng, clock = random.Random(7), Clock()
    queue = make_queue(tmp_path, clock, window=64, store="memory")
    await begin(queue)
    leases: list[Lease] = []
    messages: list[str] = []
    for step in range(10_000):
        match rng.choices(range(7), (30, 35, 25, 4, 3, 2, 0.1))[0]:
            case 0:
                to = [f"r{step}-{i}@d{rng.randrange(9)}.example" for i in range(rng.randrange(1, 4))]
                later = DeliveryOptions(not_before_ms=clock.ms + 500 if rng.random() < 0.2 else 0)
                tenant = rng.choice(["", "acme", "globex"])
                messages.append(await accept(queue, *to, tenant=tenant, options=later))
            case 1:
                held = queue.lease("default", f"d{rng.randrange(9)}.example", 3)
                leases += [held] if held is not None else []
            case 2 if leases:
                held = leases.pop(rng.randrange(len(leases)))
                kind = rng.choice([OutcomeKind.DELIVERED, OutcomeKind.BOUNCED, OutcomeKind.DEFERRED])
                await settle(queue, held, kind, due_ms=clock.ms + 1 + rng.randrange(1000))
            case 3:
                clock.ms += 200
                await queue.deferral.wake_due(clock.ms)
            case 4 if messages:
                await Operator(queue).hold(rng.choice(messages))
            case 5 if messages:
                operation = rng.choice((Operator(queue).release, Operator(queue).delete))
                await operation(rng.choice(messages))
            case 6:
                await queue.background.stop()
                await queue.commits.close()
                leases.clear()
                queue = make_queue(tmp_path, clock, window=64, store="memory")
                await begin(queue)
    await until(lambda: queue.census.is_complete, "the census")
    assert sum(row[TOTAL] for row in queue.census.zones().values()) > 100
    assert wrong(queue) == []
    await queue.close()
