"""The ready window: bounded, fair to destinations, with no recipient forgotten outside it."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.deadlines import until
from tests.kit.queue import (
    FALLBACK,
    OWN,
    PART,
    Clock,
    UserPools,
    accept,
    everything,
    lease,
    opened,
    problems,
    settle,
)
from zonemta_py.core.model import USUAL_KEY, OutcomeKind, PoolKey
from zonemta_py.queue.accept import NewMessage, NewRecipient
from zonemta_py.queue.commit import WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import TENANT_FLOW, Origin, new_recipient_record
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.ready import windows
from zonemta_py.queue.ready.streams import ONE_POOL, MailPools, QueuedRecipient, Stream
from zonemta_py.queue.ready.window import HEADROOM, SHARES, ReadyWindow
from zonemta_py.queue.upkeep.move import flush
from zonemta_py.queue.upkeep.operator import Operator

ME = Stream("me")


def _recipient(message: str, n: int, domain: str = "x.example") -> QueuedRecipient:
    address = f"{n}@{domain}"
    return QueuedRecipient(
        keys.waiting_key("z", message, address),
        "z",
        message,
        address,
        new_recipient_record(n, domain, "me"),
    )


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=40))
def test_bookkeeping_adds_up(steps: list[tuple[int, int]]) -> None:
    """Whatever is reserved, added, taken, given back, held or forgotten, the size is what is queued."""
    window, number, leased = ReadyWindow("z", 64), 0, []
    held: list[bytes] = []
    for kind, count in steps:
        if kind == 0 and window.reserve("x.example", ME, count):
            window.room.unreserve("x.example", ME, count)
            window.add("x.example", [_recipient(f"m{number}", i) for i in range(count)])
            number += 1
        elif kind == 1:
            leased += window.take("x.example", count)
        elif kind == 2 and leased:
            window.put_back("x.example", leased[:count])
            del leased[:count]
        elif leased:
            window.forget([r.key for r in leased[:count]])
            del leased[:count]
        elif number:
            key = _recipient(f"m{number - 1}", 0).key
            if key in window and window.withdraw(key):
                held.append(key)
    rest = []
    while taken := window.take("x.example", 5):
        rest += taken
    assert window.room.size == 0
    assert not {r.key for r in rest} & set(held)


async def test_senders_of_one_host_take_turns(directory: Path) -> None:
    """Without a user a host is one submitter, and each domain that it sends from has a queue of its own."""
    async with opened(directory) as queue:
        for number in range(50):
            await accept(queue, f"{number}@x.example", sender=f"news{number}@flood.example")
        await accept(queue, "probe@x.example", sender="monitor@other.example")
        found = [lease(queue, "x.example").recipients[0] for _ in range(2)]
        assert [recipient.address for recipient in found] == ["0@x.example", "probe@x.example"]
        assert {recipient.record.submitter for recipient in found} == {"127.0.0.1"}
        assert found[1].record.flow == "127.0.0.1 @other.example"


async def test_a_user_is_one_flow(directory: Path) -> None:
    """Whatever the domains of the senders."""
    async with opened(directory) as queue:
        for sender in ("a@one.example", "b@one.example", "c@two.example"):
            await accept(queue, f"{sender[0]}@x.example", sender=sender, user="news")
        found = [lease(queue, "x.example").recipients[0].address[0] for _ in range(3)]
        assert found == ["a", "b", "c"]


async def test_a_flood_for_one_domain_leaves_room_for_others(directory: Path) -> None:
    """More mail than the share of one destination spills, on disk, in order; nothing is lost."""
    async with opened(directory, window=80) as queue:
        share = 80 // SHARES
        sent = [await accept(queue, f"a{n}@flood.example") for n in range(share * 5)]
        window = queue.windows.zone("default")
        assert window.waiting("flood.example") == share
        assert sum(1 for key in everything(queue.store) if key.startswith(keys.SPILL)) == share * 4
        await accept(queue, "b@other.example")
        assert lease(queue, "other.example").recipients[0].address == "b@other.example"
        got = []
        while held := queue.lease("default", "flood.example", 10):
            got.append(held.active.id)
            await settle(queue, held, OutcomeKind.DELIVERED)
        assert got == sent
        assert not [key for key in everything(queue.store) if key.startswith(keys.SPILL)]


async def test_more_domains_than_the_window_holds(directory: Path) -> None:
    """With the whole window full, a new destination's mail waits on disk and still gets its turn."""
    ready: list[str] = []
    async with opened(
        directory, window=100, on_ready=lambda zone, destination, light: ready.append(destination)
    ) as queue:
        domains = [f"d{n}.example" for n in range(300)]
        for domain in domains:
            await accept(queue, f"a@{domain}")
        done: set[str] = set()
        while len(done) < len(domains):
            assert ready, f"{len(done)} of {len(domains)} and nothing is announced"
            held = queue.lease("default", ready.pop(0), 10)
            if held is not None:
                done.add(held.destination)
                await settle(queue, held, OutcomeKind.DELIVERED)
        assert everything(queue.store) == []


async def test_a_restart_finds_window_and_spill(directory: Path) -> None:
    """The scan at start covers what was in memory and what was spilled, each once."""
    clock = Clock()
    async with opened(directory, clock, window=80) as queue:
        sent = [await accept(queue, f"a{n}@x.example", f"b{n}@x.example") for n in range(60)]
    async with opened(directory, clock, window=80) as queue:
        assert problems(queue.store) == []
        new = await accept(queue, "new@x.example")
        got = []
        while held := queue.lease("default", "x.example", 10):
            assert len(held.recipients) <= 2
            got += [held.active.id] * len(held.recipients)
            await settle(queue, held, OutcomeKind.DELIVERED)
        assert got == [message for message in sent for _ in range(2)] + [new]
        assert everything(queue.store) == []


async def test_a_small_job_overtakes_a_flood_at_its_own_destination(directory: Path) -> None:
    """One customer's thousand for a domain, most of them on disk: another's message is next but one."""
    async with opened(directory, window=80) as queue:
        flood = [await accept(queue, f"a{n}@x.example", user="bulk") for n in range(100)]
        small = await accept(queue, "b@x.example", user="small")
        assert queue.store.get(keys.spill_key("default", "x.example", small)) is None
        first, second = lease(queue, "x.example"), lease(queue, "x.example")
        assert [first.active.id, second.active.id] == [flood[0], small]
        for held in (first, second):
            await settle(queue, held, OutcomeKind.DELIVERED)
        got = []
        while rest := queue.lease("default", "x.example", 10):
            got.append(rest.active.id)
            await settle(queue, rest, OutcomeKind.DELIVERED)
        assert got == flood[1:], "in order, and none forgotten"
        assert everything(queue.store) == []


async def test_a_small_job_finds_a_place_in_a_window_full_of_anothers(directory: Path) -> None:
    """A flood for more domains than the window holds leaves its last quarter to others."""
    ready: list[tuple[str, bool]] = []
    async with opened(
        directory,
        window=100,
        on_ready=lambda zone, destination, light: ready.append((destination, light)),
    ) as queue:
        for n in range(150):
            await accept(queue, f"a@d{n}.example", user="bulk")
        window = queue.windows.zone("default")
        assert window.room.size == 100 - 100 // HEADROOM
        assert ready[-1] == ("d149.example", False)
        await accept(queue, "b@new.example", user="small")
        assert ready[-1] == ("new.example", True)
        assert lease(queue, "new.example").recipients[0].address == "b@new.example"


async def test_weights(directory: Path) -> None:
    """In a flood of 300 tenants each has its share, within 5 %, while the window has room for sixteen of each."""
    async with opened(directory, window=40_000, store="memory") as queue:
        weights = {f"t{n}": (1, 2, 5)[n % 3] for n in range(300)}
        queue.windows.set_weights({f"{TENANT_FLOW}{name}": weight for name, weight in weights.items()})
        for n in range(25):
            commits = []
            for tenant in weights:
                to = NewRecipient(f"{n}@x.example", "x.example", "default")
                origin = Origin("", "192.0.2.1", "", f"user{n % 2}", "ESMTPA", tenant)
                message = NewMessage("s@s.example", b"A: b\r\n", [to], origin)
                commits.append(queue.accept(queue.open_message(), message))
            for commit in commits:
                await commit
        assert queue.windows.zone("default").spilled.has("x.example"), (
            "the share of a destination is smaller"
        )
        turns = Counter[str]()
        leases = 3 * sum(weights.values())
        for _ in range(leases):
            held = lease(queue, "x.example")
            turns[held.active.meta.origin.tenant] += 1
            await settle(queue, held, OutcomeKind.DELIVERED)
        for weight in (1, 2, 5):
            members = [name for name, each in weights.items() if each == weight]
            share = sum(turns[name] for name in members) / leases
            expected = weight * len(members) / sum(weights.values())
            assert abs(share / expected - 1) < 0.05
            assert max(turns[name] for name in members) - min(turns[name] for name in members) <= weight


async def test_two_floods_with_their_mail_mixed_on_disk(directory: Path) -> None:
    """Both are refilled, each in its order, and take turns."""
    async with opened(directory, window=80) as queue:
        sent: dict[str, list[str]] = {"one": [], "two": []}
        for n in range(60):
            for user, own in sent.items():
                own.append(await accept(queue, f"{user}{n}@x.example", user=user))
        got: dict[str, list[str]] = {"one": [], "two": []}
        turns = []
        while held := queue.lease("default", "x.example", 10):
            user = held.recipients[0].record.submitter
            turns.append(user)
            got[user].append(held.active.id)
            await settle(queue, held, OutcomeKind.DELIVERED)
        assert got == sent
        assert turns[:40].count("one") in range(15, 26)
        assert everything(queue.store) == []


def test_a_starved_destination_without_room_does_not_keep_others_hungry() -> None:
    """Of one submitter's starved destinations, the first being full of others' mail, the second is fed."""
    window = ReadyWindow("z", 160)
    for n in range(window.room.share(USUAL_KEY)):
        other = _recipient(f"m{n}", 0, "full.example")
        other.record = other.record._replace(flow=f"other{n}")
        other.submitter = other.record.submitter
        window.add("full.example", [other])
    window.add(
        "busy.example", [_recipient(f"b{n}", 0, "busy.example") for n in range(window.room.low_volume)]
    )
    window.refills.note_spill("full.example", ME, "m900")
    window.refills.note_spill("empty.example", ME, "m901")
    assert window.refills.next_starved() == "empty.example"
    assert window.refills.next_starved() is None
    assert window.set_unreachable("full.example")
    window.set_reachable("full.example")
    assert window.refills.next_starved() == "full.example", "its turn comes when there is room"


async def test_mail_that_leaves_from_another_pool_has_a_share_of_its_own(directory: Path) -> None:
    """Deferred mail finds room beside a flood that waits for the usual pool, most of it on disk, and the other way round."""
    async with opened(directory, window=160) as queue:
        queue.windows.set_pools(UserPools())
        window, share, hour_ms = queue.windows.zone("default"), 160 // SHARES, queue.now() + 3_600_000
        for n in range(2):
            await accept(queue, f"early{n}@x.example", user="b")
            await settle(queue, lease(queue, "x.example"), OutcomeKind.DEFERRED, due_ms=hour_ms)
        for n in range(share * 4):
            await accept(queue, f"r{n}@x.example", user="b")
        assert window.waiting("x.example") == share
        await flush(queue)
        assert window.pool_keys("x.example") == (USUAL_KEY, FALLBACK)
        for n in range(2):
            held = queue.lease("default", "x.example", 10, FALLBACK)
            assert held is not None
            assert held.recipients[0].address == f"early{n}@x.example"
            await settle(queue, held, OutcomeKind.DELIVERED)
        assert queue.lease("default", "x.example", 10, FALLBACK) is None
        assert window.has_mail("x.example", USUAL_KEY) and not window.has_mail("x.example", FALLBACK)
        for _ in range(share * 4):
            held = queue.lease("default", "x.example", 10, USUAL_KEY)
            assert held is not None
            await settle(queue, held, OutcomeKind.DEFERRED, due_ms=hour_ms)
        await flush(queue)  # all of it waits for the fallback pool now
        new = await accept(queue, "new@x.example", user="b")
        assert USUAL_KEY in queue.windows.pool_keys("default", "x.example"), (
            "it does not wait behind those"
        )
        held = queue.lease("default", "x.example", 10, USUAL_KEY)
        assert held is not None and held.active.id == new
        await settle(queue, held, OutcomeKind.DELIVERED)
        count = 0
        while held := queue.lease("default", "x.example", 10):
            count += 1
            await settle(queue, held, OutcomeKind.DELIVERED)
        assert count == share * 4
        assert everything(queue.store) == []


async def test_pools_take_turns(directory: Path) -> None:
    """Where nothing says from which pool, and after a change of the pools."""
    async with opened(directory) as queue:
        queue.windows.set_pools(UserPools())
        for n in range(3):
            for user in "ab":
                await accept(queue, f"{user}{n}@x.example", user=user)
        held = [lease(queue, "x.example") for _ in range(2)]
        assert [each.recipients[0].address for each in held] == ["a0@x.example", "b0@x.example"]
        assert queue.windows.pool_keys("default", "x.example") == (OWN, USUAL_KEY)
        queue.windows.set_pools(ONE_POOL)
        assert queue.windows.zone("default").pool_keys("x.example") == (USUAL_KEY,)
        for each in held:
            queue.release(each)
        found = [lease(queue, "x.example").recipients[0].address[:2] for _ in range(6)]
        assert sorted(found) == ["a0", "a1", "a2", "b0", "b1", "b2"]


def test_low_volume_is_of_the_whole_pool() -> None:
    """A retry that wants one address is no mail of a small submitter."""
    window = ReadyWindow("z", 160)
    part = Stream("me", PoolKey("", "192.0.2.1"))
    assert window.room.is_low_volume(part)
    window.add("x.example", [_recipient(f"m{number:03}", 0) for number in range(17)])
    assert not window.room.is_low_volume(part)
    assert window.room.is_low_volume(Stream("me", PoolKey("other")))
    assert list(window.problems()) == []


@pytest.mark.parametrize(("pool", "attempts", "share"), [(FALLBACK, 1, 20), (PART, 2, 10)])
def test_a_part_of_a_pool_has_part_of_a_share(pool: PoolKey, attempts: int, share: int) -> None:
    """Mail that wants some addresses of a pool does not fill the window beside that of the others."""
    window, number = ReadyWindow("z", 160), 0
    window.use(UserPools())
    while window.has_room("x.example", Stream("me", pool)):
        number += 1
        late = _recipient(f"m{number:03}", 0)
        late.record = late.record._replace(attempts=attempts)
        window.add("x.example", [late])
    assert window.pool_keys("x.example") == (pool,)
    assert number == window.room.share(pool) == share


async def fallback_mail(queue: Queue, domain: str, messages: int) -> None:
    """Messages of user b that have had an attempt, and are ready again."""
    for n in range(messages):
        await accept(queue, f"late{n}@{domain}", user="b")
    while held := queue.lease("default", domain, 1):
        await settle(queue, held, OutcomeKind.DEFERRED, due_ms=queue.now() + 3_600_000)
    await flush(queue)


@pytest.mark.parametrize("restarted", [False, True])
async def test_blocked_mail_for_one_pool_leaves_the_window_to_others(
    directory: Path, restarted: bool
) -> None:
    """Nothing takes it, and most of it is on disk: mail of the same submitter for another destination is sent, all of it."""
    clock = Clock()
    async with opened(directory, clock, window=80) as queue:
        queue.windows.set_pools(UserPools())
        await fallback_mail(queue, "blocked.example", 60)
        for n in range(60):
            await accept(queue, f"r{n}@free.example", user="b")
        if not restarted:
            await free_mail_is_sent(queue)
    if restarted:
        async with opened(directory, clock, window=80, pools=UserPools()) as queue:
            await free_mail_is_sent(queue)


async def free_mail_is_sent(queue: Queue) -> None:
    window, sent = queue.windows.zone("default"), 0
    while held := queue.lease("default", "free.example", 1, USUAL_KEY):
        sent += 1
        assert queue.windows.pool_keys("default", "blocked.example") == (FALLBACK,)
        await settle(queue, held, OutcomeKind.DELIVERED)
    assert sent == 60
    assert window.waiting("blocked.example") <= 60
    assert window.room.size < 80 - 80 // HEADROOM


async def test_a_destination_that_failed_is_probed_with_mail_of_each_pool(directory: Path) -> None:
    """The oldest on disk may be for a pool that may not send."""
    async with opened(directory) as queue:
        queue.windows.set_pools(UserPools())
        await fallback_mail(queue, "x.example", 3)
        await accept(queue, "new@x.example", user="b")
        queue.windows.set_unreachable("default", "x.example")
        await until(lambda: queue.windows.zone("default").spilled.has("x.example"), "the spill")
        assert sorted(queue.windows.pool_keys("default", "x.example")) == [USUAL_KEY, FALLBACK]
        assert queue.windows.zone("default").waiting("x.example") == 2, "one message of each"


async def test_mail_on_disk_after_a_change_of_pools(directory: Path) -> None:
    """It is found under its new stream, although nothing leaves the window."""
    async with opened(directory, window=80) as queue:
        for n in range(40):
            await accept(queue, f"r{n}@x.example", user="a")
        queue.windows.set_pools(UserPools())
        window = queue.windows.zone("default")
        assert window.pool_keys("x.example") == (OWN,)
        got = 0
        while held := queue.lease("default", "x.example", 1, OWN):
            got += 1
            await settle(queue, held, OutcomeKind.DELIVERED)
        assert got == 40
        assert everything(queue.store) == []


async def test_a_tenant_with_its_own_pool_has_the_turns_of_one(directory: Path) -> None:
    """Where nothing says from which pool: weights hold over all pools."""
    async with opened(directory) as queue:
        queue.windows.set_pools(UserPools())
        queue.windows.set_weights({"b": 3})
        for n in range(12):
            for user in "abc":
                await accept(queue, f"{user}{n}@x.example", user=user)
        turns = Counter(lease(queue, "x.example").recipients[0].record.submitter for _ in range(20))
        assert turns == {"a": 4, "b": 12, "c": 4}


@pytest.mark.parametrize(("before", "after"), [(ONE_POOL, UserPools()), (UserPools(), ONE_POOL)])
async def test_mail_that_comes_after_a_change_of_pools_hides_nothing(
    directory: Path, before: MailPools, after: MailPools
) -> None:
    """Of a destination that is suspended: what is on disk has another stream than the index says, and newer mail follows."""
    async with opened(directory, pools=before) as queue:
        queue.windows.set_unreachable("default", "x.example")
        sent = [await accept(queue, f"r{n}@x.example", user="a") for n in range(20)]
        queue.windows.set_pools(after)
        sent.append(await accept(queue, "new@x.example", user="a"))
        queue.windows.zone("default").set_reachable("x.example")
        got = []
        while held := queue.lease("default", "x.example", 1):
            got.append(held.active.id)
            await settle(queue, held, OutcomeKind.DELIVERED)
        assert got == sent


async def test_a_new_pool_finds_its_mail_on_disk(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the usual mail has its share of the window; in several looks, each of which reads a limited number of keys."""
    monkeypatch.setattr(windows, "REFILL_KEYS", 30)
    async with opened(directory, window=80) as queue:
        for n in range(5):
            await accept(queue, f"late{n}@x.example", user="b")
            await settle(
                queue, lease(queue, "x.example"), OutcomeKind.DEFERRED, due_ms=queue.now() + 3_600_000
            )
        for n in range(60):
            await accept(queue, f"r{n}@x.example", user="b")
        await flush(queue)
        assert queue.windows.pool_keys("default", "x.example") == (USUAL_KEY,)
        queue.windows.set_pools(UserPools())
        for _ in range(10):
            pools = queue.windows.pool_keys("default", "x.example")
        assert sorted(pools) == [USUAL_KEY, FALLBACK]


async def test_mail_without_room_does_not_hide_what_is_behind_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On disk: the usual mail of b, which fills its part of the window elsewhere, then some for another pool."""
    monkeypatch.setattr(windows, "REFILL_KEYS", 30)
    async with opened(directory, window=80, pools=UserPools()) as queue:
        for n in range(60):
            await accept(queue, f"r@full{n % 20}.example", user="b")
        queue.windows.set_unreachable("default", "x.example")
        for n in range(60):
            await accept(queue, f"r{n}@x.example", user="b")
        await accept(queue, "own@x.example", user="a")
        window = queue.windows.zone("default")
        window.set_reachable("x.example")
        assert not window.has_room("x.example", Stream("b"))
        assert queue.windows.pool_keys("default", "x.example") == (OWN,)


async def test_weights_hold_within_a_pool(directory: Path) -> None:
    """Also where workers of two pools take turns."""
    async with opened(directory, pools=UserPools()) as queue:
        queue.windows.set_weights({"b": 2})
        for n in range(12):
            for user in "abc":
                await accept(queue, f"{user}{n}@x.example", user=user)
        turns = ""
        for _ in range(9):
            for pool in (USUAL_KEY, OWN):
                held = queue.lease("default", "x.example", 1, pool)
                assert held is not None
                turns += held.recipients[0].record.submitter
        assert turns.replace("a", "") == "bbcbbcbbc"


async def test_mail_of_a_destination_that_answers_again_waits_for_room(directory: Path) -> None:
    """Streams that found none while it was suspended have their turns."""
    async with opened(directory, window=80) as queue:
        window = queue.windows.zone("default")
        queue.windows.set_unreachable("default", "x.example")
        await accept(queue, "r@x.example", user="b")
        assert window.refills.next_starved() is None, "not while it does not answer"
        window.set_reachable("x.example")
        assert window.refills.next_starved() == "x.example"


async def test_a_probe_has_room_in_a_full_window(directory: Path) -> None:
    """One message of a destination that failed, beyond the limit: otherwise nothing would try it again."""
    async with opened(directory, window=16) as queue:
        window = queue.windows.zone("default")
        queue.windows.set_unreachable("default", "x.example")
        for n in range(3):
            await accept(queue, f"r{n}@x.example", user=f"u{n}")
        for n in range(16):
            await accept(queue, f"r{n}@full.example", user=f"v{n}")
        assert window.room.is_full
        assert lease(queue, "x.example").recipients[0].address == "r0@x.example"
        assert window.waiting("x.example") == 0


async def test_a_reload_without_another_pool_reads_nothing_again(directory: Path) -> None:
    async with opened(directory, window=80) as queue:
        for n in range(40):
            await accept(queue, f"r{n}@x.example", user="b")
        window = queue.windows.zone("default")
        before = dict(window.spilled.streams("x.example"))
        lease(queue, "x.example")
        queue.windows.set_pools(ONE_POOL)
        assert not window.refills.is_unsorted("x.example")
        assert dict(window.spilled.streams("x.example")) == before


async def test_a_destination_that_fails_after_a_change_of_pools(directory: Path) -> None:
    """What leaves the window then is older than what is to be read again: all of it is found, the oldest first."""
    async with opened(directory, window=16) as queue:
        sent = [await accept(queue, f"r{n}@x.example", user="a") for n in range(8)]
        queue.windows.set_pools(UserPools())
        window = queue.windows.zone("default")
        assert window.refills.is_unsorted("x.example")
        queue.windows.set_unreachable("default", "x.example")
        await queue.commits.submit(WriteBatch())
        assert queue.windows.pool_keys("default", "x.example") == (OWN,)
        window.set_reachable("x.example")
        got = []
        while held := queue.lease("default", "x.example", 1, OWN):
            got.append(held.active.id)
            await settle(queue, held, OutcomeKind.DELIVERED)
        assert got == sent


async def test_a_deleted_message_is_not_spilled(directory: Path) -> None:
    """Its destination fails before its turn has come."""
    async with opened(directory) as queue:
        message = await accept(queue, "r@x.example")
        await Operator(queue).delete(message)
        queue.windows.set_unreachable("default", "x.example")
        await queue.commits.submit(WriteBatch())
        await until(lambda: everything(queue.store) == [], "nothing on disk")
