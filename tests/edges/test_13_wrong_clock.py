"""13. A clock that was wrong for a minute: later mail has its true age, and nothing waits for a year."""

from pathlib import Path

import pytest

from tests.kit.deadlines import until
from tests.kit.queue import Clock, accept, begin, lease, make_store, opened, settle
from zonemta_py.config.load import parse_config
from zonemta_py.core.model import OutcomeKind
from zonemta_py.delivery.open_queue import open_queue
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import born
from zonemta_py.queue.options import QueueOptions
from zonemta_py.queue.queue import Queue

DAY_MS = 86_400_000
STORES = pytest.mark.parametrize("store", ["leveldb", "filesystem"])


def queue_of(directory: Path, clock: Clock, store: str) -> Queue:
    return Queue(
        make_store(directory, store),
        QueueOptions(longest_delay_ms=3 * DAY_MS),
        lambda zone, domain: domain,
        now=clock,
    )


@STORES
async def test_the_age_of_mail_after_the_clock_was_ahead(directory: Path, store: str) -> None:
    """Its id is a year ahead, because ids do not go back; its age is not, also after a restart."""
    clock = Clock()
    right_ms = clock.ms
    async with opened(directory, clock, store=store) as queue:
        clock.ms += 365 * DAY_MS
        await accept(queue, "a@x.example")
        clock.ms = right_ms + 60_000
        message = await accept(queue, "b@y.example")
        assert keys.created_ms(message) > right_ms + 300 * DAY_MS
    async with opened(directory, clock, store=store) as queue:
        active = lease(queue, "y.example").active
        assert born(active.meta, active.id) == right_ms + 60_000


async def test_usual_mail_stores_no_second_time(directory: Path) -> None:
    async with opened(directory) as queue:
        await accept(queue, "a@x.example")
        assert lease(queue, "x.example").active.meta.born_ms == 0


@STORES
async def test_what_is_due_in_a_year_is_tried_at_the_next_start(
    directory: Path, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Mail that was deferred while the clock was wrong; held mail and usual deferrals stay."""
    clock = Clock()
    queue = queue_of(directory, clock, store)
    await begin(queue)
    for number, due_ms in enumerate((clock.ms + 365 * DAY_MS, clock.ms + 2 * DAY_MS)):
        await accept(queue, f"a@d{number}.example")
        await settle(queue, lease(queue, f"d{number}.example"), OutcomeKind.DEFERRED, due_ms=due_ms)
    await queue.operator.hold(await accept(queue, "a@held.example"))
    await queue.close()
    queue = queue_of(directory, clock, store)
    await begin(queue)
    await until(lambda: queue.lease("default", "d0.example", 1), "the stranded recipient")
    assert "1 recipients were due after any possible delay" in caplog.text
    assert queue.lease("default", "d1.example", 1) is None
    assert queue.lease("default", "held.example", 1) is None
    await queue.close()


@pytest.mark.parametrize(("retry", "days"), [("{}", 3), ("{give_up_after: 10d}", 11), ("{policy: function, function: m.f}", 400)])  # fmt: skip
def test_the_longest_delay(directory: Path, retry: str, days: int) -> None:
    """That of the zone with the greatest age; a function may ask for any."""
    text = f"queue: {{directory: {directory}}}\nzones: {{default: {{}}, slow: {{retry: {retry}}}}}\n"
    queue = open_queue(parse_config(text, directory / "z.yaml"))
    assert queue.deferral._longest_delay_ms == days * DAY_MS
    queue.store.close()
