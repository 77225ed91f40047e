"""What is known under a submission key, on every store."""

from pathlib import Path

from tests.kit.queue import Clock, opened
from tests.kit.stores import put
from zonemta_py.queue.format import keys
from zonemta_py.queue.submitters.keys import KeyQuestion, KeyUse, KnownKey, submission_digest

ONE, TWO = "1" * 24, "2" * 24
DIGEST = submission_digest("tenant:acme", "june")


def asked(content: str, *addresses: str) -> KeyQuestion:
    return KeyQuestion(DIGEST, "", content * 32, addresses)


async def test_contents_and_recipients(directory: Path, each_store: str) -> None:
    """Two contents of one key, each with recipients of its own; what is over does not count, and is removed."""
    clock = Clock()
    async with opened(directory, clock, store=each_store) as queue:
        known, store = queue.submission_keys, queue.store
        assert known.lookup(asked("a", "x@a.example")).known is None
        first = KeyUse(
            DIGEST, "a" * 32, ONE, clock.ms + 60_000, ("x@a.example", "zoë@b.example"), True, True
        )
        put(store, dict(first.rows()))
        other = KnownKey(ONE, True, 0, ())
        assert known.lookup(asked("b", "x@a.example")).known == other
        later_ms = clock.ms + 90_000
        put(
            store,
            dict(KeyUse(DIGEST, "b" * 32, TWO, later_ms, ("x@a.example",), False, True, ONE).rows()),
        )
        found = known.lookup(asked("a", "new@a.example", "zoë@b.example")).known
        assert found == KnownKey(ONE, False, first.expires_ms, ("", ONE))
        assert known.lookup(asked("b", "x@a.example", "zoë@b.example")).known == KnownKey(
            ONE, False, later_ms, (TWO, "")
        )
        assert known.lookup(KeyQuestion(DIGEST)).known == KnownKey(ONE, False, 0, ())
        assert known.lookup(KeyQuestion(submission_digest("tenant:globex", "june"))).known is None
        clock.ms = first.expires_ms
        assert known.lookup(asked("a", "x@a.example")).known is None
        await known._remove_old()
        assert known.lookup(asked("b", "x@a.example")).known == KnownKey(TWO, False, later_ms, (TWO,))
        assert len(list(store.keys(keys.SUBMITTED, keys.end_of(keys.SUBMITTED)))) == 2


async def test_one_session_at_a_time(directory: Path) -> None:
    """A key that is held is busy for others, and what is under it is not removed meanwhile."""
    clock = Clock()
    async with opened(directory, clock, store="memory") as queue:
        known = queue.submission_keys
        put(
            queue.store,
            dict(KeyUse(DIGEST, "a" * 32, ONE, clock.ms + 9, ("x@a.example",), True, True).rows()),
        )
        assert not known.acquire(asked("a", "x@a.example")).busy
        assert known.acquire(asked("a", "x@a.example")).busy
        assert known.lookup(KeyQuestion(DIGEST)).busy
        held = known.compare(asked("a", "x@a.example"))
        assert (held.busy, held.known) == (False, KnownKey(ONE, False, clock.ms + 9, (ONE,)))
        clock.ms += 10
        await known._remove_old()
        assert len(list(queue.store.keys(keys.SUBMITTED, keys.end_of(keys.SUBMITTED)))) == 3
        known.release(DIGEST)
        await known._remove_old()
        assert not list(queue.store.keys(keys.SUBMITTED, keys.end_of(keys.SUBMITTED)))
