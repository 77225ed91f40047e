"""23. Strangers cannot fill the event log, and ``events.keep`` removes old segments, but none that is needed."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.kit.deadlines import until
from tests.kit.listener import ListenerUnderTest, listening
from tests.kit.queue import accept, events, lease, opened, settle
from tests.kit.relay import relaying, send, staged
from tests.kit.smtp_client import RawClient
from zonemta_py.cli.main import main
from zonemta_py.config.schema import Events
from zonemta_py.config.values import Keep, keep
from zonemta_py.core.clock import now_ms
from zonemta_py.core.model import OutcomeKind
from zonemta_py.events import log
from zonemta_py.events.schema import Rejected
from zonemta_py.events.segment_reading import sealed_segments
from zonemta_py.intake import context
from zonemta_py.intake.context import Rejections
from zonemta_py.queue import outbox
from zonemta_py.queue.outbox import Exporter
from zonemta_py.storage.open import DiskSpace

EVENT = Rejected(
    time_ms=1, listener="l", client_ip="192.0.2.1", helo="h", user="", tenant="", command="MAIL", sender="s@x.example",
    recipient="", code=530, reply="5.7.0 no",
)  # fmt: skip


async def refused(relay: ListenerUnderTest, count: int) -> None:
    """A client that may not relay tries it ``count`` times."""
    async with await RawClient.connect(relay.address.port) as client:
        await client.ehlo()
        for _ in range(count):
            assert (await client.command("MAIL FROM:<s@x.example>")).startswith("530")


async def test_a_stranger_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "INTERVAL_S", 0.2)
    async with listening(tmp_path, "    trusted_networks: []\n    max_errors: 2000") as relay:
        await refused(relay, 500)
        await until(lambda: sum(counts(relay)) == 500, "the counts")
        assert counts(relay)[0] == 1, "the first is recorded at once"
        assert len(counts(relay)) < 100
        await refused(relay, 3)
        await until(lambda: sum(counts(relay)) == 503, "the counts")


def counts(relay: ListenerUnderTest) -> list[int]:
    return [int(str(e["count"])) for e in events(relay.queue.store) if e["event"] == "rejected"]


async def test_the_end_and_a_full_disk(tmp_path: Path) -> None:
    """What was counted is recorded when the relay stops; with too little space nothing is."""
    written: list[Any] = []
    space = DiskSpace(tmp_path, 1)
    counted = Rejections(written.append, space)
    for _ in range(5):
        counted.add(EVENT, user="", is_known=False)
    counted.close()
    assert [event.count for event in written] == [1, 4]
    space.lack, space._checked_s = "full", float("inf")
    for _ in range(5):
        counted.add(EVENT, user="", is_known=False)
    counted.flush()
    assert len(written) == 2
    space.lack = ""
    counted.close()
    assert [event.count for event in written] == [1, 4, 5]


async def test_many_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a number of networks they are counted together; addresses of one /64 are one network."""
    monkeypatch.setattr(context, "KINDS_MAX", 10)
    written: list[Any] = []
    counted = Rejections(written.append, DiskSpace(tmp_path, 1))
    for number in range(100):
        counted.add(replace_ip(f"192.0.2.{number}"), user="", is_known=False)
    counted.close()
    assert [event.count for event in written] == [1] * 11 + [89]
    assert written[-1].client_ip == ""
    written.clear()
    for number in range(1, 100):
        counted.add(replace_ip(f"2001:db8::{number:x}"), user="", is_known=False)
    counted.close()
    assert [event.count for event in written] == [1, 98]


def replace_ip(client_ip: str) -> Rejected:
    from zonemta_py.core.codec import replace as changed

    return changed(EVENT, client_ip=client_ip)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90d", Keep(90 * 86400, None)), ("50GiB", Keep(None, 50 << 30)), ("90d | 1kB", Keep(90 * 86400, 1000)),
        ("1kB|2h", Keep(7200, 1000)),
    ],
)  # fmt: skip
def test_how_much_is_kept(text: str, expected: Keep) -> None:
    assert keep(text) == expected


@pytest.mark.parametrize(
    "text", ["", "90", "90d | 80d", "1GB | 2GB", "90d | 1GB | 1s", "x", "90d |", 7, None]
)
def test_what_is_not_understood(text: object) -> None:
    with pytest.raises(ValueError, match="a duration, a size, or both"):
        keep(text)


def test_oldest_first_and_never_the_newest() -> None:
    segments = [log.Sealed(Path(str(n)), 1000.0 + n, 10) for n in range(10)]
    names = [str(path) for path in log.removable(segments, Keep(age_s=5), 1010.0)]
    assert names == ["0", "1", "2", "3", "4"]
    assert len(log.removable(segments, Keep(size_bytes=35), 1010.0)) == 7
    assert len(log.removable(segments, Keep(age_s=5, size_bytes=35), 1010.0)) == 7
    assert len(log.removable(segments, Keep(size_bytes=0), 1010.0)) == 9
    assert log.removable([], Keep(size_bytes=0), 1010.0) == []


def test_a_clock_that_is_wrong_for_less_than_a_day_removes_nothing() -> None:
    """Also when segments were sealed under it, and a start follows; what ``keep`` says of the size holds."""
    day_s, now_s = 86_400.0, 2e9
    old = [log.Sealed(Path(str(n)), now_s - (366 - n) * day_s, 10) for n in range(3)]
    assert log.removable(old, Keep(age_s=90 * day_s), now_s) == []
    assert len(log.removable(old, Keep(90 * day_s, size_bytes=10), now_s)) == 2
    wrong = [*old, log.Sealed(Path("new"), now_s - 0.9 * day_s, 10)]
    assert log.removable(wrong, Keep(age_s=90 * day_s), now_s) == []
    right = [*old, log.Sealed(Path("new"), now_s - 1.1 * day_s, 10)]
    assert len(log.removable(right, Keep(age_s=90 * day_s), now_s)) == 3
    short = [*old, log.Sealed(Path("new"), now_s - 2400, 10)]
    assert len(log.removable(short, Keep(age_s=3600), now_s)) == 3


async def test_what_queued_mail_needs(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The segment with the acceptance of a queued message, and all after it, stay until it is delivered."""
    monkeypatch.setattr(outbox, "REMOVE_EVERY_S", 0.0)
    settings = replace(Events(directory=directory / "events"), keep=Keep(size_bytes=0))
    async with opened(directory / "queue", now_ms) as queue:
        exporter = Exporter(queue, settings)
        await exporter._recover()

        async def one(address: str, *, old: bool) -> None:
            await accept(queue, address)
            await exporter._export()
            await exporter._seal_if_due(now=True)
            if old:  # sealed a day ago: file times have a coarse clock
                newest = max(sealed_segments(settings.directory), key=lambda path: path.name)
                os.utime(newest, (now_ms() / 1000 - 86_400,) * 2)

        async def deliver(domain: str) -> None:
            await settle(queue, lease(queue, domain), OutcomeKind.DELIVERED)

        for number in range(4):
            await one(f"u{number}@a.example", old=True)
            await deliver("a.example")
        before_s = now_ms() / 1000
        await one("w@b.example", old=False)
        newest = max(sealed_segments(settings.directory), key=lambda path: path.name)
        os.utime(newest, (before_s - 0.01,) * 2)  # a coarse clock
        assert len(sealed_segments(settings.directory)) == 5
        await exporter._remove_old()
        assert len(sealed_segments(settings.directory)) == 1
        for number in range(3):
            await one(f"v{number}@a.example", old=False)
            await deliver("a.example")
        await exporter._remove_old()
        assert len(sealed_segments(settings.directory)) == 4, "the message to b.example is queued"
        await deliver("b.example")
        await one("last@a.example", old=False)
        for path in sealed_segments(settings.directory)[:-1]:
            os.utime(path, (now_ms() / 1000 - 86_400,) * 2)
        await exporter._remove_old()
        assert len(sealed_segments(settings.directory)) == 1
        await exporter.close()


async def test_the_audit_of_a_log_that_was_cut(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outcomes whose acceptance was removed are no problem; the sums are those of the rest."""
    monkeypatch.setattr(outbox, "REMOVE_EVERY_S", 0.0)
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        config = stage.config(events={"directory": "events", "keep": "1B", "rotate": {"age": "1ms"}})
        async with relaying(config) as relay:
            for number in range(10):
                await send(relay, [f"u{number}@a.example"])
                await until(lambda wanted=number + 1: len(sink.messages) == wanted, "the delivery")
        assert len(sealed_segments(config.events.directory)) < 10
        path = str(directory / "zonemta.yaml")
        result = await asyncio.to_thread(CliRunner().invoke, main, ["audit", "-c", path])
        assert result.exit_code == 0, result.output
        assert "every recipient is accounted for" in result.output
