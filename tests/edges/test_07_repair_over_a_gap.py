"""7. A recipient that repair puts back may have been delivered: it is recorded as uncertain."""

from pathlib import Path

import pytest

from tests.kit.queue import accept, lease, settle
from tests.kit.servers import queue_settings
from zonemta_py.config.schema import Config, Events, Rotate
from zonemta_py.config.values import Seconds, Size
from zonemta_py.core.model import OutcomeKind
from zonemta_py.events.accounting import RecipientHistory
from zonemta_py.events.log import gaps, read_log
from zonemta_py.events.segment_reading import sealed_segments
from zonemta_py.open_queue import open_queue
from zonemta_py.queue.outbox import Exporter
from zonemta_py.relay.runner import repair


@pytest.mark.parametrize("store", ["leveldb", "filesystem"])
async def test_delivered_mail_that_comes_back_is_named(directory: Path, store: str) -> None:
    """The segment with the delivery is lost: repair cannot know, and says so."""
    config = Config(
        listeners=(),
        queue=queue_settings(directory / "queue", store),
        events=Events(directory / "events", Rotate(Size(1), Seconds(3600))),
    )
    queue = open_queue(config)
    await queue.recover()
    await queue.begin()
    for part in ("accept", "deliver"):  # each in a segment of its own
        exporter = Exporter(queue, config.events)
        await exporter.start()
        if part == "accept":
            message = await accept(queue, "a@x.example", "b@y.example")
        else:
            await settle(queue, lease(queue, "x.example"), OutcomeKind.DELIVERED)
        await exporter.close()
    await queue.close()
    sealed_segments(directory / "events")[-1].unlink()

    damage: list[str] = []
    rows = await repair(config, read_log(directory / "events", damage))
    assert [(row["what"], row["recipient"]) for row in rows] == [("restored", "a@x.example")]
    queue = open_queue(config)
    exporter = Exporter(queue, config.events)
    await queue.recover()
    await exporter.start()
    await exporter.close()
    await queue.close()
    history = RecipientHistory(read_log(directory / "events", damage))
    assert [(r["message"], r["recipient"]) for r in history.uncertain] == [(message, "a@x.example")]
    assert len(list(gaps(directory / "events", {}))) == 1
    assert damage == []
