"""What the charts show."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kit.queue import opened
from zonemta_py.admin.page import views as module
from zonemta_py.admin.page.views import KEPT, POINTS_MAX, Charts
from zonemta_py.core.model import OutcomeKind
from zonemta_py.queue.queue import Queue


@pytest.fixture
async def queue(directory: Path) -> AsyncIterator[Queue]:
    async with opened(directory) as queue:
        yield queue


async def test_samples(queue: Queue) -> None:
    """Rates are of the time between two samples; a zone that is new has no past."""
    found = Charts(queue)
    assert found.series("", 30) == {"time_s": []}
    found._sampled_s -= 10
    queue.traffic.accepted["bulk"] += 20
    queue.traffic.outcomes[("bulk", OutcomeKind.DELIVERED, 2)] = 10
    queue.traffic.outcomes[("bulk", OutcomeKind.EXPIRED, 4)] = 5
    found.sample()
    found._sampled_s -= 10
    queue.traffic.outcomes[("other", OutcomeKind.DEFERRED, 4)] = 30
    found.sample()
    everything = found.series("", 30)
    assert [round(each) for each in everything["accepted"]] == [2, 0]
    assert [round(each) for each in everything["delivered"]] == [1, 0]
    assert [round(each, 1) for each in everything["bounced"]] == [0.5, 0]
    assert [round(each) for each in everything["deferred"]] == [0, 3]
    assert everything["queued"] == [0, 0]
    assert [round(each) for each in found.series("other", 30)["deferred"]] == [0, 3]
    assert found.series("unknown", 30) == {"time_s": []}


async def test_the_past_is_bounded(queue: Queue) -> None:
    found = Charts(queue)
    for _ in range(KEPT + 5):
        found.sample()
    assert len(found._times_ms) == KEPT
    assert all(len(column) == KEPT for column in found._columns())
    assert len(found.series("", 30)["time_s"]) == 180
    assert len(found.series("", 360)["time_s"]) == len(found.series("", 360)["queued"]) == POINTS_MAX
    for number in range(module.ZONES_MAX + 50):
        queue.traffic.accepted[f"zone{number}"] += 1
    found.sample()
    assert len(found._series) <= module.ZONES_MAX + 1


async def test_totals_are_those_of_all_zones(queue: Queue) -> None:
    queue.traffic.accepted.update({"a": 1, "b": 2})
    assert Charts(queue)._before[""] == Counter(accepted=3)
