"""Suspended tenants: over a restart, and which messages are theirs."""

from pathlib import Path

from tests.kit.deadlines import until
from tests.kit.queue import Clock, accept, opened, problems
from zonemta_py.queue.format import keys
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.suspensions import suspended_part
from zonemta_py.queue.upkeep.inspect import held_messages
from zonemta_py.queue.upkeep.operator import Operator


async def test_a_suspension_stays(directory: Path) -> None:
    """Its time is that of the first; a restart finds it, and its end."""
    async with opened(directory) as queue:
        assert not queue.suspended
        await queue.suspended.suspend("acme", "invoice")
        assert problems(queue.store) == []
        first = queue.suspended.get("acme")
        assert first is not None
        await queue.suspended.suspend("acme", "other")
    async with opened(directory) as queue:
        found = queue.suspended.get("acme")
        assert found is not None
        assert (found.since_ms, found.reason) == (first.since_ms, "other")
        assert "acme" in queue.suspended
        assert "globex" not in queue.suspended
        await queue.suspended.resume("acme")
        await queue.suspended.resume("globex")
        assert queue.suspended.names() == []
    async with opened(directory) as queue:
        assert not queue.suspended


async def test_a_suspension_with_an_end(directory: Path) -> None:
    """It is over at its time, also while the relay is down; then what is stored of it is deleted."""
    clock = Clock()

    def stored(queue: Queue) -> list[bytes]:
        return list(queue.store.keys(keys.META_SUSPENDED, keys.end_of(keys.META_SUSPENDED)))

    async with opened(directory, clock) as queue:
        suspended = queue.suspended
        await suspended.suspend("zone:bulk", "", clock() + 1000)
        await suspended.suspend("provider:big", "", clock() + 5000)
        before = suspended.version
        clock.ms += 999
        assert suspended.sending() == ["provider:big", "zone:bulk"]
        clock.ms += 1
        assert "zone:bulk" not in suspended
        assert suspended.version > before, "what was known of it is asked again"
        assert (suspended.sending(), suspended.submitters()) == (["provider:big"], [])
        assert len(stored(queue)) == 2
    clock.ms += 3999
    async with opened(directory, clock) as queue:
        assert queue.suspended.names() == ["provider:big"]
        clock.ms += 1
        assert queue.suspended.names() == []
        assert not queue.suspended
        await queue.suspended.suspend("acme", "")
        left = [keys.META_SUSPENDED + b"acme"]
        await until(lambda: stored(queue) == left, "the ends of the others")


async def test_held_messages_of_a_tenant(directory: Path) -> None:
    """Each once, whatever the number of its recipients and zones."""
    async with opened(directory) as queue:
        acme = await accept(queue, "a@x.example", "b@x.example", "c@y.example|bulk", tenant="acme")
        await accept(queue, "d@x.example", tenant="acme")
        other = await accept(queue, "e@x.example", tenant="globex")
        for message in (acme, other):
            await Operator(queue).hold(message)
        assert set(held_messages(queue.store, "acme")) == {acme}
        assert list(held_messages(queue.store, "globex")) == [other]
        assert list(held_messages(queue.store, "none")) == []


async def test_held_messages_of_a_user(directory: Path) -> None:
    """Not those that a scanner had held."""
    async with opened(directory) as queue:
        ann = await accept(queue, "a@x.example", tenant="acme", user="ann")
        await Operator(queue).hold(ann)
        await Operator(queue).hold(await accept(queue, "b@x.example", tenant="acme", user="bob"))
        await accept(queue, "c@x.example", tenant="acme", user="ann", hold="rspamd: quarantine")
        assert list(held_messages(queue.store, "", "ann")) == [ann]
        assert len(list(held_messages(queue.store, "acme"))) == 2


async def test_what_an_operator_released_is_not_the_scanners_any_more(directory: Path) -> None:
    """Held again with its tenant, it is released with it; over a restart, too."""
    async with opened(directory) as queue:
        message = await accept(queue, "a@x.example", tenant="acme", hold="rspamd: quarantine")
        await Operator(queue).release(message)
        await Operator(queue).hold(message)
        assert list(held_messages(queue.store, "acme")) == [message]
        assert problems(queue.store) == []


def test_who_is_suspended() -> None:
    assert suspended_part(("acme",), "acme", "ann") == "Tenant acme"
    assert suspended_part(("user:ann",), "acme", "ann") == "User ann"
    assert suspended_part(("user:ann",), "acme", "acme") == ""
    assert suspended_part(("user:",), "", "") == ""
