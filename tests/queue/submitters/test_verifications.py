"""Verified domains: over a restart, with the time of the last success."""

from pathlib import Path

from tests.kit.queue import Clock, opened, problems
from zonemta_py.queue.submitters.domains import VerificationResult


async def test_results_stay(directory: Path) -> None:
    clock = Clock()
    async with opened(directory, clock) as queue:
        await queue.verified.note(
            [
                VerificationResult("acme", "a.example", True),
                VerificationResult("acme", "b.example", False),
            ]
        )
        assert queue.verified.changed.is_set()
        assert problems(queue.store) == []
    async with opened(directory, clock) as queue:
        verified = queue.verified
        assert ("acme", "a.example") in verified
        assert ("acme", "b.example") not in verified
        assert ("globex", "a.example") not in verified
        assert verified.verified() == [("acme", "a.example")]
        first_ms, clock.ms = clock.ms, clock.ms + 1000
        await verified.note([VerificationResult("acme", "a.example", True)])
        assert not verified.changed.is_set()  # nothing new for the receivers
        await verified.note([VerificationResult("acme", "a.example", False)])
        found = verified.get("acme", "a.example")
        assert found is not None
        assert (found.is_verified, found.verified_ms, found.checked_ms) == (False, clock.ms, clock.ms)
        assert first_ms < found.verified_ms
        assert verified.changed.is_set()
