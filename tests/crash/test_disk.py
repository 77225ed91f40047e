"""A disk that fails under a running relay: the log says so, no message is lost, and mail flows again by itself."""

import errno
from pathlib import Path

import pytest

from tests.crash.disk import Disk, needs_compiler
from tests.crash.rounds import Rounds
from tests.crash.verdict import assert_nothing_lost
from tests.kit.deadlines import until


@pytest.mark.crash
@pytest.mark.parametrize(
    ("call", "number"),
    [("write", errno.ENOSPC), ("write", errno.EIO), ("fsync", errno.EIO), ("open", errno.EROFS)],
)
async def test_a_failing_disk_under_load(directory: Path, call: str, number: int) -> None:
    """No message is accepted until the disk works; then the same process accepts and delivers."""
    needs_compiler()
    import random

    disk = Disk(directory / "relay" / "queue", directory / "scratch")
    async with Rounds(directory / "relay", random.Random(1), disk=disk) as rounds:
        relay = rounds.start()
        await rounds.ready(relay)
        await until(lambda: len(rounds.load.acknowledged) > 100, "some mail")
        disk.fail(call, number)
        await until(lambda: "the queue cannot be opened" in relay.log.read_text(), "attempts to open it")
        # 421: the listener closes while the queue is opened again.
        assert set(rounds.load.refused) <= {"451 4.3.0", "421 4.3.2"}
        text = relay.log.read_text()
        assert "new mail is refused" in text
        assert str(directory / "relay" / "queue") in text
        before = len(rounds.load.acknowledged)
        disk.heal()
        await until(lambda: len(rounds.load.acknowledged) > before + 100, "more mail")
        assert relay.stop() == 0
        verdict = await rounds.finish()
    assert_nothing_lost(verdict)


@pytest.mark.crash
async def test_only_the_event_log_fails(directory: Path) -> None:
    """Mail is delivered; the events wait in the outbox and are written when the disk works again."""
    needs_compiler()
    import random

    disk = Disk(directory / "relay" / "events", directory / "scratch")
    async with Rounds(directory / "relay", random.Random(1), disk=disk) as rounds:
        relay = rounds.start()
        await rounds.ready(relay)
        await until(lambda: len(rounds.load.acknowledged) > 50, "some mail")
        disk.fail("fsync", errno.EIO)
        await until(
            lambda: "the event log cannot be written" in relay.log.read_text(), "a word about it"
        )
        before = len(rounds.load.acknowledged)
        await until(lambda: len(rounds.load.acknowledged) > before + 200, "more mail")
        assert rounds.load.refused == []
        disk.heal()
        assert relay.stop() == 0
        verdict = await rounds.finish()
    assert_nothing_lost(verdict)
